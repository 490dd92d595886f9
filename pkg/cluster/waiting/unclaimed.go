// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Resource is an extended resource of a container.
type Resource struct {
	Container string
	Name      corev1.ResourceName
}

// Unclaimed returns the extended resources of a pod with a node for which its status names no request of a claim: of
// init containers first, sorted by name. A device plugin can serve them. A pod that has ended, or is being deleted, has
// none.
//
// The scheduler makes the claim for extended resources, and writes its name and requests into the pod's status before
// it binds the pod. So a pod without them does not wait for them. A pod with spec.nodeName, or one that another
// scheduler binds, has none. The kubelet leaves out resources that its node does not count, so it starts the pod
// without a device.
func Unclaimed(pod *corev1.Pod) (out []Resource) {
	if pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil || Ended(pod) {
		return nil
	}
	claimed := map[Resource]bool{}
	if made := pod.Status.ExtendedResourceClaimStatus; made != nil && made.ResourceClaimName != "" {
		for _, m := range made.RequestMappings {
			claimed[Resource{m.ContainerName, corev1.ResourceName(m.ResourceName)}] = true
		}
	}
	for _, all := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range all {
			asked := map[corev1.ResourceName]bool{}
			for _, list := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
				for name, n := range list {
					if n.Sign() > 0 && Extended(name) && !claimed[Resource{c.Name, name}] {
						asked[name] = true
					}
				}
			}
			for _, name := range slices.Sorted(maps.Keys(asked)) {
				out = append(out, Resource{c.Name, name})
			}
		}
	}
	return out
}

// Lacks returns the resources of Unclaimed that the driver's devices serve. The pod has no device for those that are
// missing. The API does not show whether it has one for the others: its node is unknown (nil), or counts none any more,
// as after the end of a device plugin. Those of a device plugin that serves on the node are left out, because the
// kubelet refuses what it cannot give.
func (c Classes) Lacks(pod *corev1.Pod, node *corev1.Node) (missing, unknown []Resource) {
	for _, r := range Unclaimed(pod) {
		if !c.CouldBeOurs(r.Name) {
			continue
		}
		if node == nil {
			unknown = append(unknown, r)
			continue
		}
		served, counted := node.Status.Allocatable[r.Name]
		_, known := node.Status.Capacity[r.Name]
		switch {
		case !counted && !known:
			missing = append(missing, r)
		case served.IsZero():
			unknown = append(unknown, r)
		}
	}
	return missing, unknown
}

// Unallocated returns the claims without devices of a pod with a node. The scheduler allocates all claims before it
// binds a pod, and nothing does so later, so the pod does not start.
func Unallocated(pod *corev1.Pod, claims Claims) (out []string) {
	if pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodPending {
		return nil
	}
	for _, c := range Made(pod, claims) {
		if c.Status.Allocation == nil {
			out = append(out, c.Name)
		}
	}
	return out
}

// Names are the names of resources, each once and sorted.
func Names(all []Resource) string {
	names := map[string]bool{}
	for _, r := range all {
		names[string(r.Name)] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(names)), ", ")
}

const (
	// LacksCause says why a pod has no device for a resource that is missing.
	LacksCause = "it was bound without a claim for it, by spec.nodeName or by a scheduler that knows no extended " +
		"resources of DRA"
	// UnallocatedCause says why a claim of a pod with a node has no devices.
	UnallocatedCause = "it was bound before its claim had devices, by spec.nodeName or by a scheduler that knows no " +
		"DRA, so nothing allocates the claim and the pod does not start"
	// LacksRemedy says how the pod gets its devices.
	LacksRemedy = "Remove spec.nodeName from its manifest or its owner's template (a nodeSelector of " +
		"kubernetes.io/hostname chooses the node), or let kube-scheduler place it, and create the pod again"
)
