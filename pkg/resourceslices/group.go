// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"cmp"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/topology"
)

// group is an NVLink group to publish.
type group struct {
	device  gpu.Device
	members []gpuState
	held    bool
	// state says that it is not for new claims, and why.
	state State
	why   string
}

// groups finds the groups that claims can have, all of whose GPUs can be allocated whole, and those that are held.
func (b *builder) groups(gpus []gpuState) []group {
	byAddress := map[string]gpuState{}
	held := map[string][]gpuState{}
	for _, g := range gpus {
		byAddress[g.gpu.PCIAddress] = g
		for _, h := range g.heldAs(gpu.KindGroup) {
			held[h.Device.Name()] = append(held[h.Device.Name()], g)
		}
	}
	var out []group
	for _, island := range b.islands {
		for _, choice := range offered(island) {
			g := group{device: groupOf(choice.Members)}
			for _, address := range choice.Members {
				g.members = append(g.members, byAddress[address])
			}
			holders, isHeld := held[g.device.Name()]
			switch {
			case isHeld && sameGPUs(holders, g.members):
				g.held = true
				delete(held, g.device.Name())
			case isHeld || !b.o.Counters || slices.ContainsFunc(g.members, func(m gpuState) bool { return !m.free() }):
				continue
			}
			out = append(out, g)
		}
	}
	for _, name := range sortedKeys(held) {
		device, _ := gpu.ParseName(name) // It was made of a device.
		out = append(out, group{device: device, members: held[name], held: true, state: NVLink, why: "NVLink does not connect its GPUs any more"})
	}
	if n := len(b.nvlinkCounters(out).size); n > resourceapi.ResourceSliceMaxCountersPerCounterSet {
		b.warn("", "", "NVLink groups that no claim holds are not published: they are of %d GPUs, and the API takes %d in one set of counters",
			n, resourceapi.ResourceSliceMaxCountersPerCounterSet)
		out = slices.DeleteFunc(out, func(g group) bool { return !g.held })
	}
	for n := range out {
		g := &out[n]
		for _, m := range g.members { // Only held groups have unhealthy members.
			if g.state == "" && m.unhealthy.State != "" {
				g.state, g.why = m.unhealthy.State, fmt.Sprintf("its GPU at %s: %s", m.gpu.PCIAddress, m.unhealthy.Message)
			}
		}
	}
	return out
}

// free says that new claims can have the GPU as a whole, as far as its health goes.
func (g gpuState) free() bool {
	return len(g.entries) > 0 && g.entries[0].device.Kind == gpu.KindGPU && g.entries[0].state == ""
}

// sameGPUs compares two lists of different GPUs, in any order.
func sameGPUs(a, b []gpuState) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(x gpuState) bool {
		return !slices.ContainsFunc(b, func(y gpuState) bool { return x.gpu.PCIAddress == y.gpu.PCIAddress })
	})
}

// withGroups puts the devices of NVLink groups among the whole GPUs, each as far in front as it may be, because the
// scheduler tries one device after the other: behind one of its GPUs, so that a request for any device meets the GPU first,
// and behind the groups of its size that are to be offered before it. Groups that are not for new claims come last.
func (b *builder) withGroups(wholes []resourceapi.Device, groups []group, counters nvlinkCounters) []resourceapi.Device {
	behind := make([][]resourceapi.Device, len(wholes)+1)
	last := map[int]int{} // by size
	for _, g := range groups {
		d := b.device(g.source(b))
		if b.o.Counters {
			d.ConsumesCounters = counters.consumedByGroup(g)
		}
		b.taint(&d, g.state)
		place := len(wholes)
		if g.state != "" {
			b.warn(d.Name, g.state, "the NVLink group %s stays published for the claim that holds it, and is not for others: %s", d.Name, g.why)
		} else {
			for _, m := range g.members {
				if i := slices.IndexFunc(wholes, func(d resourceapi.Device) bool { return d.Name == m.name() }); i >= 0 {
					place = min(place, i)
				}
			}
			place = max(place, last[g.device.Size])
			last[g.device.Size] = place
		}
		behind[place] = append(behind[place], d)
	}
	var out []resourceapi.Device
	for i, whole := range wholes {
		out = append(append(out, whole), behind[i]...)
	}
	return append(out, behind[len(wholes)]...)
}

// source is what the group's GPUs have in common, with their memory together.
func (g group) source(b *builder) attributeSource {
	s := b.source(g.members[0].gpu, g.device)
	s.gpu.MemoryBytes = 0
	known := true
	for _, m := range g.members {
		keepCommon(&s.gpu.ProductName, m.gpu.ProductName)
		keepCommon(&s.gpu.Brand, m.gpu.Brand)
		keepCommon(&s.gpu.Architecture, m.gpu.Architecture)
		keepCommon(&s.gpu.ComputeCapability, m.gpu.ComputeCapability)
		keepCommon(&s.gpu.PCIeRoot, m.gpu.PCIeRoot)
		keepCommon(&s.gpu.Fabric, m.gpu.Fabric)
		keepCommon(&s.group, b.labels[m.gpu.PCIAddress])
		if !ptr.Equal(s.gpu.NUMANode, m.gpu.NUMANode) {
			s.gpu.NUMANode = nil
		}
		known = known && m.gpu.MemoryBytes > 0
		s.gpu.MemoryBytes += min(m.gpu.MemoryBytes, maxMemory)
	}
	if !known {
		s.gpu.MemoryBytes = 0
	}
	return s
}

// keepCommon clears a value that is not the same of all.
func keepCommon[T comparable](common *T, one T) {
	if *common != one {
		*common = *new(T)
	}
}

// labels names for each GPU the largest set of GPUs that it is in of which each has NVLink to each: on switches all of
// them, otherwise the largest clique of the island. The name is its size and its first member, so that it stays while its
// members do.
func labels(islands []topology.Island) map[string]string {
	out := map[string]string{}
	for _, island := range islands {
		groups := island.Groups
		if island.Switched {
			groups = []topology.Group{{Members: island.Members}}
		}
		for _, g := range groups { // The larger come later.
			for _, m := range g.Members {
				out[m] = groupOf(g.Members).Name()
			}
		}
	}
	return out
}

// groupOf is the group of these GPUs.
func groupOf(members []string) gpu.Device {
	return gpu.Device{Kind: gpu.KindGroup, Size: len(members), PCIAddress: members[0]}
}

// offered are an island's groups in the order to offer them. GPUs are taken one by one from the front. Of the two halves of
// a larger group the further one comes first, so that groups are taken from the other end; but the larger group at the
// front goes before those behind it, so that the small ones use up what the GPUs have begun, and large ones stay whole.
func offered(island topology.Island) []topology.Group {
	out := slices.Clone(island.Groups)
	slices.SortStableFunc(out, func(x, y topology.Group) int {
		size := len(x.Members)
		nx, ny := slices.Index(island.Members, x.Members[0])/size, slices.Index(island.Members, y.Members[0])/size
		return cmp.Or(cmp.Compare(size, len(y.Members)), cmp.Compare(nx/2, ny/2), cmp.Compare(ny, nx))
	})
	return out
}
