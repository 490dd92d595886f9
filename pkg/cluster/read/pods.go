// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package read

import (
	"bytes"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	resourcehelper "k8s.io/component-helpers/resource"

	"gpu-dra-driver/pkg/cluster/waiting"
)

// PodUses are the uses of a cache of pods. Each has the pods without a node that ask for devices, and what decides
// about their nodes.
type PodUses struct {
	// Explain keeps the scheduler's messages too, and pods with a node that lack devices.
	Explain bool
	// Preempt keeps all pods. Of one without a node it has all that decides about its place, and of one with a node the
	// requests and what decides about its eviction.
	Preempt bool
}

// PodCache follows the pods that the uses need.
func PodCache(client kubernetes.Interface, u PodUses) cache.SharedIndexInformer {
	selector := "spec.nodeName=,status.phase=Pending"
	switch {
	case u.Preempt:
		selector = ""
	case u.Explain:
		selector = "status.phase!=Succeeded,status.phase!=Failed"
	}
	return PodInformer(client, selector, u.keeps, u.Trim)
}

func (u PodUses) keeps(pod *corev1.Pod) bool {
	return u.Preempt || pod.Spec.NodeName == "" || u.Explain && (len(waiting.Unclaimed(pod)) > 0 || starting(pod))
}

// starting reports whether a pod with claims is on a node and has not started. Its claims can lack devices.
func starting(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.Status.Phase == corev1.PodPending && len(pod.Spec.ResourceClaims) > 0
}

// Trim keeps the parts of a pod that the uses need. A pod without a node that asks for no devices is a name. The
// overhead of a pod with a node is the sum of its requests but for extended resources, which its containers have.
func (u PodUses) Trim(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	in := &pod.Spec
	out := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
	}}
	placed := in.NodeName != ""
	if !placed && !waiting.Asks(pod) {
		return out, nil
	}
	out.CreationTimestamp, out.DeletionTimestamp = pod.CreationTimestamp, pod.DeletionTimestamp
	out.Spec.NodeName, out.Status.Phase = in.NodeName, pod.Status.Phase
	out.Status.ExtendedResourceClaimStatus = pod.Status.ExtendedResourceClaimStatus
	out.Spec.InitContainers = u.containers(in.InitContainers, placed)
	out.Spec.Containers = u.containers(in.Containers, placed)
	if u.Preempt {
		evictable(pod, out)
	}
	if !placed || u.Explain && starting(pod) {
		out.Spec.ResourceClaims, out.Status.ResourceClaimStatuses = in.ResourceClaims, pod.Status.ResourceClaimStatuses
	}
	if !placed {
		u.placeable(pod, out)
	}
	return out, nil
}

// placeable keeps what decides about the node of a pod.
func (u PodUses) placeable(pod, out *corev1.Pod) {
	in, to := &pod.Spec, &out.Spec
	to.NodeSelector, to.Tolerations = in.NodeSelector, in.Tolerations
	to.SchedulingGates, to.SchedulerName = in.SchedulingGates, in.SchedulerName
	if owner := metav1.GetControllerOf(pod); owner != nil && u.Explain {
		out.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			if !u.Explain && !u.Preempt {
				c.Message = ""
			}
			out.Status.Conditions = append(out.Status.Conditions, c)
		}
	}
	if u.Preempt {
		to.Affinity, to.TopologySpreadConstraints, to.Volumes = in.Affinity, in.TopologySpreadConstraints, in.Volumes
		to.Overhead, to.Resources = in.Overhead, in.Resources
	} else if in.Affinity != nil && in.Affinity.NodeAffinity != nil {
		to.Affinity = &corev1.Affinity{NodeAffinity: in.Affinity.NodeAffinity}
	}
}

// containers keeps the resources of containers. The extended ones of a pod with a node show whether it has its
// devices.
func (u PodUses) containers(in []corev1.Container, placed bool) (out []corev1.Container) {
	for _, c := range in {
		one := corev1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy}
		one.Resources.Limits = extended(c.Resources)
		switch {
		case placed && one.Resources.Limits == nil:
			continue
		case placed:
			one.Resources.Requests = one.Resources.Limits
		case u.Preempt:
			one.Resources, one.Ports = c.Resources, c.Ports
		default:
			one.Resources.Claims = c.Resources.Claims
		}
		out = append(out, one)
	}
	return out
}

func extended(r corev1.ResourceRequirements) (out corev1.ResourceList) {
	for _, list := range []corev1.ResourceList{r.Requests, r.Limits} {
		for name, n := range list {
			if waiting.Extended(name) {
				if out == nil {
					out = corev1.ResourceList{}
				}
				out[name] = n
			}
		}
	}
	return out
}

// evictable keeps what decides whether a pod may evict others, and be evicted.
func evictable(pod, out *corev1.Pod) {
	in, to := &pod.Spec, &out.Spec
	to.Overhead = resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{UseStatusResources: true})
	maps.DeleteFunc(to.Overhead, func(name corev1.ResourceName, _ resource.Quantity) bool {
		return waiting.Extended(name)
	})
	to.Priority, to.PriorityClassName, to.PreemptionPolicy = in.Priority, in.PriorityClassName, in.PreemptionPolicy
	to.SchedulingGroup, out.Labels = in.SchedulingGroup, pod.Labels
	to.TerminationGracePeriodSeconds = in.TerminationGracePeriodSeconds
	out.Status.StartTime, out.Status.NominatedNodeName = pod.Status.StartTime, pod.Status.NominatedNodeName
	if repels := waiting.Repels(pod); in.NodeName != "" && len(repels) > 0 {
		to.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: repels,
		}}
	}
	if owner := metav1.GetControllerOf(pod); owner != nil {
		out.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	for key, value := range pod.Annotations {
		if waiting.Marks(key) {
			metav1.SetMetaDataAnnotation(&out.ObjectMeta, key, value)
		}
	}
	for _, f := range pod.ManagedFields {
		if f.FieldsV1 != nil && bytes.Contains(f.FieldsV1.GetRawBytes(), nominated.GetRawBytes()) {
			out.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: f.Manager, FieldsV1: nominated}}
		}
	}
}

// nominated is the name of the field status.nominatedNodeName, whose manager a pod keeps.
var nominated = metav1.NewFieldsV1(`"f:nominatedNodeName"`)
