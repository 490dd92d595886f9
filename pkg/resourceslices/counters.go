// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"fmt"
	"maps"
	"strings"

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

// nvlinkCounterSet separates NVLink groups from the devices of their GPUs. For each GPU of a group it
// has a counter, with the number of the GPU's memory slices as its value. The node has one set, because a held group needs its
// counters even after a failed link split its GPUs, and the API allows a device only two sets.
const nvlinkCounterSet = "nvlink-counter-set"

// nvlinkCounters are the values of the counters, by PCI address.
type nvlinkCounters struct {
	// size is the value of a whole GPU. total is larger if claims hold more than size, because the scheduler allocates
	// nothing from a pool with an overdrawn counter.
	size, total map[string]int64
}

func (b *builder) nvlinkCounters(groups []group) nvlinkCounters {
	out := nvlinkCounters{size: map[string]int64{}, total: map[string]int64{}}
	for _, g := range groups {
		for _, m := range g.members {
			out.size[m.gpu.PCIAddress] = int64(b.geometry(m.gpu.MIG).count(m.entries))
			out.total[m.gpu.PCIAddress] = max(out.size[m.gpu.PCIAddress], out.held(m))
		}
	}
	return out
}

func (c nvlinkCounters) held(g gpuState) int64 {
	n := int64(len(g.heldAs(gpu.KindGroup))) * c.size[g.gpu.PCIAddress]
	for _, e := range g.entries {
		if e.held {
			n += c.taken(g.gpu.PCIAddress, e)
		}
	}
	return n
}

// taken returns a device's consumption: a partition in a known place takes its memory slices, others the whole GPU.
func (c nvlinkCounters) taken(address string, e deviceEntry) int64 {
	size := c.size[address]
	if e.device.Kind == gpu.KindMIG && e.place.Size > 0 {
		return min(size, int64(e.place.Size))
	}
	return size
}

func gpuCounter(address string) string { return strings.TrimPrefix(wholeName(address), "gpu-") }

// set returns the counter set, or nil without groups.
func (c nvlinkCounters) set() *resourceapi.CounterSet {
	if len(c.total) == 0 {
		return nil
	}
	set := &resourceapi.CounterSet{Name: nvlinkCounterSet, Counters: map[string]resourceapi.Counter{}}
	for address, n := range c.total {
		set.Counters[gpuCounter(address)] = counter(n)
	}
	return set
}

func counter(n int64) resourceapi.Counter { return resourceapi.Counter{Value: *amount(n)} }

func (c nvlinkCounters) consumedBy(address string, e deviceEntry) []resourceapi.DeviceCounterConsumption {
	if c.size[address] == 0 {
		return nil
	}
	return []resourceapi.DeviceCounterConsumption{{
		CounterSet: nvlinkCounterSet, Counters: map[string]resourceapi.Counter{gpuCounter(address): counter(c.taken(address, e))},
	}}
}

// consumedByGroup returns the consumption of a group: all of its GPUs.
func (c nvlinkCounters) consumedByGroup(g group) []resourceapi.DeviceCounterConsumption {
	all := resourceapi.DeviceCounterConsumption{CounterSet: nvlinkCounterSet, Counters: map[string]resourceapi.Counter{}}
	for _, m := range g.members {
		all.Counters[gpuCounter(m.gpu.PCIAddress)] = counter(c.size[m.gpu.PCIAddress])
	}
	return []resourceapi.DeviceCounterConsumption{all}
}
