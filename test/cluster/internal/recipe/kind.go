// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package recipe

import (
	_ "embed"
	"fmt"
	"path"
	"strings"
)

//go:embed coredns/main.go
var coreDNSSource string

//go:embed runcap/main.go
var runcapSource string

// KindModule is the module path of kind, KindVersion its version here.
const (
	KindModule  = "sigs.k8s.io/kind"
	KindVersion = "v0.33.0"
)

// RunCap is the program that dockerd runs as its OCI runtime on a machine without CAP_SYS_RESOURCE.
const RunCap = "runcap"

// Kind lists the programs of a kind node that Node and Kubernetes lack, and kind itself, quickest build first.
func Kind(version, upstreamGoMod string) ([]Component, error) {
	const cni = "github.com/containernetworking/plugins"
	components := []Component{
		{
			Name: RunCap, Version: "v1", Binary: RunCap,
			Packages: []string{"."},
			Sources:  map[string]string{"main.go": runcapSource},
		},
		// kind's own CNI plugin, kindnetd, is in no module.
		{Name: "cni-ptp", Module: cni, Version: "v1.9.1", Packages: []string{cni + "/plugins/main/ptp", cni + "/plugins/meta/portmap"}},
		{Name: "kind", Module: KindModule, Version: KindVersion, Packages: []string{KindModule}},
		{
			Name: "runc-seccomp", Module: "github.com/opencontainers/runc", Version: "v1.5.2", Binary: "runc",
			Packages: []string{"github.com/opencontainers/runc"},
			CGO:      true, Tags: []string{"seccomp"},
		},
		{Name: "crictl", Module: "sigs.k8s.io/cri-tools", Version: "v1.37.0", Packages: []string{"sigs.k8s.io/cri-tools/cmd/crictl"}},
	}
	for i, c := range components {
		components[i].GoMod = goMod(c.Name, c.Module, c.Version)
	}
	kubeadm, err := Kubernetes(version, upstreamGoMod)
	if err != nil {
		return nil, err
	}
	kubeadm.Name = "kubeadm"
	kubeadm.Packages = []string{KubernetesModule + "/cmd/kubeadm", KubernetesModule + "/cmd/kube-proxy"}
	return append(components, kubeadm), nil
}

// KindImages lists the programs of images whose versions are kubeadm's: etcd and CoreDNS. images are the lines of
// `kubeadm config images list`.
func KindImages(images []string) ([]Component, error) {
	etcd, err := tagOf(images, "etcd")
	if err != nil {
		return nil, err
	}
	etcd, _, _ = strings.Cut(etcd, "-") // The last part counts builds of the image.
	dns, err := tagOf(images, "coredns")
	if err != nil {
		return nil, err
	}
	components := []Component{
		{
			Name: "etcd", Module: "go.etcd.io/etcd/server/v3", Version: "v" + etcd, Binary: "etcd",
			Packages: []string{"go.etcd.io/etcd/server/v3"},
		},
		// CoreDNS with the plugins of kubeadm's Corefile. All of them take minutes to compile.
		{
			Name: "coredns", Module: "github.com/coredns/coredns", Version: dns, Binary: "coredns",
			Packages: []string{"."},
			// The line keeps the file out of this module's builds.
			Sources: map[string]string{"main.go": strings.TrimPrefix(coreDNSSource, "//go:build ignore\n")},
		},
	}
	for i, c := range components {
		components[i].GoMod = goMod(c.Name, c.Module, c.Version)
	}
	return components, nil
}

// tagOf returns the tag of the image whose last path element is name.
func tagOf(images []string, name string) (string, error) {
	for _, image := range images {
		repository, tag, ok := strings.Cut(path.Base(image), ":")
		if ok && repository == name {
			return tag, nil
		}
	}
	return "", fmt.Errorf("kubeadm names no image %s: %v", name, images)
}
