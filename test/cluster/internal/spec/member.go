// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"path/filepath"
	"strconv"
)

// MaxNodes is the largest number of nodes of a cluster: one machine runs only a few kubelets, and the addresses and
// ports below do not overlap up to this number.
const MaxNodes = 8

// On returns the Spec of a node, counted from 1, with its paths, names and addresses. A Spec without On is the first
// node's, which also runs the control plane.
func (s Spec) On(number int) Spec {
	s.Member = number
	return s
}

// Members lists the numbers of the cluster's nodes.
func (s Spec) Members() []int {
	numbers := []int{1}
	for n := 2; n <= s.Nodes; n++ {
		numbers = append(numbers, n)
	}
	return numbers
}

// Number is the node's number, from 1.
func (s Spec) Number() int { return max(1, s.Member) }

// First reports whether the node runs the control plane.
func (s Spec) First() bool { return s.Number() == 1 }

// Node returns a path of one node.
func (s Spec) Node(elem ...string) string {
	return s.Path(append([]string{s.suffixed("node")}, elem...)...)
}
func (s Spec) Log(component string) string { return s.Path("logs", s.suffixed(component)+".log") }

// Conf returns a configuration file of the node.
func (s Spec) Conf(name string) string {
	if s.First() {
		return s.Path("conf", name)
	}
	return s.Node("conf", name)
}

// ControlDir is the directory of the node's control socket.
func (s Spec) ControlDir() string {
	if s.First() {
		return s.Dir
	}
	return s.Node()
}

// NodeName is the node's name in Kubernetes.
func (s Spec) NodeName() string { return s.suffixed("onenode") }

// KubeletIdentity names the certificate of the node's kubelet and its kubeconfig.
func (s Spec) KubeletIdentity() string { return s.suffixed("kubelet") }

// Cgroup is the name of the node's own cgroup. The first node's is the cluster's, directly under the root of each
// hierarchy. It contains the others, so that one removal removes all.
func (s Spec) Cgroup() string {
	if s.First() {
		return "onenode-" + s.ID
	}
	return filepath.Join("onenode-"+s.ID, s.suffixed("node"))
}

// Source is the source of the cluster's mounts of virtual file systems. It distinguishes them from other mounts.
func (s Spec) Source() string { return "onenode-" + s.ID }

// The nodes share a network namespace: each node has its own addresses, ports and bridge.

// NodeIP is the node's address.
func (s Spec) NodeIP() string { return fmt.Sprintf("10.90.0.%d", s.Number()) }

// PodRange is the address range of the node's pods.
func (s Spec) PodRange() string {
	if s.First() {
		return "10.88.0.0/16"
	}
	return fmt.Sprintf("10.%d.0.0/16", 100+s.Number())
}

// Bridge is the network bridge of the node's pods.
func (s Spec) Bridge() string { return "cni" + strconv.Itoa(s.Number()-1) }

// KubeletPort is the port of the node's kubelet for the API server.
func (s Spec) KubeletPort() int { return 10250 + 100*(s.Number()-1) }

// KubeletHealthPort is the port of the kubelet's health check on the loopback address.
func (s Spec) KubeletHealthPort() int { return 10248 + 100*(s.Number()-1) }

// suffixed returns a name for the first node, and the name with a number for the others.
func (s Spec) suffixed(name string) string {
	if s.First() {
		return name
	}
	return name + "-" + strconv.Itoa(s.Number())
}
