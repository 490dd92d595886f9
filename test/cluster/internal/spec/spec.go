// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package spec describes one cluster: what was asked for and where it keeps its state.
//
// Everything of a cluster lies under one directory, beside its cgroups and its processes. The file Lock
// in it is held by flock as long as any process of the cluster lives that could still write there; a
// Spec whose lock can be taken is a leftover.
package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Addresses inside the cluster's private network namespace. No other network sees them. What differs from
// node to node is in member.go.
const (
	ServiceIP        = "10.96.0.1" // the first of ServiceRange: kubernetes.default.svc
	ServiceRange     = "10.96.0.0/16"
	DNSIP            = "10.96.0.10" // nobody answers there
	APIServerPort    = "443"
	ContainerdSocket = "/run/containerd/containerd.sock"
	// PauseImage is the sandbox image that the pinned containerd asks for.
	PauseImage = "registry.k8s.io/pause:3.10.1"
)

// Spec is one cluster.
type Spec struct {
	// ID names what cannot lie under Dir: the cgroup.
	ID         string `json:"id"`
	Dir        string `json:"dir"`
	Kubernetes string `json:"kubernetes"`
	// Nodes is how many nodes there are; zero is one.
	Nodes         int      `json:"nodes,omitempty"`
	FeatureGates  []string `json:"featureGates,omitempty"`  // name=true|false
	RuntimeConfig []string `json:"runtimeConfig,omitempty"` // group/version=true|false
	// Bins are the directories of the built programs.
	Bins []string `json:"bins"`
	// Port is the API server's on the host's loopback.
	Port int `json:"port,omitempty"`
	// Snapshotter is containerd's: overlayfs, or native where Dir's file system cannot carry an overlay.
	Snapshotter string `json:"snapshotter,omitempty"`

	// Member is the node whose paths and names these are, see On.
	Member int `json:"-"`
}

// Paths under Dir that are the same for every node.
func (s Spec) Path(elem ...string) string { return filepath.Join(append([]string{s.Dir}, elem...)...) }
func (s Spec) PKI(name string) string     { return s.Path("pki", name) }
func (s Spec) Kubeconfig() string         { return s.Path("kubeconfig") }

// Program finds a built program.
func (s Spec) Program(name string) (string, error) {
	for _, bin := range s.Bins {
		path := filepath.Join(bin, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("program %s is in none of %s: was the cache removed? run `onenode build`", name, strings.Join(s.Bins, " "))
}

// PATH is an executable search path with the built programs first.
func (s Spec) PATH() string {
	return strings.Join(append(slices.Clone(s.Bins), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), ":")
}

// File is the Spec's name in its directory: where it is, the directory is a cluster's.
const File = "onenode.json"

// Load reads the Spec of the cluster in dir. A directory without a cluster is ErrNoCluster.
func Load(dir string) (Spec, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Spec{}, err
	}
	b, err := os.ReadFile(filepath.Join(dir, File))
	if errors.Is(err, os.ErrNotExist) {
		return Spec{}, fmt.Errorf("%s: %w (`onenode up --dir %s` makes one)", dir, ErrNoCluster, dir)
	}
	if err != nil {
		return Spec{}, err
	}
	var s Spec
	if err := json.Unmarshal(b, &s); err != nil {
		return Spec{}, fmt.Errorf("read %s: %w", filepath.Join(dir, File), err)
	}
	// Cleaning removes Dir: it must be this one, wherever the file comes from.
	s.Dir = dir
	return s, nil
}

// Save writes the Spec into its directory.
func (s Spec) Save() error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	tmp := s.Path("." + File)
	if err := os.WriteFile(tmp, append(b, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, s.Path(File))
}

// ErrNoCluster says that a directory holds no cluster.
var ErrNoCluster = errors.New("no cluster here")
