// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"bytes"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	resourcehelper "k8s.io/component-helpers/resource"

	"gpu-dra-driver/pkg/cluster/pack"
	"gpu-dra-driver/pkg/wire"
)

// nominatedBy is an annotation of pods in this process: the manager of their field nominatedNodeName.
const nominatedBy = "nominated-by"

// trimPod keeps the parts of a pod that decide about preemption. Of a pod with a node it keeps the sum of its requests.
func trimPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	s := &pod.Spec
	out := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, Labels: pod.Labels,
			CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp, Annotations: map[string]string{},
		},
		Spec: corev1.PodSpec{
			NodeName: s.NodeName, Priority: s.Priority, PriorityClassName: s.PriorityClassName, PreemptionPolicy: s.PreemptionPolicy,
			SchedulingGroup: s.SchedulingGroup, TerminationGracePeriodSeconds: s.TerminationGracePeriodSeconds,
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, StartTime: pod.Status.StartTime, NominatedNodeName: pod.Status.NominatedNodeName},
	}
	if owner := metav1.GetControllerOf(pod); owner != nil {
		out.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	for key, value := range pod.Annotations {
		if key == corev1.MirrorPodAnnotationKey || pack.Marks(key) {
			out.Annotations[key] = value
		}
	}
	if s.NodeName != "" {
		total := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{UseStatusResources: true})
		out.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: total}}}
		return out, nil
	}
	for _, f := range pod.ManagedFields {
		if f.FieldsV1 != nil && bytes.Contains(f.FieldsV1.GetRawBytes(), []byte(`"f:nominatedNodeName"`)) {
			out.Annotations[nominatedBy] = f.Manager
		}
	}
	out.Spec.NodeSelector, out.Spec.Affinity, out.Spec.Tolerations = s.NodeSelector, s.Affinity, s.Tolerations
	out.Spec.TopologySpreadConstraints, out.Spec.Volumes, out.Spec.SchedulerName = s.TopologySpreadConstraints, s.Volumes, s.SchedulerName
	out.Spec.SchedulingGates, out.Spec.ResourceClaims, out.Spec.Overhead, out.Spec.Resources = s.SchedulingGates, s.ResourceClaims, s.Overhead, s.Resources
	out.Spec.InitContainers, out.Spec.Containers = trimContainers(s.InitContainers), trimContainers(s.Containers)
	out.Status.ResourceClaimStatuses, out.Status.ExtendedResourceClaimStatus = pod.Status.ResourceClaimStatuses, pod.Status.ExtendedResourceClaimStatus
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			out.Status.Conditions = append(out.Status.Conditions, c)
		}
	}
	return out, nil
}

func trimContainers(in []corev1.Container) (out []corev1.Container) {
	for _, c := range in {
		out = append(out, corev1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy, Resources: c.Resources, Ports: c.Ports})
	}
	return out
}

// trimNode keeps the parts of a node that decide whether a pod can use it, and the driver's reservations.
func trimNode(driver string) cache.TransformFunc {
	return func(object any) (any, error) {
		node, ok := object.(*corev1.Node)
		if !ok {
			return object, nil
		}
		out := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: node.Name, ResourceVersion: node.ResourceVersion, Labels: node.Labels},
			Spec:       corev1.NodeSpec{Taints: node.Spec.Taints, Unschedulable: node.Spec.Unschedulable},
			Status:     corev1.NodeStatus{Allocatable: node.Status.Allocatable},
		}
		for _, gpu := range wire.ReservationsOf(driver, node.Annotations) {
			key := wire.ReservationAnnotation(driver, gpu)
			metav1.SetMetaDataAnnotation(&out.ObjectMeta, key, node.Annotations[key])
		}
		return out, nil
	}
}

func trimBudget(object any) (any, error) {
	if o, ok := object.(metav1.Object); ok {
		o.SetManagedFields(nil)
		o.SetAnnotations(nil)
	}
	return object, nil
}
