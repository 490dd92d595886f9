// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpu-dra-driver/pkg/gpu"
)

// bondSet is the counter set that keeps NVLink groups and the devices of their GPUs apart: a counter for each GPU of a
// group, worth as many as the GPU has memory slices. There is one for the node, for a group that a claim holds must find
// its counters though a link that failed has parted its GPUs, and a device can draw on two sets, no more.
const bondSet = "nvlink-counter-set"

// bonds are the groups to publish and what their GPUs count for.
type bonds struct {
	groups []group
	// size is what a GPU counts for, by its PCI address; total is more where claims hold more of it than there can be: the
	// scheduler gives out nothing of a pool in which a counter is overdrawn.
	size, total map[string]int64
}

// group is an NVLink group to publish.
type group struct {
	device  gpu.Device
	members []unit
	held    bool
	// state says that it is not for new claims, and why.
	state State
	why   string
}

// bonds finds the groups that claims can have, all of whose GPUs can be had whole, and those that are held.
func (b *builder) bonds(units []unit) bonds {
	at := map[string]unit{}
	held := map[string][]unit{}
	for _, c := range units {
		at[c.gpu.PCIAddress] = c
		for _, name := range slices.Compact(slices.Sorted(slices.Values(c.groups))) {
			held[name] = append(held[name], c)
		}
	}
	out := bonds{size: map[string]int64{}, total: map[string]int64{}}
	for _, island := range b.islands {
		for _, choice := range offered(island) {
			g := group{device: groupOf(choice.Members)}
			for _, m := range choice.Members {
				g.members = append(g.members, at[m])
			}
			claimed, isHeld := held[g.device.Name()]
			switch {
			case isHeld && sameGPUs(claimed, g.members):
				g.held = true
				delete(held, g.device.Name())
			case isHeld || !b.o.Counters || slices.ContainsFunc(g.members, func(c unit) bool { return !c.free() }):
				continue
			}
			out.groups = append(out.groups, g)
		}
	}
	for _, name := range sortedKeys(held) {
		device, _ := gpu.ParseName(name) // It was made of a device.
		g := group{device: device, members: held[name], held: true}
		g.state, g.why = NVLink, "NVLink does not connect its GPUs any more"
		out.groups = append(out.groups, g)
	}
	out.size = b.sizes(out.groups)
	if len(out.size) > resourceapi.ResourceSliceMaxCountersPerCounterSet {
		b.warn("", "", "NVLink groups that no claim holds are not published: they are of %d GPUs, and the API takes %d in one set of counters",
			len(out.size), resourceapi.ResourceSliceMaxCountersPerCounterSet)
		out.groups = slices.DeleteFunc(out.groups, func(g group) bool { return !g.held })
		out.size = b.sizes(out.groups)
	}
	for address, size := range out.size {
		out.total[address] = max(size, out.taken(at[address]))
	}
	for n := range out.groups {
		out.groups[n].look()
	}
	return out
}

// free says that new claims can have the GPU as a whole, as far as its health goes.
func (c unit) free() bool {
	return len(c.items) > 0 && c.items[0].device.Kind == gpu.KindGPU && c.items[0].state == ""
}

func sameGPUs(a, b []unit) bool {
	in := map[string]bool{}
	for _, c := range a {
		in[c.gpu.PCIAddress] = true
	}
	return len(in) == len(b) && !slices.ContainsFunc(b, func(c unit) bool { return !in[c.gpu.PCIAddress] })
}

// look finds what is wrong with a held group's GPUs.
func (g *group) look() {
	for _, c := range g.members {
		if g.state == "" && c.sick.State != "" {
			g.state, g.why = c.sick.State, fmt.Sprintf("its GPU at %s: %s", c.gpu.PCIAddress, c.sick.Message)
		}
	}
}

// sizes are what the GPUs of groups count for.
func (b *builder) sizes(groups []group) map[string]int64 {
	out := map[string]int64{}
	for _, g := range groups {
		for _, c := range g.members {
			out[c.gpu.PCIAddress] = int64(b.geometry(c.gpu.MIG).count(c.items))
		}
	}
	return out
}

// taken is what claims hold of a GPU.
func (o bonds) taken(c unit) int64 {
	n := int64(0)
	for _, i := range c.items {
		if i.held {
			n += o.of(c.gpu.PCIAddress, i)
		}
	}
	for range slices.Compact(slices.Sorted(slices.Values(c.groups))) {
		n += o.size[c.gpu.PCIAddress]
	}
	return n
}

// of is what a device of a GPU takes of what the GPU counts for: a partition in a known place its memory slices, anything
// else all.
func (o bonds) of(address string, i item) int64 {
	size := o.size[address]
	if i.device.Kind == gpu.KindMIG && i.place.Size > 0 {
		return min(size, int64(i.place.Size))
	}
	return size
}

func bondCounter(address string) string {
	return strings.TrimPrefix(gpu.Device{Kind: gpu.KindGPU, PCIAddress: address}.Name(), "gpu-")
}

// set is the counter set, nil where there are no groups.
func (o bonds) set() *resourceapi.CounterSet {
	if len(o.total) == 0 {
		return nil
	}
	set := &resourceapi.CounterSet{Name: bondSet, Counters: map[string]resourceapi.Counter{}}
	for address, n := range o.total {
		set.Counters[bondCounter(address)] = count(n)
	}
	return set
}

func count(n int64) resourceapi.Counter {
	return resourceapi.Counter{Value: *resource.NewQuantity(n, resource.DecimalSI)}
}

// consumed is what a GPU's device takes from the set.
func (o bonds) consumed(address string, i item) []resourceapi.DeviceCounterConsumption {
	if o.size[address] == 0 {
		return nil
	}
	return []resourceapi.DeviceCounterConsumption{{
		CounterSet: bondSet, Counters: map[string]resourceapi.Counter{bondCounter(address): count(o.of(address, i))},
	}}
}

// groups puts the devices of NVLink groups among the whole GPUs, each as far in front as it may be, for the scheduler looks
// at one device after the other: behind one of its GPUs, so that whoever does not say what it wants meets that first, and
// behind the groups of its size that are to be offered before it. Those that are not for new claims come last.
func (b *builder) groups(wholes []resourceapi.Device, bonds bonds) []resourceapi.Device {
	at := map[string]int{}
	for i, d := range wholes {
		at[d.Name] = i
	}
	behind := make([][]resourceapi.Device, len(wholes)+1)
	last := map[int]int{} // by size
	for _, g := range bonds.groups {
		d := b.device(g.subject(b))
		if b.o.Counters {
			all := resourceapi.DeviceCounterConsumption{CounterSet: bondSet, Counters: map[string]resourceapi.Counter{}}
			for _, c := range g.members {
				all.Counters[bondCounter(c.gpu.PCIAddress)] = count(bonds.size[c.gpu.PCIAddress])
			}
			d.ConsumesCounters = []resourceapi.DeviceCounterConsumption{all}
		}
		b.taint(&d, g.state)
		if g.state != "" {
			b.warn(d.Name, g.state, "the NVLink group %s stays published for the claim that holds it, and is not for others: %s", d.Name, g.why)
		}
		place := len(wholes)
		if g.state == "" {
			for _, c := range g.members {
				if i, there := at[c.name()]; there {
					place = min(place, i)
				}
			}
			place = max(place, last[g.device.Size])
			last[g.device.Size] = place
		}
		behind[place] = append(behind[place], d)
	}
	var out []resourceapi.Device
	for i := range behind {
		if i < len(wholes) {
			out = append(out, wholes[i])
		}
		out = append(out, behind[i]...)
	}
	return out
}

// subject is what the group's GPUs have in common, with their memory together.
func (g group) subject(b *builder) subject {
	s := subject{device: g.device, kind: gpu.KindGroup, driver: b.driver, gpu: g.members[0].gpu, group: b.labels[g.members[0].gpu.PCIAddress]}
	s.gpu.MemoryBytes = 0
	known := true
	for _, c := range g.members {
		o := c.gpu
		keep(&s.gpu.ProductName, o.ProductName)
		keep(&s.gpu.Brand, o.Brand)
		keep(&s.gpu.Architecture, o.Architecture)
		keep(&s.gpu.ComputeCapability, o.ComputeCapability)
		keep(&s.gpu.PCIeRoot, o.PCIeRoot)
		keep(&s.gpu.Fabric, o.Fabric)
		keep(&s.group, b.labels[o.PCIAddress])
		if s.gpu.NUMANode != nil && (o.NUMANode == nil || *o.NUMANode != *s.gpu.NUMANode) {
			s.gpu.NUMANode = nil
		}
		known = known && o.MemoryBytes > 0
		s.gpu.MemoryBytes += min(o.MemoryBytes, maxMemory)
	}
	if !known {
		s.gpu.MemoryBytes = 0
	}
	return s
}

// keep forgets what is not the same of all.
func keep[T comparable](common *T, one T) {
	if *common != one {
		var none T
		*common = none
	}
}
