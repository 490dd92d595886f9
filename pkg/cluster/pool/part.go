// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/gpu"
)

// MemorySlices returns the number of memory slices of each GPU with MIG, by counter set.
func (p Pool) MemorySlices() map[string]int64 {
	out := map[string]int64{}
	for _, s := range p.Slices {
		for _, set := range s.Shape.Spec.SharedCounters {
			for name, c := range set.Counters {
				if strings.HasPrefix(name, sliceCounter) {
					out[set.Name] += c.Value.Value()
				}
			}
		}
	}
	return out
}

// MilliGPUs returns the size of a device in thousandths of a GPU, rounded up: a partition by its part of the GPU's
// memory slices. A monitor device has none.
func MilliGPUs(d resourceapi.Device, kind Kind, slices map[string]int64) int64 {
	const milliPerGPU = 1000
	switch kind.Type {
	case gpu.KindMonitor:
		return 0
	case gpu.KindMIG:
		for _, use := range d.ConsumesCounters {
			if all, n := slices[use.CounterSet], memorySlices(use.Counters); n > 0 && n < all {
				return (milliPerGPU*n + all - 1) / all
			}
		}
	}
	return milliPerGPU * int64(kind.GPUs)
}
