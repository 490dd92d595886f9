// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"fmt"
	"maps"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpu-dra-driver/pkg/gpu"
)

// amounts are counters by name.
type amounts map[string]int64

func (a amounts) add(other amounts) {
	for name, n := range other {
		a[name] += n
	}
}

// api leaves out what is nothing.
func (a amounts) api() map[string]resourceapi.Counter {
	out := map[string]resourceapi.Counter{}
	for name, n := range a {
		format := resource.DecimalSI
		if name == memoryCounter {
			format = resource.BinarySI
		}
		if n > 0 {
			out[name] = resourceapi.Counter{Value: *resource.NewQuantity(n, format)}
		}
	}
	return out
}

const (
	memoryCounter = "memory"
	// maxMemory is more than any GPU has, and can be added up.
	maxMemory = 1 << 50
)

func sliceCounter(i int) string { return fmt.Sprintf("memory-slice-%d", i) }

// counters is the counter set of a GPU and what each of its devices takes of it.
//
// Engines that foreign partitions have are not in it, for they are taken whether a claim has the partition or not. The
// scheduler gives out nothing of a whole pool while any counter in it is overdrawn, so what claims hold is always in it.
func (g geometry) counters(of gpu.GPU, items []item) (*resourceapi.CounterSet, [][]resourceapi.DeviceCounterConsumption) {
	set := gpu.Device{Kind: gpu.KindGPU, PCIAddress: of.PCIAddress}.Name() + "-counter-set"
	total := g.total(of, items)
	taken := make([]amounts, len(items))
	held := amounts{}
	for n, i := range items {
		taken[n] = g.taken(i, total)
		if i.held {
			held.add(taken[n])
		}
	}
	consumed := make([][]resourceapi.DeviceCounterConsumption, len(items))
	for n := range items {
		consumed[n] = []resourceapi.DeviceCounterConsumption{{CounterSet: set, Counters: taken[n].api()}}
	}
	for name, n := range held {
		total[name] = max(total[name], n)
	}
	return &resourceapi.CounterSet{Name: set, Counters: total.api()}, consumed
}

// total is what the GPU has, or has to have for those of its partitions that are known.
func (g geometry) total(of gpu.GPU, items []item) amounts {
	memory, known := max(g.memory, min(of.MemoryBytes, maxMemory)), uint64(0)
	for _, i := range items {
		if g.placed(i) {
			known += min(i.profile.MemoryBytes, maxMemory)
		}
	}
	out := amounts{memoryCounter: int64(max(memory, 1))}
	if g.slices == 0 {
		out[memoryCounter] = int64(max(memory, known, 1))
	}
	for i := range g.count(items) {
		out[sliceCounter(i)] = 1
	}
	for _, r := range g.binding {
		n := r.Total
		for _, i := range items {
			if i.foreign {
				n -= r.Of(i.profile)
			}
		}
		out[r.Name] = int64(max(n, 0))
	}
	return out
}

// count is how many memory slices the GPU has, or has to have for those of its partitions that are known; 1 of a GPU that
// is not cut.
func (g geometry) count(items []item) int {
	n := max(g.slices, 1)
	for _, i := range items {
		if g.placed(i) {
			n = max(n, i.place.End())
		}
	}
	return n
}

// placed says that an item is a partition whose place is known, and that the API has counters for it.
func (g geometry) placed(i item) bool {
	return i.device.Kind == gpu.KindMIG && i.place.Size > 0 && i.place.Start >= 0 &&
		i.place.End()+1+len(g.binding) <= resourceapi.ResourceSliceMaxCountersPerCounterSet
}

// taken is what a device takes: the whole GPU, and a partition whose place is unknown, all there is.
func (g geometry) taken(i item, total amounts) amounts {
	if !g.placed(i) {
		return maps.Clone(total)
	}
	out := amounts{memoryCounter: int64(min(i.profile.MemoryBytes, maxMemory))}
	for s := i.place.Start; s < i.place.End(); s++ {
		out[sliceCounter(s)] = 1
	}
	for _, r := range g.binding {
		if n := r.Of(i.profile); n > 0 && !i.foreign {
			out[r.Name] = int64(n)
		}
	}
	return out
}
