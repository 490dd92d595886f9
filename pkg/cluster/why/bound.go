// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/waiting"
)

// Bound answers about a pod with a node: whether it has devices for its claims and extended resources.
func (c *Cluster) Bound(pod *corev1.Pod, driver string) Answer {
	a := Answer{Subject: Subject{Pod: pod}.String(), Result: Settled}
	name := pod.Spec.NodeName
	a.Summary = fmt.Sprintf("%s is scheduled to node %s.", a.Subject, name)
	if claims := waiting.Unallocated(pod, waiting.Index(c.Claims)); len(claims) > 0 {
		a.Result, a.Change = Lacks, waiting.LacksRemedy
		a.Summary = fmt.Sprintf("%s is on node %s without devices for claim %s.", a.Subject, name,
			strings.Join(claims, ", "))
		a.Reasons = []Reason{{Text: waiting.UnallocatedCause}}
		return a
	}
	undecided := func(resources []waiting.Resource, because string) Answer {
		a.Result = Undecided
		a.Summary = fmt.Sprintf("%s is scheduled to node %s. Whether it has its %s is unknown, because %s.", a.Subject,
			name, waiting.Names(resources), because)
		return a
	}
	if all := waiting.Unclaimed(pod); len(all) > 0 && c.Failed(read.DeviceClasses) {
		return undecided(all, "DeviceClasses could not be read")
	}
	var node *corev1.Node
	if i := slices.IndexFunc(c.Nodes, func(n *corev1.Node) bool { return n != nil && n.Name == name }); i >= 0 {
		node = c.Nodes[i]
	}
	missing, unknown := waiting.NewClasses(driver, c.Classes).Lacks(pod, node)
	switch {
	case len(missing) > 0:
		var parts []string
		for _, r := range missing {
			parts = append(parts, fmt.Sprintf("%s of container %s", r.Name, r.Container))
		}
		a.Result = Lacks
		a.Summary = fmt.Sprintf("%s is on node %s without devices for %s.", a.Subject, name, strings.Join(parts, ", "))
		a.Reasons = []Reason{{Text: waiting.LacksCause}}
		a.Change = waiting.LacksRemedy
	case len(unknown) == 0:
	case c.Nodes == nil:
		return undecided(unknown, "nodes could not be read: a device plugin can serve it")
	case node == nil:
		return undecided(unknown, "the node does not exist")
	default:
		return undecided(unknown, fmt.Sprintf("a device plugin of node %s served it, and is gone", name))
	}
	return a
}
