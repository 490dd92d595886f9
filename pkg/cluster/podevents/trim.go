// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package podevents

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/pkg/cluster/waiting"
)

// trimPod keeps the parts of a pod that decide about its devices and nodes. Of a pod that asks for no devices it keeps
// the name.
func trimPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	out := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion}}
	if !waiting.Asks(pod) {
		return out, nil
	}
	out.CreationTimestamp, out.DeletionTimestamp, out.Spec = pod.CreationTimestamp, pod.DeletionTimestamp, trimSpec(&pod.Spec)
	out.Status = corev1.PodStatus{
		Phase: pod.Status.Phase, ResourceClaimStatuses: pod.Status.ResourceClaimStatuses, ExtendedResourceClaimStatus: pod.Status.ExtendedResourceClaimStatus,
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			out.Status.Conditions = append(out.Status.Conditions, c)
		}
	}
	return out, nil
}

// trimBound keeps the parts of a pod with a node that decide whether it lacks devices.
func trimBound(object any) (any, error) {
	out, err := trimPod(object)
	if pod, ok := out.(*corev1.Pod); ok {
		pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName, InitContainers: pod.Spec.InitContainers, Containers: pod.Spec.Containers}
		pod.Status = corev1.PodStatus{Phase: pod.Status.Phase, ExtendedResourceClaimStatus: pod.Status.ExtendedResourceClaimStatus}
	}
	return out, err
}

func trimSpec(in *corev1.PodSpec) corev1.PodSpec {
	out := corev1.PodSpec{
		NodeName: in.NodeName, NodeSelector: in.NodeSelector, Tolerations: in.Tolerations, SchedulingGates: in.SchedulingGates, ResourceClaims: in.ResourceClaims,
		InitContainers: trimContainers(in.InitContainers), Containers: trimContainers(in.Containers),
	}
	if in.Affinity != nil && in.Affinity.NodeAffinity != nil {
		out.Affinity = &corev1.Affinity{NodeAffinity: in.Affinity.NodeAffinity}
	}
	return out
}

func trimContainers(in []corev1.Container) (out []corev1.Container) {
	for _, c := range in {
		one := corev1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy, Resources: corev1.ResourceRequirements{Claims: c.Resources.Claims}}
		for _, list := range []corev1.ResourceList{c.Resources.Requests, c.Resources.Limits} {
			for name, n := range list {
				if waiting.Extended(name) {
					if one.Resources.Limits == nil {
						one.Resources.Limits = corev1.ResourceList{}
					}
					one.Resources.Limits[name] = n
				}
			}
		}
		out = append(out, one)
	}
	return out
}

// trimEvent keeps the object, the message and the times of an Event.
func trimEvent(object any) (any, error) {
	e, ok := object.(*corev1.Event)
	if !ok {
		return object, nil
	}
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name, ResourceVersion: e.ResourceVersion, CreationTimestamp: e.CreationTimestamp},
		InvolvedObject: corev1.ObjectReference{Kind: e.InvolvedObject.Kind, Namespace: e.InvolvedObject.Namespace, Name: e.InvolvedObject.Name, UID: e.InvolvedObject.UID},
		Reason:         e.Reason, Message: e.Message, LastTimestamp: e.LastTimestamp, EventTime: e.EventTime,
	}, nil
}
