// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/selector"
)

// Served returns those of a pod's extended resources that a DeviceClass serves, sorted.
func Served(pod *corev1.Pod, by selector.Resources) (out []corev1.ResourceName) {
	for _, name := range Resources(pod) {
		if by.Class(name) != nil {
			out = append(out, name)
		}
	}
	return out
}

// Requests returns the requests of the claim that the scheduler makes for the extended resources of a pod which classes
// serve. There is one for each resource of each container that keeps running, and one for the resources that init
// containers need beyond the containers after them. The names complete the word request, and are equal for a
// container's resources.
func Requests(pod *corev1.Pod, by selector.Resources) (out []resourceapi.DeviceRequest) {
	for _, name := range Served(pod, by) {
		add := func(container string, count int64) {
			out = append(out, resourceapi.DeviceRequest{Name: container, Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: by.Class(name).Name,
				AllocationMode:  resourceapi.DeviceAllocationModeExactCount,
				Count:           count,
			}})
		}
		later, extra := int64(0), int64(0)
		for i, c := range slices.Backward(Containers(pod)) {
			q := c.Resources.Limits[name]
			n, sidecar := q.Value(), ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways
			switch {
			case n <= 0:
			case i < len(pod.Spec.InitContainers) && !sidecar:
				extra = max(extra, n-later)
			default:
				later += n
				add("of container "+c.Name, n)
			}
		}
		if extra > 0 {
			add("of init containers", extra)
		}
	}
	return out
}
