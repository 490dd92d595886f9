// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package spec describes one cluster: its options and the paths of its state.
//
// One directory holds all files of a cluster; only its cgroups and processes are outside. Every process of the
// cluster that could write there holds the file Lock in it with flock. A Spec whose lock is free belongs to an ended
// cluster.
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

// Addresses inside the cluster's private network namespace. No other network sees them. The addresses of a node are
// in member.go.
const (
	ServiceIP        = "10.96.0.1" // the first of ServiceRange: kubernetes.default.svc
	ServiceRange     = "10.96.0.0/16"
	DNSIP            = "10.96.0.10" // without a DNS server
	APIServerPort    = "443"
	ContainerdSocket = "/run/containerd/containerd.sock"
	// PauseImage is the pinned containerd's sandbox image.
	PauseImage = "registry.k8s.io/pause:3.10.1"
)

// Spec is one cluster.
type Spec struct {
	// ID names the cgroup, which is outside of Dir.
	ID         string `json:"id"`
	Dir        string `json:"dir"`
	Kubernetes string `json:"kubernetes"`
	// Nodes is the number of nodes; zero means one.
	Nodes         int      `json:"nodes,omitempty"`
	FeatureGates  []string `json:"featureGates,omitempty"`  // name=true|false
	RuntimeConfig []string `json:"runtimeConfig,omitempty"` // group/version=true|false
	// Sync is how often a kubelet looks at its pods without a cause, such as "10s", and about how long it waits after a failure. Empty
	// is the kubelet's default, a minute.
	Sync string `json:"sync,omitempty"`
	// Bins are the directories of the built programs.
	Bins []string `json:"bins"`
	// Port is the API server's port on the host's loopback device.
	Port int `json:"port,omitempty"`
	// Snapshotter is containerd's: overlayfs, or native if Dir's file system does not support an overlay.
	Snapshotter string `json:"snapshotter,omitempty"`

	// Member is the node of these paths and names, see On.
	Member int `json:"-"`
}

// Path returns a path under Dir that is the same for every node.
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

// File is the Spec's file name in the cluster's directory.
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
	// Cleaning removes Dir: it must be this directory, regardless of the file's content.
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

// ErrNoCluster means that a directory has no cluster.
var ErrNoCluster = errors.New("no cluster here")
