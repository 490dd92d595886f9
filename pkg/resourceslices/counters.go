// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"fmt"
	"maps"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/gpu"
)

// amounts are counters by name.
type amounts map[string]int64

// api leaves out what is nothing.
func (a amounts) api() map[string]resourceapi.Counter {
	out := map[string]resourceapi.Counter{}
	for name, n := range a {
		switch {
		case n <= 0:
		case name == memoryCounter:
			out[name] = resourceapi.Counter{Value: *bytes(uint64(n))}
		default:
			out[name] = counter(n)
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
func (g geometry) counters(of gpu.GPU, entries []deviceEntry) (*resourceapi.CounterSet, [][]resourceapi.DeviceCounterConsumption) {
	name := wholeName(of.PCIAddress) + "-counter-set"
	total := g.total(of, entries)
	held := amounts{}
	var consumed [][]resourceapi.DeviceCounterConsumption
	for _, e := range entries {
		taken := g.taken(e, total)
		consumed = append(consumed, []resourceapi.DeviceCounterConsumption{{CounterSet: name, Counters: taken.api()}})
		for counter, n := range taken {
			if e.held {
				held[counter] += n
			}
		}
	}
	for counter, n := range held {
		total[counter] = max(total[counter], n)
	}
	return &resourceapi.CounterSet{Name: name, Counters: total.api()}, consumed
}

// total is what the GPU has, or has to have for those of its partitions that are known.
func (g geometry) total(of gpu.GPU, entries []deviceEntry) amounts {
	memory, known := max(g.memory, min(of.MemoryBytes, maxMemory), 1), uint64(0)
	for _, e := range entries {
		if g.placed(e) && g.slices == 0 {
			known += min(e.profile.MemoryBytes, maxMemory)
		}
	}
	out := amounts{memoryCounter: int64(max(memory, known))}
	for i := range g.count(entries) {
		out[sliceCounter(i)] = 1
	}
	for _, r := range g.binding {
		n := r.Total
		for _, e := range entries {
			if e.foreign {
				n -= r.Of(e.profile)
			}
		}
		out[r.Name] = int64(max(n, 0))
	}
	return out
}

// count is how many memory slices the GPU has, or has to have for those of its partitions that are known; 1 of a GPU that
// is not cut.
func (g geometry) count(entries []deviceEntry) int {
	n := max(g.slices, 1)
	for _, e := range entries {
		if g.placed(e) {
			n = max(n, e.place.End())
		}
	}
	return n
}

// placed says that an entry is a partition whose place is known, and that the API has counters for it.
func (g geometry) placed(e deviceEntry) bool {
	return e.device.Kind == gpu.KindMIG && e.place.Size > 0 && e.place.Start >= 0 &&
		e.place.End()+1+len(g.binding) <= resourceapi.ResourceSliceMaxCountersPerCounterSet
}

// taken is what a device takes: the whole GPU, and a partition whose place is unknown, all there is.
func (g geometry) taken(e deviceEntry, total amounts) amounts {
	if !g.placed(e) {
		return maps.Clone(total)
	}
	out := amounts{memoryCounter: int64(min(e.profile.MemoryBytes, maxMemory))}
	for s := e.place.Start; s < e.place.End(); s++ {
		out[sliceCounter(s)] = 1
	}
	for _, r := range g.binding {
		if n := r.Of(e.profile); n > 0 && !e.foreign {
			out[r.Name] = int64(n)
		}
	}
	return out
}
