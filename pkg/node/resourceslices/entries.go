// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"fmt"
	"slices"

	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
)

// deviceEntry is a candidate for publishing.
type deviceEntry struct {
	device gpu.Device
	// profile and place describe a partition, as far as known.
	profile gpu.Profile
	place   gpu.Placement
	uuid    string
	// external partitions are external and exist.
	external bool
	held     bool
	// placements says whether the node's settings publish the entry for new claims.
	placements sharing.Placements
	// state is set if the entry is unavailable to new claims.
	state State
	why   string
}

// exclude makes an entry unavailable to new claims. The first reason counts.
func (e *deviceEntry) exclude(state State, why string) {
	if e.state == "" {
		e.state, e.why = state, why
	}
}

func (e deviceEntry) describe() string {
	if e.device.Kind == gpu.KindMIG {
		return fmt.Sprintf("%s at slice %d", e.profile.Name, e.place.Start)
	}
	return "the whole GPU"
}

// entries returns the devices of a GPU without its monitor: the available ones and the held ones. partitionable means
// that the settings publish partitions of it to new claims, now or once an object asks for them.
func (b *builder) entries(g gpuState) (published []deviceEntry, partitionable bool) {
	geometry := b.geometry(g.gpu.MIG)
	mode := b.mode(g, geometry)
	whole := deviceEntry{device: gpu.Device{Kind: gpu.KindGPU, PCIAddress: g.gpu.PCIAddress}, uuid: g.gpu.UUID,
		held: g.holds(gpu.KindGPU)}
	whole.exclude(mode.whole, mode.why)
	partitions := b.partitions(g, geometry, mode)
	if stuck := b.o.Stuck[g.gpu.PCIAddress]; len(stuck) > 0 {
		b.excludeStuck(g, geometry, &whole, partitions, stuck)
	}
	if external := b.o.External[g.gpu.PCIAddress]; mode.external && len(external) > 0 {
		whole.exclude(External, "an external MIG partition is on it")
		b.addExternal(g, geometry, partitions, external)
	}
	if b.o.NoPartitions {
		partitions = slices.DeleteFunc(partitions, func(e deviceEntry) bool { return !e.held })
	}
	entries := append([]deviceEntry{whole}, partitions...)
	if !b.o.Counters {
		excludeOverlaps(entries, g.holds(gpu.KindGroup))
	}
	if g.unhealthy.State.temporary() && !g.unhealthy.State.groupsOnly() {
		for n := range entries {
			entries[n].exclude(g.unhealthy.State, g.unhealthy.Message)
		}
	}
	if b.withdrawn(g) {
		for n := range entries {
			entries[n].exclude(Cordoned, "an administrator cordoned the GPU")
		}
	}
	partitionable = slices.ContainsFunc(entries, func(e deviceEntry) bool {
		return e.device.Kind == gpu.KindMIG && e.placements != sharing.NoPlacement && b.available(e)
	})
	b.sample(g.gpu.ProductName, entries)
	return slices.DeleteFunc(entries, func(e deviceEntry) bool { return !b.publishes(e) }), partitionable
}

func (b *builder) publishes(e deviceEntry) bool {
	return e.held || (e.placements != sharing.NoPlacement || e.external) && b.available(e)
}

// available reports whether the node could publish the entry to new claims, whatever its settings.
func (b *builder) available(e deviceEntry) bool {
	return e.state == "" || e.state.temporary() && b.o.Taints
}

// sample leaves at most one placement of the node for each profile that no object asks for, so that classes, reviews,
// quotas and autoscalers still know it. A first claim can get it. A GPU without its whole device has counters in any
// case, and no MIGLayoutAttribute by which other nodes could stand for it.
func (b *builder) sample(model string, entries []deviceEntry) {
	const why = "no object asks for its profile"
	whole := b.publishes(entries[0])
	for n := range entries {
		e := &entries[n]
		if e.placements == sharing.AllPlacements || e.held || e.external || !b.publishes(*e) {
			continue
		}
		switch key := [2]string{model, e.profile.Name}; {
		case e.placements == sharing.LaterPlacements && whole:
			e.placements = sharing.NoPlacement
		case e.placements == sharing.EndingAllPlacements:
			e.exclude(NoDemand, why)
		case !b.onDemand[key]:
			b.onDemand[key] = true
			if e.placements == sharing.EndingOnePlacement {
				e.exclude(NoDemand, why)
			}
		case e.placements == sharing.EndingPlacements:
			e.exclude(NoDemand, why)
		default:
			e.placements = sharing.NoPlacement
		}
	}
}

// partitions returns the possible and the held partitions, in the order of Order.
func (b *builder) partitions(g gpuState, geometry geometry, m mode) []deviceEntry {
	held := g.heldAs(gpu.KindMIG)
	var out []deviceEntry
	for _, choice := range geometry.order {
		e := deviceEntry{profile: choice.Profile, place: choice.Placement, device: gpu.Device{
			Kind:       gpu.KindMIG,
			PCIAddress: g.gpu.PCIAddress,
			Profile:    choice.Profile.Name,
			Start:      choice.Placement.Start,
		}}
		if b.o.Sharing != nil {
			e.placements = b.o.Sharing.Placements(b.administered(g.gpu), choice.Profile.Name)
		}
		e.exclude(m.partitions, m.why)
		if n := slices.IndexFunc(held, func(h Held) bool { return h.Device == e.device }); n >= 0 {
			e.held = true
			if held[n].External {
				e.exclude(Absent, "it was an external partition and no longer exists")
			}
			held = slices.Delete(held, n, n+1)
		}
		out = append(out, e)
	}
	for _, h := range held {
		e := deviceEntry{
			device: h.Device, held: true, place: gpu.Placement{Start: h.Device.Start, Size: h.Size},
			profile: gpu.Profile{Name: h.Device.Profile, MemoryBytes: h.MemoryBytes},
		}
		e.exclude(m.partitions, m.why)
		e.exclude(Unreadable, "NVML reports no such MIG profile or placement for this GPU")
		out = append(out, e)
	}
	return out
}

// administered returns the GPU in the MIG mode that an administrator chose: what claims change must not end an offer
// without a taint before.
func (b *builder) administered(g gpu.GPU) gpu.GPU {
	g.MIG.Enabled = g.MIG.Enabled && !b.o.Switched[g.PCIAddress]
	return g
}

// excludeStuck excludes the devices that overlap stuck partitions, or need their engines.
func (b *builder) excludeStuck(
	g gpuState, geometry geometry, whole *deviceEntry, partitions []deviceEntry, stuck []gpu.Partition,
) {
	const why = "a partition of an ended claim is in its place, because NVML does not destroy it. The driver tries " +
		"again; if it persists, stop monitoring agents on the GPU, then reset the GPU or reboot the node"
	whole.exclude(Stuck, why)
	taken := make([]int, len(geometry.binding))
	for _, p := range stuck {
		b.warn(g.name(), Stuck, "the partition %s at slice %d of GPU at %s belongs to an ended claim, and NVML does "+
			"not destroy it. New claims cannot get its place. The driver tries again; if it persists, stop "+
			"monitoring agents on the GPU, then reset the GPU or reboot the node",
			p.Profile, p.Placement.Start, g.gpu.PCIAddress)
		n := slices.IndexFunc(partitions, func(e deviceEntry) bool { return e.device.Profile == p.Profile })
		for k, r := range geometry.binding {
			if n >= 0 && partitions[n].profile.Slices > 0 {
				taken[k] += r.Of(partitions[n].profile)
			}
		}
	}
	for n := range partitions {
		e := &partitions[n]
		if e.held {
			continue // It was prepared beside the stuck partition.
		}
		if slices.ContainsFunc(stuck, func(p gpu.Partition) bool {
			return e.place.Size < 1 || p.Placement.Overlaps(e.place)
		}) {
			e.exclude(Stuck, why)
		}
		for k, r := range geometry.binding {
			if n := r.Of(e.profile); n > 0 && n+taken[k] > r.Total {
				e.exclude(Stuck,
					"a partition of an ended claim has the engines that it needs, because NVML does not destroy it")
			}
		}
	}
}

// addExternal marks external partitions, moves them before the others of their profile, and excludes overlapping
// entries.
func (b *builder) addExternal(g gpuState, geometry geometry, partitions []deviceEntry, external []gpu.Partition) {
	taken := make([]int, len(geometry.binding))
	for _, p := range external {
		n := slices.IndexFunc(partitions, func(e deviceEntry) bool {
			return e.profile.Slices > 0 && e.device.Profile == p.Profile && e.device.Start == p.Placement.Start &&
				e.place == p.Placement
		})
		if n < 0 {
			b.warn(g.name(), "", "the external MIG partition at slice %d of GPU at %s is not published: its profile "+
				"is none of this GPU's", p.Placement.Start, g.gpu.PCIAddress)
			continue
		}
		e := &partitions[n]
		for k, r := range geometry.binding {
			taken[k] += r.Of(e.profile)
		}
		if p.Unlisted {
			b.warn(g.name(), "", "the external MIG partition %s at slice %d of GPU at %s is not published yet: NVML "+
				"lists its device only in a new session, once no claim is prepared on the node", p.Profile,
				p.Placement.Start, g.gpu.PCIAddress)
			continue
		}
		if len(p.Devices) != 1 {
			b.warn(g.name(), "", "the external MIG partition %s at slice %d of GPU at %s is not published: it has %d "+
				"compute instances instead of one that takes all of it",
				p.Profile, p.Placement.Start, g.gpu.PCIAddress, len(p.Devices))
			continue
		}
		e.external, e.uuid = true, p.Devices[0].UUID
		if e.state == Absent || e.state == MIGMode {
			e.state, e.why = "", ""
		}
	}
	rank := map[string]int{}
	for n := range partitions {
		e := &partitions[n]
		if _, ok := rank[e.device.Profile]; !ok {
			rank[e.device.Profile] = 2 * n
		}
		if e.external {
			continue
		}
		for _, p := range external {
			if e.place.Size < 1 || p.Placement.Size < 1 || p.Placement.Overlaps(e.place) {
				e.exclude(External, "an external MIG partition is in its place")
			}
		}
		for k, r := range geometry.binding {
			if n := r.Of(e.profile); n > 0 && n+taken[k] > r.Total {
				e.exclude(External, "an external MIG partition has the engines that it needs")
			}
		}
	}
	// An existing partition precedes one of the same profile that does not exist yet.
	slices.SortStableFunc(partitions, func(x, y deviceEntry) int {
		order := func(e deviceEntry) int {
			if e.external {
				return rank[e.device.Profile]
			}
			return rank[e.device.Profile] + 1
		}
		return order(x) - order(y)
	})
}

// excludeOverlaps is for a server without counters: it excludes devices until no two available ones overlap. Held
// devices and groups have priority, then external partitions, then the whole GPU.
func excludeOverlaps(entries []deviceEntry, inHeldGroup bool) {
	const why = "the API server keeps no shared counters, so devices must not overlap"
	wholeHeld, inUse := inHeldGroup, inHeldGroup
	for _, e := range entries {
		wholeHeld = wholeHeld || e.held && e.device.Kind == gpu.KindGPU
		inUse = inUse || e.device.Kind == gpu.KindMIG && (e.held || e.external)
	}
	for n := range entries {
		e := &entries[n]
		switch {
		case e.held, e.device.Kind == gpu.KindGPU && !inUse:
		case e.device.Kind == gpu.KindGPU, !e.external, wholeHeld,
			slices.ContainsFunc(entries, func(h deviceEntry) bool {
				return h.held && h.device.Kind == gpu.KindMIG && (h.place.Size < 1 || h.place.Overlaps(e.place))
			}):
			e.exclude(External, why)
		}
	}
}
