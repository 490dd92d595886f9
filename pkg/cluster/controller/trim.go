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
	"gpu-dra-driver/pkg/wire"
)

func trimClass(object any) (any, error) {
	if class, ok := object.(*resourceapi.DeviceClass); ok {
		class.ManagedFields = nil
	}
	return object, nil
}

// trimWaiting is TrimClaim, but it keeps more of a claim without an allocation: all that decides which devices it can
// get.
func trimWaiting(object any) (any, error) {
	claim, ok := object.(*resourceapi.ResourceClaim)
	if !ok || claim.Status.Allocation != nil {
		return TrimClaim(object)
	}
	claim.ManagedFields, claim.Labels, claim.Annotations = nil, nil, nil
	claim.Status.Devices = nil
	return claim, nil
}

// TrimClaim keeps the requests and the allocation of a claim.
func TrimClaim(object any) (any, error) {
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

// trimNode keeps the parts of a node that decide whether a pod can use it, and the driver's annotations. Preemption
// also needs the node's CPU and memory, and the reservations of its GPUs.
func trimNode(driver string, preemption bool) cache.TransformFunc {
	return func(object any) (any, error) {
		node, ok := object.(*corev1.Node)
		if !ok {
			return object, nil
		}
		out := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name:            node.Name,
				UID:             node.UID,
				ResourceVersion: node.ResourceVersion,
				Labels:          node.Labels,
			},
			Spec: corev1.NodeSpec{Taints: node.Spec.Taints, Unschedulable: node.Spec.Unschedulable},
		}
		for key, value := range node.Annotations {
			if nodelabels.Concerns(key, driver) {
				metav1.SetMetaDataAnnotation(&out.ObjectMeta, key, value)
			}
		}
		if preemption {
			for _, gpu := range wire.ReservationsOf(driver, node.Annotations) {
				key := wire.ReservationAnnotation(driver, gpu)
				metav1.SetMetaDataAnnotation(&out.ObjectMeta, key, node.Annotations[key])
			}
		}
		// Resources of device plugins decide too, and 0 of one says that a device plugin was there.
		for name, n := range node.Status.Allocatable {
			if preemption || strings.Contains(string(name), "/") {
				if out.Status.Allocatable == nil {
					out.Status.Allocatable = corev1.ResourceList{}
				}
				out.Status.Allocatable[name] = n
			}
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady {
				out.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status}}
			}
		}
		return out, nil
	}
}
