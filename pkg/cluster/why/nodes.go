// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/bounded"
	"gpu-dra-driver/pkg/cluster/waiting"
)

// excluded says why the scheduler does not consider a node for a pod, apart from devices and resources, or "". pod is
// nil for a claim without a pod.
func excluded(node *corev1.Node, pod *corev1.Pod, w wanted) string {
	if bounded.TooLarge(node) {
		return "its labels and taints are too large to judge"
	}
	return waiting.Excluded(node, pod, w.allocated, w.extended)
}

// nodes are the nodes of a cluster in groups that the allocator cannot distinguish.
type nodes struct {
	// The pod can use the open nodes; excluded says of each closed node why it cannot.
	open, closed []*shape
	excluded     map[string]string
	count        int
}

func (n nodes) all() []*shape { return slices.Concat(n.open, n.closed) }

// nodes finds and groups the nodes for a pod.
func (a *asker) nodes(pod *corev1.Pod, w wanted) nodes {
	a.byNode() // The samples learn from all nodes.
	question := a.Question(w.waiting, a.Rules)
	all := ask.Nodes(a.Nodes, a.Slices, a.Claims)
	out := nodes{excluded: map[string]string{}, count: len(all)}
	var open, closed []*ask.Node
	for _, one := range all {
		if text := excluded(one.Node, pod, w); text != "" {
			out.excluded[one.Name] = text
			closed = append(closed, one)
		} else {
			open = append(open, one)
		}
	}
	out.open, out.closed = a.group(question, open), a.group(question, closed)
	return out
}

func (a *asker) group(q *ask.Question, nodes []*ask.Node) (out []*shape) {
	for _, one := range q.Group(nodes) {
		out = append(out, &shape{Alike: one, driver: a.Driver})
	}
	return out
}
