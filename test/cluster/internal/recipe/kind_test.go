// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package recipe

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestKind_Version_BuildsKubeadmOfIt(t *testing.T) {
	components, err := Kind("v1.36.5", upstream)
	if err != nil {
		t.Fatal(err)
	}
	last := components[len(components)-1]
	if diff := cmp.Diff([]string{"kubeadm", "kube-proxy"}, last.Binaries()); diff != "" {
		t.Errorf("binaries (-want +got):\n%s", diff)
	}
	if last.Version != "v1.36.5" || !strings.HasPrefix(last.Key(), "kubeadm-v1.36.5-") {
		t.Errorf("version %s, key %s", last.Version, last.Key())
	}
}

func TestKindImages_ListOfKubeadm_HasItsVersions(t *testing.T) {
	components, err := KindImages([]string{
		"registry.k8s.io/kube-apiserver:v1.37.1", "registry.k8s.io/coredns/coredns:v1.14.6", "registry.k8s.io/pause:3.10", "registry.k8s.io/etcd:3.7.0-0",
	})
	if err != nil {
		t.Fatal(err)
	}
	var versions []string
	for _, c := range components {
		versions = append(versions, c.Name+" "+c.Version)
	}
	if diff := cmp.Diff([]string{"etcd v3.7.0", "coredns v1.14.6"}, versions); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, source := range components[1].Sources {
		if strings.Contains(source, "go:build") {
			t.Errorf("the go command would leave CoreDNS's main out:\n%s", source)
		}
	}
}

func TestKindImages_ImageIsMissing_ReturnsError(t *testing.T) {
	for _, images := range [][]string{nil, {"registry.k8s.io/etcd:3.7.0-0"}, {"registry.k8s.io/coredns/coredns:v1.14.6"}} {
		if _, err := KindImages(images); err == nil {
			t.Errorf("%v was accepted", images)
		}
	}
}
