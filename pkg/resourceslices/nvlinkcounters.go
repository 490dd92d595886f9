// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/gpu"
)

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
