// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/gpu"
)

// nvlinkCounterSet is the counter set that keeps NVLink groups and the devices of their GPUs apart: a counter for each GPU
// of a group, worth as many as the GPU has memory slices. There is one for the node, because a group that a claim holds
// must find its counters even if a failed link has split its GPUs, and a device can draw on two sets only.
const nvlinkCounterSet = "nvlink-counter-set"

// nvlinkCounters are the values of the counters by PCI address.
type nvlinkCounters struct {
	// size is what a GPU counts for. total is more where claims hold more of it than there can be: the scheduler allocates
	// nothing from a pool in which a counter is overdrawn.
	size, total map[string]int64
}

// nvlinkCounters counts the GPUs of the groups.
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

// held is how much of a GPU claims hold.
func (c nvlinkCounters) held(g gpuState) int64 {
	n := int64(len(g.heldAs(gpu.KindGroup))) * c.size[g.gpu.PCIAddress]
	for _, e := range g.entries {
		if e.held {
			n += c.taken(g.gpu.PCIAddress, e)
		}
	}
	return n
}

// taken is what a device takes of its GPU's counter: a partition in a known place its memory slices, another device all.
func (c nvlinkCounters) taken(address string, e deviceEntry) int64 {
	size := c.size[address]
	if e.device.Kind == gpu.KindMIG && e.place.Size > 0 {
		return min(size, int64(e.place.Size))
	}
	return size
}

func gpuCounter(address string) string { return strings.TrimPrefix(wholeName(address), "gpu-") }

// set is the counter set, nil where there are no groups.
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

// consumedBy is what a device of a GPU takes from the set.
func (c nvlinkCounters) consumedBy(address string, e deviceEntry) []resourceapi.DeviceCounterConsumption {
	if c.size[address] == 0 {
		return nil
	}
	return []resourceapi.DeviceCounterConsumption{{
		CounterSet: nvlinkCounterSet, Counters: map[string]resourceapi.Counter{gpuCounter(address): counter(c.taken(address, e))},
	}}
}

// consumedByGroup is what a group takes: all of its GPUs.
func (c nvlinkCounters) consumedByGroup(g group) []resourceapi.DeviceCounterConsumption {
	all := resourceapi.DeviceCounterConsumption{CounterSet: nvlinkCounterSet, Counters: map[string]resourceapi.Counter{}}
	for _, m := range g.members {
		all.Counters[gpuCounter(m.gpu.PCIAddress)] = counter(c.size[m.gpu.PCIAddress])
	}
	return []resourceapi.DeviceCounterConsumption{all}
}
