// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package waiting answers questions about a pod that waits for devices. Does it ask for any, since when, and by which
// claims? With which pods is it alike, and on which nodes may it run? What did the scheduler last say?
//
// Everything that serves, explains, moves or evicts pods asks here, so that all of it takes the same pods for waiting.
package waiting

import (
	"fmt"
	"hash/maphash"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/cluster/bounded"
)

// Extended reports whether a DeviceClass can serve a resource. The kubelet's own have no domain, or one of Kubernetes.
func Extended(name corev1.ResourceName) bool {
	domain, _, ok := strings.Cut(string(name), "/")
	return ok && (!strings.HasSuffix(domain, "kubernetes.io") || Implicit(name))
}

// Implicit reports whether a resource is a class's by the name of the class.
func Implicit(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), resourceapi.ResourceDeviceClassPrefix)
}

// Containers returns the init containers and the containers of a pod.
func Containers(pod *corev1.Pod) []corev1.Container {
	return slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
}

// Resources returns the extended resources for which a pod asks, sorted.
func Resources(pod *corev1.Pod) []corev1.ResourceName {
	found := map[corev1.ResourceName]bool{}
	for _, all := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range all {
			for _, list := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
				for name, n := range list {
					if n.Sign() > 0 && Extended(name) {
						found[name] = true
					}
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// Asks reports whether a pod asks for devices of any driver: by claims, or by extended resources. A pod of which too
// much was dropped may do so.
func Asks(pod *corev1.Pod) bool {
	return len(pod.Spec.ResourceClaims) > 0 || bounded.TooLarge(pod) || len(Resources(pod)) > 0
}

// Ended reports whether all containers of a pod have ended for good. Its claims are released in a moment.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Waits reports whether the scheduler is to find a node for a pod that asks for devices.
func Waits(pod *corev1.Pod) bool {
	return pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && len(pod.Spec.SchedulingGates) == 0 &&
		(pod.Status.Phase == corev1.PodPending || pod.Status.Phase == "") && Asks(pod)
}

// Said has the last words of the scheduler about a pod that it found no node for.
type Said struct {
	// Tried means that it has tried. Unschedulable means that it found a reason of the pod, not an error of its own.
	Tried, Unschedulable bool
	Message              string
	// At is when it first said so, and the pod's creation before.
	At time.Time
}

// lacking is the scheduler's count of nodes that lack devices.
var lacking = regexp.MustCompile(`\b([0-9]+) cannot allocate all claims`)

// Lacks counts the nodes that lack devices for the pod's claims.
func (s Said) Lacks() int {
	found := lacking.FindStringSubmatch(s.Message)
	if found == nil {
		return 0
	}
	n, _ := strconv.Atoi(found[1]) // A number that is too large is the largest.
	return n
}

// SaidOf returns what the scheduler said about a pod.
func SaidOf(pod *corev1.Pod) Said {
	out := Said{At: pod.CreationTimestamp.Time}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse &&
			c.Reason != corev1.PodReasonSchedulingGated {
			out.Tried, out.Message = true, c.Message
			out.Unschedulable = c.Reason == corev1.PodReasonUnschedulable
			if !c.LastTransitionTime.IsZero() {
				out.At = c.LastTransitionTime.Time
			}
		}
	}
	return out
}

var seed = maphash.MakeSeed()

// NodesKey returns a number that is equal for pods that may run on the same nodes.
func NodesKey(pod *corev1.Pod) uint64 {
	return hashed(&corev1.PodSpec{NodeSelector: pod.Spec.NodeSelector, Affinity: pod.Spec.Affinity,
		Tolerations: pod.Spec.Tolerations})
}

// Key returns a number that is equal for pods of one priority that ask for the same, and may run on the same nodes:
// they differ in their names. The claims are the pod's, and nil for those that do not exist.
func Key(pod *corev1.Pod, claims []*resourceapi.ResourceClaim) uint64 {
	s := &pod.Spec
	parts := []encoder{&corev1.PodSpec{
		Priority: s.Priority, PreemptionPolicy: s.PreemptionPolicy, NodeSelector: s.NodeSelector, Affinity: s.Affinity,
		Tolerations: s.Tolerations, SchedulerName: s.SchedulerName, InitContainers: s.InitContainers,
		Containers: s.Containers,
	}}
	for _, c := range claims {
		of := &resourceapi.ResourceClaimSpec{}
		if c != nil {
			of = &c.Spec
		}
		parts = append(parts, of)
	}
	return hashed(parts...)
}

type encoder interface{ Marshal() ([]byte, error) }

// hashed returns a hash of objects, which differs between processes.
func hashed(parts ...encoder) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	for _, p := range parts {
		encoded, _ := p.Marshal() // A decoded object always encodes.
		_, _ = fmt.Fprintf(&h, "%d ", len(encoded))
		_, _ = h.Write(encoded)
	}
	return h.Sum64()
}

// Marks reports whether a label or annotation of this name marks the pods of Kueue or of a gang.
func Marks(key string) bool {
	domain, name, _ := strings.Cut(key, "/")
	return domain == "kueue.x-k8s.io" || slices.Contains(gangs, domain) ||
		domain == "scheduling.k8s.io" && name == "group-name"
}

// gangs are the domains of labels and annotations with which gang schedulers mark their pods.
var gangs = []string{"scheduling.x-k8s.io", "pod-group.scheduling.sigs.k8s.io", "scheduling.volcano.sh"}
