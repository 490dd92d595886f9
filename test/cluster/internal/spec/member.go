// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"path/filepath"
	"strconv"
)

// MaxNodes is how many nodes a cluster may have: a few kubelets are all that one machine carries, and the
// addresses and ports below stay clear of each other up to there.
const MaxNodes = 8

// On is the Spec as node number, from 1, sees it: its paths, names and addresses are that node's. The first
// node, which also carries the control plane, is what a Spec means without On.
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

// Number is the node's, from 1.
func (s Spec) Number() int { return max(1, s.Member) }

// First tells the node with the control plane from those that only run pods.
func (s Spec) First() bool { return s.Number() == 1 }

// Paths of one node.
func (s Spec) Node(elem ...string) string {
	return s.Path(append([]string{s.suffixed("node")}, elem...)...)
}
func (s Spec) Log(component string) string { return s.Path("logs", s.suffixed(component)+".log") }

// Conf is a configuration file of the node's.
func (s Spec) Conf(name string) string {
	if s.First() {
		return s.Path("conf", name)
	}
	return s.Node("conf", name)
}

// ControlDir is where the node's control socket lies.
func (s Spec) ControlDir() string {
	if s.First() {
		return s.Dir
	}
	return s.Node()
}

// NodeName is the node's in Kubernetes.
func (s Spec) NodeName() string { return s.suffixed("onenode") }

// KubeletIdentity names the certificate of the node's kubelet and its kubeconfig.
func (s Spec) KubeletIdentity() string { return s.suffixed("kubelet") }

// Cgroup is the name of the node's own cgroup: the first's is the cluster's, directly under the root of each
// hierarchy, the others' lie in it, so that one removal takes all.
func (s Spec) Cgroup() string {
	if s.First() {
		return "onenode-" + s.ID
	}
	return filepath.Join("onenode-"+s.ID, s.suffixed("node"))
}

// The nodes share a network namespace: addresses, ports and the bridge's name are each node's own.

// NodeIP is the node's address.
func (s Spec) NodeIP() string { return fmt.Sprintf("10.90.0.%d", s.Number()) }

// PodRange is where the node's pods get their addresses.
func (s Spec) PodRange() string {
	if s.First() {
		return "10.88.0.0/16"
	}
	return fmt.Sprintf("10.%d.0.0/16", 100+s.Number())
}

// Bridge is the device that the node's pods hang on.
func (s Spec) Bridge() string { return "cni" + strconv.Itoa(s.Number()-1) }

// KubeletPort is where the API server reaches the node's kubelet.
func (s Spec) KubeletPort() int { return 10250 + 100*(s.Number()-1) }

// KubeletHealthPort is where the kubelet says how it is, on the loopback address.
func (s Spec) KubeletHealthPort() int { return 10248 + 100*(s.Number()-1) }

// suffixed is a name that the first node has as it is and the others with their number.
func (s Spec) suffixed(name string) string {
	if s.First() {
		return name
	}
	return name + "-" + strconv.Itoa(s.Number())
}
