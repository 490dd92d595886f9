// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// Needs are the claims of a subject, for other packages that ask the allocator.
type Needs struct{ w wanted }

// Needs finds the claims of a subject. A claim that is not made yet is taken from its template.
func (c *Cluster) Needs(s Subject, now time.Time) Needs { return Needs{c.claims(s, now)} }

// Waiting are the claims without an allocation. They are copies.
func (n Needs) Waiting() []*resourceapi.ResourceClaim { return n.w.waiting }

// Missing says what the scheduler waits for before it looks at devices.
func (n Needs) Missing() []Reason { return n.w.missing }

// Complete reports whether all claims are known and none has devices yet, so that the scheduler only lacks devices for
// them.
func (n Needs) Complete() bool {
	return len(n.w.missing) == 0 && len(n.w.unread) == 0 && len(n.w.large) == 0 && len(n.w.allocated) == 0 &&
		len(n.w.waiting) > 0
}

// Excluded says why the scheduler does not consider a node for the pod of these needs, apart from devices, CPU and
// memory: selectors, required node affinity, taints, a cordon. It is empty if it considers the node.
func (n Needs) Excluded(node *corev1.Node, pod *corev1.Pod) string {
	for _, one := range excluded(node, pod, n.w) {
		return one.Text
	}
	return ""
}

// Moved are the needs of a pod whose claims all get new devices: nothing ties it to its node.
func Moved(pod *corev1.Pod) Needs {
	var n Needs
	if made := pod.Status.ExtendedResourceClaimStatus; made != nil {
		for _, m := range made.RequestMappings {
			n.w.extended = append(n.w.extended, corev1.ResourceName(m.ResourceName))
		}
	}
	return n
}
