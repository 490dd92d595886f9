// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"cmp"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/topology"
)

type group struct {
	device  gpu.Device
	members []gpuState
	held    bool
	// state is set if the group is unavailable to new claims.
	state State
	why   string
}

// groups returns the groups whose GPUs are all available as a whole and publish groups, and the held groups. With a
// group, all GPUs of the node that could be cut have counters.
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
			case isHeld || !b.o.Counters ||
				slices.ContainsFunc(g.members, func(m gpuState) bool { return !b.forGroups(m) }):
				continue
			}
			out = append(out, g)
		}
	}
	for _, name := range sortedKeys(held) {
		device, _ := gpu.ParseName(name) // name comes from Device.Name.
		out = append(out, group{device: device, members: held[name], held: true, state: NVLink,
			why: "NVLink no longer connects its GPUs"})
	}
	if len(out) > 0 {
		besideOthers(gpus)
		for _, g := range out {
			besideOthers(g.members)
		}
	}
	if n := len(b.nvlinkCounters(out).size); n >= resourceapi.ResourceSliceMaxCountersPerCounterSet {
		b.warn("", "", "free NVLink groups are not published: they have %d GPUs, but the API allows only %d counters "+
			"for them in a set",
			n, resourceapi.ResourceSliceMaxCountersPerCounterSet-1)
		out = slices.DeleteFunc(out, func(g group) bool { return !g.held })
	}
	for n := range out {
		g := &out[n]
		if !g.held &&
			slices.ContainsFunc(g.members, func(m gpuState) bool { return b.groupsOf(m) == sharing.EndingPlacements }) {
			g.state, g.why = NoDemand, "no object asks for a group"
		}
		for _, m := range g.members { // Without faults, only held groups have unhealthy members.
			if g.state == "" && m.unhealthy.State != "" {
				g.state, g.why = m.unhealthy.State,
					fmt.Sprintf("its GPU at %s: %s", m.gpu.PCIAddress, m.unhealthy.Message)
			}
		}
	}
	return out
}

// forGroups reports whether the groups of a GPU are published to new claims. Those of a faulty GPU are, with its taint.
func (b *builder) forGroups(g gpuState) bool {
	asked := b.groupsOf(g)
	if len(g.entries) == 0 || g.entries[0].device.Kind != gpu.KindGPU || asked == sharing.NoPlacement ||
		asked == sharing.EndingPlacements && !b.o.Taints {
		return false
	}
	if g.unhealthy.State.fault() {
		return b.o.Taints && (g.entries[0].state == "" || g.entries[0].state == g.unhealthy.State)
	}
	return g.entries[0].state == ""
}

func (b *builder) groupsOf(g gpuState) sharing.Placements {
	if b.o.Sharing == nil {
		return sharing.AllPlacements
	}
	return b.o.Sharing.Groups(g.gpu)
}

// sameGPUs compares two lists without duplicates, in any order.
func sameGPUs(a, b []gpuState) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(x gpuState) bool {
		return !slices.ContainsFunc(b, func(y gpuState) bool { return x.gpu.PCIAddress == y.gpu.PCIAddress })
	})
}

// withGroups inserts the devices of NVLink groups among the whole GPUs, as far in front as possible, because the
// scheduler tries the devices in turn. A group follows one of its GPUs, so that a request for any device gets a GPU,
// and the groups of its size that come before it in offered. Groups that are unavailable to new claims come last.
func (b *builder) withGroups(
	wholes []resourceapi.Device, groups []group, counters nvlinkCounters,
) []resourceapi.Device {
	behind := make([][]resourceapi.Device, len(wholes)+1)
	last := map[int]int{} // By size.
	for _, g := range groups {
		d := b.device(g.source(b))
		if b.o.Counters {
			d.ConsumesCounters = counters.consumedByGroup(g, wholes)
		}
		b.taint(&d, g.state)
		b.taintCordoned(&d, g.members...)
		b.taintReserved(&d, g.members...)
		b.taintUnmonitored(&d, g.members...)
		place := len(wholes)
		if g.state != "" && g.held {
			b.warn(d.Name, g.state, "the NVLink group %s stays published for its claim but is unavailable to new "+
				"claims: %s", d.Name, g.why)
		} else if g.state == "" {
			for _, m := range g.members {
				if i := slices.IndexFunc(wholes, func(d resourceapi.Device) bool {
					return d.Name == m.name()
				}); i >= 0 {
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

// source returns the common data of the group's GPUs, with the sum of their memory.
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

// keepCommon clears a value that differs.
func keepCommon[T comparable](common *T, one T) {
	if *common != one {
		*common = *new(T)
	}
}

// labels returns each GPU's nvlinkGroup: all connected GPUs on switches, otherwise the largest clique with the GPU. The
// name holds the size and the first member, so it is stable while the members are.
func labels(islands []topology.Island) map[string]string {
	out := map[string]string{}
	for _, island := range islands {
		groups := island.Groups
		if island.Switched {
			groups = []topology.Group{{Members: island.Members}}
		}
		for _, g := range groups { // Larger groups overwrite smaller ones.
			for _, m := range g.Members {
				out[m] = groupOf(g.Members).Name()
			}
		}
	}
	return out
}

func groupOf(members []string) gpu.Device {
	return gpu.Device{Kind: gpu.KindGroup, Size: len(members), PCIAddress: members[0]}
}

// offered returns an island's groups in their order of allocation. Single GPUs are taken from the front, so of the two
// halves of a larger group the rear one comes first. But larger groups at the front precede those at the rear:
// small groups fill up used parts, and large groups stay whole.
func offered(island topology.Island) []topology.Group {
	out := slices.Clone(island.Groups)
	slices.SortStableFunc(out, func(x, y topology.Group) int {
		size := len(x.Members)
		nx, ny := slices.Index(island.Members, x.Members[0])/size, slices.Index(island.Members, y.Members[0])/size
		return cmp.Or(cmp.Compare(size, len(y.Members)), cmp.Compare(nx/2, ny/2), cmp.Compare(ny, nx))
	})
	return out
}
