// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/bounded"
	"gpu-dra-driver/pkg/cluster/waiting"
)

// excluded says why the scheduler does not consider a node for a pod, apart from devices and resources. pod is nil for
// a claim without a pod.
func excluded(node *corev1.Node, pod *corev1.Pod, w wanted) []waiting.Exclusion {
	if bounded.TooLarge(node) {
		return []waiting.Exclusion{{Text: "its labels and taints are too large to judge"}}
	}
	return waiting.Exclusions(node, pod, w.allocated, w.extended)
}

// nodes are the nodes of a cluster in groups that the allocator cannot distinguish.
type nodes struct {
	// The pod can use the open nodes; excluded says of each closed node why it cannot.
	open, closed []*shape
	excluded     map[string][]waiting.Exclusion
	count        int
}

func (n nodes) all() []*shape { return slices.Concat(n.open, n.closed) }

// nodes finds and groups the nodes for a pod.
func (a *asker) nodes(pod *corev1.Pod, w wanted) nodes {
	a.byNode() // The samples learn from all nodes.
	question := a.Question(w.waiting, a.Rules)
	all := ask.Nodes(a.Nodes, a.Slices, a.Claims)
	out := nodes{excluded: map[string][]waiting.Exclusion{}, count: len(all)}
	var open, closed []*ask.Node
	for _, one := range all {
		if why := excluded(one.Node, pod, w); len(why) > 0 {
			out.excluded[one.Name] = why
			closed = append(closed, one)
		} else {
			open = append(open, one)
		}
	}
	out.open, out.closed = a.group(question, open), a.group(question, closed)
	return out
}

// opened returns the changes of the pod or of the nodes after which the pod can use free devices of closed nodes.
func (n nodes) opened() (out []Cure) {
	at := map[string]int{}
	for _, s := range n.closed {
		for _, name := range s.Names {
			var cures []string
			of := OfNode
			for _, one := range n.excluded[name] {
				cures = append(cures, one.Cure)
				if strings.HasPrefix(one.Cure, "the pod") {
					of = OfPod
				}
			}
			if s.result != ask.Yes || slices.Contains(cures, "") {
				continue
			}
			text := strings.Join(cures, ", and ")
			i, known := at[text]
			if !known {
				i, at[text] = len(out), len(out)
				out = append(out, Cure{Text: text, Of: of})
			}
			out[i].Nodes = append(out[i].Nodes, name)
		}
	}
	slices.SortStableFunc(out, func(x, y Cure) int { return len(y.Nodes) - len(x.Nodes) })
	return out[:min(len(out), maxReleases)]
}

func (a *asker) group(q *ask.Question, nodes []*ask.Node) (out []*shape) {
	for _, one := range q.Group(nodes) {
		out = append(out, &shape{Alike: one, driver: a.Driver})
	}
	return out
}
