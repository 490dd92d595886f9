// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"fmt"
	"maps"
	"slices"
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

func sliceCounter(i int) string { return fmt.Sprintf("%s%d", sliceCounters, i) }

// counters returns the counter set of a GPU and the consumption of each device.
//
// It leaves out engines of external partitions, which are taken even without a claim. It raises totals to the held
// amounts, because the scheduler allocates nothing from a pool with an overdrawn counter. groups is the number of held
// groups that draw on the set.
func (g geometry) counters(
	of gpu.GPU, entries []deviceEntry, groups int,
) (*resourceapi.CounterSet, [][]resourceapi.DeviceCounterConsumption) {
	name := gpu.NameOf(of.PCIAddress) + "-counter-set"
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
	for counter, n := range total {
		total[counter] = max(n, held[counter]+int64(groups)*n)
	}
	return &resourceapi.CounterSet{Name: name, Counters: total.api()}, consumed
}

// total returns the GPU's totals. They cover at least the known partitions.
func (g geometry) total(of gpu.GPU, entries []deviceEntry) amounts {
	memory, known := max(g.bytes(of), 1), uint64(0)
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
			if e.external {
				n -= r.Of(e.profile)
			}
		}
		out[r.Name] = int64(max(n, 0))
	}
	return out
}

// bytes returns the memory of a whole GPU; 0 means unknown.
func (g geometry) bytes(of gpu.GPU) uint64 { return max(g.memory, min(of.MemoryBytes, maxMemory)) }

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
		if n := r.Of(e.profile); n > 0 && !e.external {
			out[r.Name] = int64(n)
		}
	}
	return out
}

// nvlinkCounterSet separates NVLink groups from the devices of their GPUs. For each GPU of a group it has a counter,
// with the number of the GPU's memory slices as its value. The node has one set, because a held group needs its
// counters even after a failed link split its GPUs, and the API allows a device only two sets. Its counter memory never
// limits anything: Kueue charges a quota by it.
//
// If all groups of a node are pairs, they draw on the sets of their two GPUs instead.
const nvlinkCounterSet = "nvlink-counter-set"

// nvlinkCounters are the values of the counters, by PCI address.
type nvlinkCounters struct {
	// size is the value of a whole GPU. total is larger if claims hold more than size, because the scheduler allocates
	// nothing from a pool with an overdrawn counter.
	size, total map[string]int64
	// memory is in bytes; 0 means unknown. held is the number of held devices that take it.
	memory, held map[string]int64
	// pairs means that the groups draw on their GPUs' sets.
	pairs bool
}

func (b *builder) nvlinkCounters(groups []group) nvlinkCounters {
	out := nvlinkCounters{
		size: map[string]int64{}, total: map[string]int64{}, memory: map[string]int64{}, held: map[string]int64{},
		pairs: !slices.ContainsFunc(groups, func(g group) bool { return !g.pair() }),
	}
	if out.pairs {
		return out
	}
	for _, g := range groups {
		for _, m := range g.members {
			address, geometry := m.gpu.PCIAddress, b.geometry(m.gpu.MIG)
			out.size[address] = int64(geometry.count(m.entries))
			out.total[address] = max(out.size[address], out.taken(m))
			out.memory[address] = int64(geometry.bytes(m.gpu))
			out.held[address] = int64(len(m.heldAs(gpu.KindGroup)))
			if !m.cut() && m.holds(gpu.KindGPU) {
				out.held[address]++
			}
		}
	}
	return out
}

// pair reports whether the group can draw on the counter sets of its GPUs. The API allows a device two sets.
func (g group) pair() bool {
	return len(g.members) == 2 && !slices.ContainsFunc(g.members, func(m gpuState) bool {
		return !m.cut() || m.entries[0].device.Kind != gpu.KindGPU
	})
}

// taken returns the consumption of all held devices of a GPU.
func (c nvlinkCounters) taken(g gpuState) int64 {
	n := int64(len(g.heldAs(gpu.KindGroup))) * c.size[g.gpu.PCIAddress]
	for _, e := range g.entries {
		if e.held {
			n += c.takenBy(g.gpu.PCIAddress, e)
		}
	}
	return n
}

// takenBy returns a device's consumption: a partition in a known place takes its memory slices, others the whole GPU.
func (c nvlinkCounters) takenBy(address string, e deviceEntry) int64 {
	size := c.size[address]
	if e.device.Kind == gpu.KindMIG && e.place.Size > 0 {
		return min(size, int64(e.place.Size))
	}
	return size
}

func gpuCounter(address string) string { return strings.TrimPrefix(gpu.NameOf(address), "gpu-") }

// set returns the counter set, or nil without groups.
func (c nvlinkCounters) set() *resourceapi.CounterSet {
	if len(c.total) == 0 {
		return nil
	}
	set, memory := &resourceapi.CounterSet{Name: nvlinkCounterSet, Counters: map[string]resourceapi.Counter{}}, int64(0)
	for address, n := range c.total {
		set.Counters[gpuCounter(address)] = counter(n)
		memory += c.memory[address] * max(1, c.held[address])
	}
	maps.Copy(set.Counters, amounts{memoryCounter: memory}.api())
	return set
}

func counter(n int64) resourceapi.Counter { return resourceapi.Counter{Value: *amount(n)} }

// consumedBy returns the consumption of a GPU's device. A GPU with a counter set takes memory from that one.
func (c nvlinkCounters) consumedBy(g gpuState, e deviceEntry) []resourceapi.DeviceCounterConsumption {
	address := g.gpu.PCIAddress
	if c.size[address] == 0 {
		return nil
	}
	out := map[string]resourceapi.Counter{gpuCounter(address): counter(c.takenBy(address, e))}
	if !g.cut() {
		maps.Copy(out, amounts{memoryCounter: c.memory[address]}.api())
	}
	return []resourceapi.DeviceCounterConsumption{{CounterSet: nvlinkCounterSet, Counters: out}}
}

// consumedByGroup returns the consumption of a group: all of its GPUs, which are among the whole ones if it is a pair.
func (c nvlinkCounters) consumedByGroup(
	g group, wholes []resourceapi.Device,
) (out []resourceapi.DeviceCounterConsumption) {
	all, memory := resourceapi.DeviceCounterConsumption{CounterSet: nvlinkCounterSet,
		Counters: map[string]resourceapi.Counter{}}, int64(0)
	for _, m := range g.members {
		if c.pairs {
			i := slices.IndexFunc(wholes, func(d resourceapi.Device) bool { return d.Name == m.name() })
			out = append(out, wholes[i].ConsumesCounters...)
			continue
		}
		all.Counters[gpuCounter(m.gpu.PCIAddress)] = counter(c.size[m.gpu.PCIAddress])
		memory += c.memory[m.gpu.PCIAddress]
	}
	if c.pairs {
		return out
	}
	maps.Copy(all.Counters, amounts{memoryCounter: memory}.api())
	return []resourceapi.DeviceCounterConsumption{all}
}
