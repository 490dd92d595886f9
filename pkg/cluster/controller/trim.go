// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"gpu-dra-driver/pkg/cluster/nodelabels"
)

func trimClass(object any) (any, error) {
	if class, ok := object.(*resourceapi.DeviceClass); ok {
		class.ManagedFields = nil
	}
	return object, nil
}

// trimWaiting is trimClaim, but it keeps more of a claim without an allocation: all that decides which devices it can
// get.
func trimWaiting(object any) (any, error) {
	claim, ok := object.(*resourceapi.ResourceClaim)
	if !ok || claim.Status.Allocation != nil {
		return trimClaim(object)
	}
	claim.ManagedFields, claim.Labels, claim.Annotations = nil, nil, nil
	claim.Status.Devices = nil
	return claim, nil
}

// trimClaim keeps the requests and the allocation of a claim.
func trimClaim(object any) (any, error) {
	claim, ok := object.(*resourceapi.ResourceClaim)
	if !ok {
		return object, nil
	}
	// The claim of one pod is allocated where that pod runs. Others tie the pods that name them to their nodes.
	ofPod := metav1.GetControllerOf(claim) != nil
	claim.ManagedFields, claim.Labels, claim.Annotations, claim.OwnerReferences = nil, nil, nil, nil
	claim.Spec.Devices.Config, claim.Spec.Devices.Constraints = nil, nil
	claim.Status.Devices = nil
	for i := range claim.Spec.Devices.Requests {
		if e := claim.Spec.Devices.Requests[i].Exactly; e != nil {
			e.Tolerations = nil
		}
	}
	if a := claim.Status.Allocation; a != nil {
		if a.Devices.Config = nil; ofPod {
			a.NodeSelector = nil
		}
	}
	return claim, nil
}

func trimTemplate(object any) (any, error) {
	if template, ok := object.(*resourceapi.ResourceClaimTemplate); ok {
		template.ManagedFields, template.Labels, template.Annotations, template.OwnerReferences = nil, nil, nil, nil
		template.Spec.ObjectMeta = metav1.ObjectMeta{}
		template.Spec.Spec.Devices.Config, template.Spec.Spec.Devices.Constraints = nil, nil
	}
	return object, nil
}

// trimPod keeps the resources of a pod's containers, the names of its claims, and whether it was scheduled.
func trimPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	limits := func(containers []corev1.Container) (out []corev1.Container) {
		for _, c := range containers {
			out = append(out, corev1.Container{Resources: corev1.ResourceRequirements{Limits: c.Resources.Limits}})
		}
		return out
	}
	out := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
		},
		Spec: corev1.PodSpec{
			SchedulingGates: pod.Spec.SchedulingGates,
			InitContainers:  limits(pod.Spec.InitContainers), Containers: limits(pod.Spec.Containers), ResourceClaims: pod.Spec.ResourceClaims,
			NodeSelector: pod.Spec.NodeSelector, Tolerations: pod.Spec.Tolerations,
		},
		Status: corev1.PodStatus{ResourceClaimStatuses: pod.Status.ResourceClaimStatuses},
	}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		out.Spec.Affinity = &corev1.Affinity{NodeAffinity: a.NodeAffinity}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			out.Status.Conditions = append(out.Status.Conditions, corev1.PodCondition{Type: c.Type, Status: c.Status, Reason: c.Reason})
		}
	}
	return out, nil
}

// trimNode keeps the parts of a node that decide whether a pod can use it, and the driver's annotations.
func trimNode(driver string) cache.TransformFunc {
	return func(object any) (any, error) {
		node, ok := object.(*corev1.Node)
		if !ok {
			return object, nil
		}
		out := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, Labels: node.Labels},
			Spec:       corev1.NodeSpec{Taints: node.Spec.Taints, Unschedulable: node.Spec.Unschedulable},
		}
		for key, value := range node.Annotations {
			if nodelabels.Concerns(key, driver) {
				metav1.SetMetaDataAnnotation(&out.ObjectMeta, key, value)
			}
		}
		// Resources of device plugins decide too, and 0 of one says that a device plugin was there.
		for name, n := range node.Status.Allocatable {
			if strings.Contains(string(name), "/") {
				if out.Status.Allocatable == nil {
					out.Status.Allocatable = corev1.ResourceList{}
				}
				out.Status.Allocatable[name] = n
			}
		}
		return out, nil
	}
}
