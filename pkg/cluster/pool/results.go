// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"iter"

	resourceapi "k8s.io/api/resource/v1"
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
