// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"iter"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
)

// Results iterates over the allocated devices of a driver. There are none without an allocation.
func Results(a *resourceapi.AllocationResult, driver string) iter.Seq[resourceapi.DeviceRequestAllocationResult] {
	return func(yield func(resourceapi.DeviceRequestAllocationResult) bool) {
		if a == nil {
			return
		}
		for _, r := range a.Devices.Results {
			if r.Driver == driver && !yield(r) {
				return
			}
		}
	}
}

// Held iterates over the allocated devices of all drivers, with their pools, but for those of administrators: other
// claims can have these too.
func Held(a *resourceapi.AllocationResult) iter.Seq2[ID, *resourceapi.DeviceRequestAllocationResult] {
	return func(yield func(ID, *resourceapi.DeviceRequestAllocationResult) bool) {
		if a == nil {
			return
		}
		for i := range a.Devices.Results {
			r := &a.Devices.Results[i]
			if !ptr.Deref(r.AdminAccess, false) && !yield(ID{Driver: r.Driver, Pool: r.Pool}, r) {
				return
			}
		}
	}
}
