// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"iter"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/gpu"
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

// Weight returns the model of an allocated device, and the number of GPUs that it counts as. A GPU counts 1, a group its
// size, and a partition its part of the memory slices. A share counts the larger of its parts of memory and compute.
// Admin access and monitor devices weigh nothing. ok is false if the pool has no such device.
func (p Pool) Weight(r resourceapi.DeviceRequestAllocationResult) (model string, gpus float64, ok bool) {
	for _, s := range p.Slices {
		if s.Pool.Name != r.Pool {
			continue
		}
		for i, d := range s.Shape.Spec.Devices {
			if d.Name != r.Device {
				continue
			}
			kind := s.Shape.Kinds[i]
			if kind.Type == gpu.KindMonitor || r.AdminAccess != nil && *r.AdminAccess {
				return kind.Product, 0, true
			}
			return kind.Product, float64(kind.GPUs) * p.slicePart(d, kind) * sharePart(d, r), true
		}
	}
	return "", 0, false
}

func (p Pool) slicePart(d resourceapi.Device, kind Kind) float64 {
	if kind.Type != gpu.KindMIG {
		return 1
	}
	for _, use := range d.ConsumesCounters {
		for _, s := range p.Slices {
			for _, set := range s.Shape.Spec.SharedCounters {
				if board := memorySlices(set.Counters); set.Name == use.CounterSet && board > 0 {
					return float64(memorySlices(use.Counters)) / float64(board)
				}
			}
		}
	}
	return 1
}

func sharePart(d resourceapi.Device, r resourceapi.DeviceRequestAllocationResult) float64 {
	total, memory := d.Capacity["memory"], r.ConsumedCapacity["memory"]
	if d.AllowMultipleAllocations == nil || !*d.AllowMultipleAllocations || total.Value.IsZero() || memory.IsZero() {
		return 1
	}
	compute := r.ConsumedCapacity["compute"]
	return min(1, max(memory.AsApproximateFloat64()/total.Value.AsApproximateFloat64(), compute.AsApproximateFloat64()/100))
}
