// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"fmt"
	"maps"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/gpu"
)

// amounts are the values of counters, by name.
type amounts map[string]int64

// api leaves out zero values.
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
	// maxMemory exceeds the memory of any GPU, and sums of it do not overflow.
	maxMemory = 1 << 50
)

func sliceCounter(i int) string { return fmt.Sprintf("memory-slice-%d", i) }

// counters returns the counter set of a GPU and the consumption of each device.
//
// It leaves out engines of external partitions, which are taken even without a claim. It raises totals to the held
// amounts, because the scheduler allocates nothing from a pool with an overdrawn counter.
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

// total returns the GPU's totals. They cover at least the known partitions.
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

// count returns the number of memory slices. It covers at least the known partitions, and is 1 for a GPU without MIG.
func (g geometry) count(entries []deviceEntry) int {
	n := max(g.slices, 1)
	for _, e := range entries {
		if g.placed(e) {
			n = max(n, e.place.End())
		}
	}
	return n
}

// placed reports whether an entry is a partition in a known place, for which the API allows enough counters.
func (g geometry) placed(e deviceEntry) bool {
	return e.device.Kind == gpu.KindMIG && e.place.Size > 0 && e.place.Start >= 0 &&
		e.place.End()+1+len(g.binding) <= resourceapi.ResourceSliceMaxCountersPerCounterSet
}

// taken returns a device's consumption. A whole GPU, and a partition in an unknown place, take everything.
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
