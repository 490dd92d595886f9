// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package bounded limits the memory of one object in a cache. Tenants and nodes write up to 1.5 MB into an object, and
// a cache of them must not take the memory of the process.
//
// Keep replaces an object above its limit by a mark: an object of the same type with its identity, and what it holds.
// All other parts of a mark are unknown, so readers ask TooLarge before they conclude anything from their absence. A
// mark has the resourceVersion of its object, so a change of the object is a change of the mark.
package bounded

import (
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// maxTenantBytes is the limit for objects that tenants write in any number. A usual one takes 1 to 4 kB after the
	// trim.
	maxTenantBytes = 16 << 10
	// maxPodBytes is the limit for a pod. A container takes about 2 kB after the trim.
	maxPodBytes = 32 << 10
	// maxAdminBytes is the limit for nodes and classes, whose number no tenant chooses. Labels of a node's features
	// take 10 kB.
	maxAdminBytes = 64 << 10
	// consumerBytes and resultBytes are the memory of a reference to a consumer and of an allocated device. The API
	// server accepts up to 256 and 32 in a claim, only the scheduler and administrators write them, and the limit grows
	// with them.
	consumerBytes, resultBytes = 512, 1 << 10
	// maxEventBytes is the limit for an Event, maxTextBytes for its message, and maxWordBytes for its other texts.
	maxEventBytes, maxTextBytes, maxWordBytes = 8 << 10, 4 << 10, 256
)

// Limit returns the bytes that a cache keeps of an object; false for a kind without a limit.
func Limit(object any) (bytes int, ok bool) {
	switch o := object.(type) {
	case *resourceapi.ResourceClaim:
		consumers := min(len(o.Status.ReservedFor), resourceapi.ResourceClaimReservedForMaxSize)
		bytes = maxTenantBytes + consumerBytes*consumers
		if a := o.Status.Allocation; a != nil {
			bytes += resultBytes * min(len(a.Devices.Results), resourceapi.AllocationResultsMaxSize)
		}
		return bytes, true
	case *resourceapi.ResourceClaimTemplate, *policyv1.PodDisruptionBudget:
		return maxTenantBytes, true
	case *corev1.Pod:
		return maxPodBytes, true
	case *corev1.Event:
		return maxEventBytes, true
	case *resourceapi.DeviceClass, *corev1.Node:
		return maxAdminBytes, true
	}
	return 0, false
}

// tooLarge is the kind of marks. A decoded object has the kind of its type or none, so no client can write a mark.
var tooLarge = schema.GroupVersionKind{Group: "gpu-dra-driver", Version: "v1", Kind: "TooLarge"}

// TooLarge reports whether an object is a mark.
func TooLarge(o runtime.Object) bool { return o.GetObjectKind().GroupVersionKind() == tooLarge }

// Fits reports whether a cache keeps a whole object.
func Fits(object any) bool {
	limit, ok := Limit(object)
	return !ok || fits(object, limit)
}

// Keep returns the object, or its mark if it is larger than its limit. The text of an Event is cut instead.
func Keep(object any) any {
	limit, limited := Limit(object)
	one, _ := object.(runtime.Object)
	if !limited || TooLarge(one) || fits(object, limit) {
		return object
	}
	switch o := object.(type) {
	case *corev1.Event:
		return event(o)
	case *resourceapi.ResourceClaim:
		one = claim(o, limit)
	case *resourceapi.ResourceClaimTemplate:
		out := &resourceapi.ResourceClaimTemplate{ObjectMeta: identity(o.ObjectMeta)}
		out.Spec.Spec.Devices.Requests = requests(o.Spec.Spec.Devices.Requests)
		if !fits(out, limit) {
			out.Spec.Spec.Devices.Requests = nil
		}
		one = out
	case *corev1.Pod:
		one = pod(o, limit)
	case *corev1.Node:
		one = &corev1.Node{ObjectMeta: identity(o.ObjectMeta),
			Spec: corev1.NodeSpec{Unschedulable: o.Spec.Unschedulable}}
	case *policyv1.PodDisruptionBudget:
		// Which pods it protects is unknown, so it protects all.
		one = &policyv1.PodDisruptionBudget{ObjectMeta: identity(o.ObjectMeta),
			Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}}}
	case *resourceapi.DeviceClass:
		one = &resourceapi.DeviceClass{
			ObjectMeta: identity(o.ObjectMeta),
			Spec:       resourceapi.DeviceClassSpec{ExtendedResourceName: o.Spec.ExtendedResourceName},
		}
	}
	one.GetObjectKind().SetGroupVersionKind(tooLarge)
	return one
}

// identity has the parts of metadata that validation bounds, and the controller of the object.
func identity(m metav1.ObjectMeta) metav1.ObjectMeta {
	out := metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, Generation: m.Generation,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
	}
	if owner := metav1.GetControllerOfNoCopy(&m); owner != nil && fits(owner, 2<<10) {
		out.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	return out
}

// claim keeps the classes of the requests if they fit, and always the devices and the consumers: no tenant can hide a
// GPU.
func claim(c *resourceapi.ResourceClaim, limit int) *resourceapi.ResourceClaim {
	out := &resourceapi.ResourceClaim{ObjectMeta: identity(c.ObjectMeta)}
	out.Status.ReservedFor = c.Status.ReservedFor
	if a := c.Status.Allocation; a != nil {
		out.Status.Allocation = &resourceapi.AllocationResult{AllocationTimestamp: a.AllocationTimestamp}
		for _, r := range a.Devices.Results {
			out.Status.Allocation.Devices.Results = append(out.Status.Allocation.Devices.Results,
				resourceapi.DeviceRequestAllocationResult{
					Request:          r.Request,
					Driver:           r.Driver,
					Pool:             r.Pool,
					Device:           r.Device,
					AdminAccess:      r.AdminAccess,
					ShareID:          r.ShareID,
					ConsumedCapacity: r.ConsumedCapacity,
				})
		}
	}
	out.Spec.Devices.Requests = requests(c.Spec.Devices.Requests)
	if !fits(out, limit) {
		out.Spec.Devices.Requests = nil
	}
	return out
}

// requests keeps the names, classes and numbers of requests.
func requests(all []resourceapi.DeviceRequest) (out []resourceapi.DeviceRequest) {
	for _, r := range all {
		one := resourceapi.DeviceRequest{Name: r.Name}
		if e := r.Exactly; e != nil {
			one.Exactly = &resourceapi.ExactDeviceRequest{
				DeviceClassName: e.DeviceClassName,
				AllocationMode:  e.AllocationMode,
				Count:           e.Count,
				AdminAccess:     e.AdminAccess,
			}
		}
		for _, s := range r.FirstAvailable {
			one.FirstAvailable = append(one.FirstAvailable, resourceapi.DeviceSubRequest{
				Name: s.Name, DeviceClassName: s.DeviceClassName, AllocationMode: s.AllocationMode, Count: s.Count,
			})
		}
		out = append(out, one)
	}
	return out
}

// pod keeps the place and the priority of a pod, and what it asks for if that fits.
func pod(p *corev1.Pod, limit int) *corev1.Pod {
	out := &corev1.Pod{
		ObjectMeta: identity(p.ObjectMeta),
		Spec: corev1.PodSpec{
			NodeName: p.Spec.NodeName, Priority: p.Spec.Priority, PriorityClassName: p.Spec.PriorityClassName,
			PreemptionPolicy: p.Spec.PreemptionPolicy,
		},
		Status: corev1.PodStatus{Phase: p.Status.Phase, StartTime: p.Status.StartTime,
			NominatedNodeName: p.Status.NominatedNodeName},
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			out.Status.Conditions = []corev1.PodCondition{{
				Type:               c.Type,
				Status:             c.Status,
				Reason:             cut(c.Reason, maxWordBytes),
				LastTransitionTime: c.LastTransitionTime,
			}}
		}
	}
	bare := out.DeepCopy()
	out.Spec.SchedulingGates, out.Spec.ResourceClaims = p.Spec.SchedulingGates, p.Spec.ResourceClaims
	out.Spec.InitContainers, out.Spec.Containers = containers(p.Spec.InitContainers), containers(p.Spec.Containers)
	out.Spec.Overhead = p.Spec.Overhead
	out.Status.ResourceClaimStatuses = p.Status.ResourceClaimStatuses
	out.Status.ExtendedResourceClaimStatus = p.Status.ExtendedResourceClaimStatus
	if fits(out, limit) {
		return out
	}
	// A pod that runs uses no other resources: no node has that many.
	bare.Spec.Overhead = core(p.Spec.Overhead)
	for _, c := range p.Spec.Containers {
		bare.Spec.Containers = append(bare.Spec.Containers, corev1.Container{
			Resources: corev1.ResourceRequirements{Requests: core(c.Resources.Requests)},
		})
	}
	if !fits(bare, limit) {
		bare.Spec.Containers = nil
	}
	return bare
}

// core keeps the resources that each node has.
func core(all corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{
		corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
	} {
		if q, ok := all[name]; ok {
			out[name] = q
		}
	}
	return out
}

func containers(all []corev1.Container) (out []corev1.Container) {
	for _, c := range all {
		out = append(out, corev1.Container{
			Name: c.Name, RestartPolicy: c.RestartPolicy,
			Resources: corev1.ResourceRequirements{Limits: c.Resources.Limits, Requests: c.Resources.Requests},
		})
	}
	return out
}

// event keeps the beginning of each text of an Event.
func event(e *corev1.Event) *corev1.Event {
	o := e.InvolvedObject
	return &corev1.Event{
		ObjectMeta: identity(e.ObjectMeta),
		InvolvedObject: corev1.ObjectReference{
			Kind:      cut(o.Kind, maxWordBytes),
			Namespace: cut(o.Namespace, maxWordBytes),
			Name:      cut(o.Name, maxWordBytes),
			UID:       cut(o.UID, maxWordBytes),
		},
		Reason:        cut(e.Reason, maxWordBytes),
		Message:       cut(e.Message, maxTextBytes),
		LastTimestamp: e.LastTimestamp,
		EventTime:     e.EventTime,
	}
}

// cut returns at most so many bytes of a text, without a part of a character. Its end says that it is cut.
func cut[S ~string](s S, maxBytes int) S {
	if len(s) <= maxBytes {
		return s
	}
	const end = "…"
	maxBytes -= len(end)
	for maxBytes > 0 && !utf8.RuneStart(s[maxBytes]) {
		maxBytes--
	}
	return s[:maxBytes] + end
}
