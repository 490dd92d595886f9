// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
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

func group(q *ask.Question, nodes []*ask.Node) (out []*shape) {
	for _, one := range q.Group(nodes) {
		out = append(out, &shape{Alike: one})
	}
	return out
}
