// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package recipe

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPublished_EachComponentOfTheNode_HasItsPrograms compares the published programs with those that a build makes.
func TestPublished_EachComponentOfTheNode_HasItsPrograms(t *testing.T) {
	k, err := Kubernetes("v1.37.1", upstream)
	if err != nil {
		t.Fatal(err)
	}
	var without []string
	for _, c := range append(Node(), k) {
		files := c.Published("arm64")
		if len(files) == 0 {
			without = append(without, c.Name)
			continue
		}
		var names []string
		for _, file := range files {
			names = append(names, slices.Collect(maps.Keys(file.Programs))...)
			if file.Program != "" {
				names = append(names, file.Program)
			}
		}
		want := c.Binaries()
		slices.Sort(names)
		slices.Sort(want)
		if diff := cmp.Diff(want, names); diff != "" {
			t.Errorf("programs of %s (-built +published):\n%s", c.Name, diff)
		}
	}
	if diff := cmp.Diff([]string{"pause", "runtime"}, without); diff != "" {
		t.Errorf("components without a release: %s", diff)
	}
}

func TestPublished_Addresses_AreThoseOfTheReleasePages(t *testing.T) {
	for _, c := range []struct{ module, version, binary, url, sums, inside string }{
		{
			"github.com/opencontainers/runc", "v1.5.2", "runc", "https://github.com/opencontainers/runc/releases/download/v1.5.2/runc.amd64",
			"https://github.com/opencontainers/runc/releases/download/v1.5.2/runc.sha256sum", "",
		},
		{
			"go.etcd.io/etcd/server/v3", "v3.6.5", "etcd",
			"https://github.com/etcd-io/etcd/releases/download/v3.6.5/etcd-v3.6.5-linux-amd64.tar.gz",
			"https://github.com/etcd-io/etcd/releases/download/v3.6.5/SHA256SUMS", "etcd-v3.6.5-linux-amd64/etcd",
		},
		{
			"github.com/containerd/containerd/v2", "v2.3.7", "ctr",
			"https://github.com/containerd/containerd/releases/download/v2.3.7/containerd-2.3.7-linux-amd64.tar.gz",
			"https://github.com/containerd/containerd/releases/download/v2.3.7/containerd-2.3.7-linux-amd64.tar.gz.sha256sum", "bin/ctr",
		},
		{
			"github.com/containernetworking/plugins", "v1.9.1", "bridge",
			"https://github.com/containernetworking/plugins/releases/download/v1.9.1/cni-plugins-linux-amd64-v1.9.1.tgz",
			"https://github.com/containernetworking/plugins/releases/download/v1.9.1/cni-plugins-linux-amd64-v1.9.1.tgz.sha256", "bridge",
		},
	} {
		files := Component{Module: c.module, Version: c.version, Binary: c.binary}.Published("amd64")
		if len(files) != 1 || files[0].URL != c.url || files[0].Sums != c.sums || files[0].Programs[c.binary] != c.inside {
			t.Errorf("%s: %+v", c.module, files)
		}
	}
	k := Component{Module: KubernetesModule, Version: "v1.37.1", Packages: []string{KubernetesModule + "/cmd/kubelet"}}
	if got := k.Published("arm64"); len(got) != 1 || got[0].URL != "https://dl.k8s.io/release/v1.37.1/bin/linux/arm64/kubelet" || got[0].Sums != got[0].URL+".sha256" {
		t.Errorf("kubelet: %+v", got)
	}
}
