// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package recipe

import _ "embed"

//go:embed pause/main.go
var pauseSource string

//go:embed runtime/main.go
var runtimeSource string

// Runtime is the program that containerd runs as its OCI runtime.
const Runtime = "runc-without-seccomp"

// Node lists the programs of the node and the control plane except Kubernetes itself, quickest build first.
func Node() []Component {
	components := []Component{
		{
			Name: "pause", Version: "v1", Binary: "pause",
			Packages: []string{"."},
			Sources:  map[string]string{"main.go": pauseSource},
		},
		{
			Name: "runtime", Version: "v1", Binary: Runtime,
			Packages: []string{"."},
			Sources:  map[string]string{"main.go": runtimeSource},
		},
		{
			Name: "cni", Module: "github.com/containernetworking/plugins", Version: "v1.9.1",
			Packages: []string{
				"github.com/containernetworking/plugins/plugins/main/bridge",
				"github.com/containernetworking/plugins/plugins/ipam/host-local",
				"github.com/containernetworking/plugins/plugins/main/loopback",
			},
		},
		{
			Name: "runc", Module: "github.com/opencontainers/runc", Version: "v1.5.2", Binary: "runc",
			Packages: []string{"github.com/opencontainers/runc"},
			CGO:      true,
		},
		{
			Name: "etcd", Module: "go.etcd.io/etcd/server/v3", Version: "v3.6.5", Binary: "etcd",
			Packages: []string{"go.etcd.io/etcd/server/v3"},
		},
		{
			Name: "containerd", Module: "github.com/containerd/containerd/v2", Version: "v2.3.7",
			Packages: []string{
				"github.com/containerd/containerd/v2/cmd/containerd",
				"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
				"github.com/containerd/containerd/v2/cmd/ctr",
			},
			Tags:    []string{"no_btrfs"},
			LDFlags: []string{"-X github.com/containerd/containerd/v2/version.Version=v2.3.7"},
		},
	}
	for i, c := range components {
		components[i].GoMod = goMod(c.Name, c.Module, c.Version)
	}
	return components
}
