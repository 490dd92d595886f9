// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"cmp"
	"fmt"
	"slices"

	"gpu-dra-driver/pkg/gpu"
)

// item is a device that could be published of a GPU.
type item struct {
	device gpu.Device
	// profile and place are a partition's, as far as they are known.
	profile gpu.Profile
	place   gpu.Placement
	uuid    string
	// foreign partitions exist, made by an administrator.
	foreign bool
	held    bool
	// state says that it is not for new claims, and why.
	state State
	why   string
}

func (i *item) bar(state State, why string) {
	if i.state == "" {
		i.state, i.why = state, why
	}
}

func (i item) what() string {
	if i.device.Kind == gpu.KindMIG {
		return fmt.Sprintf("%s at slice %d", i.profile.Name, i.place.Start)
	}
	return "the whole"
}

// items are the devices to publish of a GPU, its monitor aside: those that new claims can have, and those held.
func (b *builder) items(c candidate) []item {
	geometry := b.geometry(c.gpu.MIG)
	mode := b.mode(c, geometry)
	whole := item{device: gpu.Device{Kind: gpu.KindGPU, PCIAddress: c.gpu.PCIAddress}, uuid: c.gpu.UUID, held: c.whole}
	whole.bar(mode.whole, mode.why)
	parts := b.parts(c, geometry, mode)
	var foreign []gpu.Partition
	if mode.foreign {
		foreign = b.o.Foreign[c.gpu.PCIAddress]
	}
	if len(foreign) > 0 {
		whole.bar(Foreign, "a MIG partition that this driver did not make is on it")
	}
	parts = b.withForeign(c, geometry, parts, foreign)
	items := append([]item{whole}, parts...)
	if !b.o.Counters {
		apart(items, len(c.groups) > 0)
	}
	if c.sick.State == Withheld {
		for n := range items {
			items[n].bar(Withheld, c.sick.Message)
		}
	}
	return slices.DeleteFunc(items, func(i item) bool {
		return !i.held && i.state != "" && (i.state != Withheld || !b.o.Taints)
	})
}

// parts are the partitions that could be made, and those held, in the order to offer them.
func (b *builder) parts(c candidate, g geometry, m mode) []item {
	var out []item
	device := func(profile string, start int) gpu.Device {
		return gpu.Device{Kind: gpu.KindMIG, PCIAddress: c.gpu.PCIAddress, Profile: profile, Start: start}
	}
	for _, choice := range g.order {
		i := item{device: device(choice.Profile.Name, choice.Placement.Start), profile: choice.Profile, place: choice.Placement}
		h, held := c.holds(i.device.Profile, i.device.Start)
		i.held = held
		i.bar(m.parts, m.why)
		if held && h.Foreign {
			i.bar(Absent, "an administrator made it, and it is gone")
		}
		out = append(out, i)
	}
	for _, h := range c.partitions {
		if slices.ContainsFunc(out, func(i item) bool { return i.device == h.Device }) {
			continue
		}
		i := item{device: h.Device, held: true, place: gpu.Placement{Start: h.Device.Start, Size: h.Size}}
		i.profile = gpu.Profile{Name: h.Device.Profile, MemoryBytes: h.MemoryBytes}
		i.bar(m.parts, m.why)
		i.bar(Unreadable, "NVML reports no such MIG profile or placement of this GPU")
		out = append(out, i)
	}
	return out
}

// withForeign makes devices of the partitions that an administrator made, and bars what overlaps them.
func (b *builder) withForeign(c candidate, g geometry, parts []item, foreign []gpu.Partition) []item {
	if len(foreign) == 0 {
		return parts
	}
	taken := make([]int, len(g.binding))
	for _, p := range foreign {
		n := slices.IndexFunc(parts, func(i item) bool {
			return i.profile.Slices > 0 && i.device.Profile == p.Profile && i.device.Start == p.Placement.Start && i.place == p.Placement
		})
		name := gpu.Device{Kind: gpu.KindGPU, PCIAddress: c.gpu.PCIAddress}.Name()
		if n < 0 {
			b.warn(name, "", "a foreign MIG partition at slice %d of GPU at %s is left out: NVML names no profile of it that this GPU has", p.Placement.Start, c.gpu.PCIAddress)
			continue
		}
		for k, r := range g.binding {
			taken[k] += r.Of(parts[n].profile)
		}
		if len(p.Devices) != 1 {
			b.warn(name, "", "the foreign MIG partition %s at slice %d of GPU at %s is left out: it has %d compute instances, and one that takes all of it is wanted",
				p.Profile, p.Placement.Start, c.gpu.PCIAddress, len(p.Devices))
			continue
		}
		parts[n].foreign, parts[n].uuid = true, p.Devices[0].UUID
		if parts[n].state == Absent || parts[n].state == MIGMode {
			parts[n].state, parts[n].why = "", ""
		}
	}
	rank := map[string]int{}
	for n := range parts {
		i := &parts[n]
		if _, ok := rank[i.device.Profile]; !ok {
			rank[i.device.Profile] = n
		}
		if i.foreign {
			continue
		}
		for _, p := range foreign {
			if i.place.Size < 1 || p.Placement.Size < 1 || p.Placement.Overlaps(i.place) {
				i.bar(Foreign, "a MIG partition that this driver did not make is in its place")
			}
		}
		for k, r := range g.binding {
			if n := r.Of(i.profile); n > 0 && n+taken[k] > r.Total {
				i.bar(Foreign, "a MIG partition that this driver did not make has the engines it needs")
			}
		}
	}
	// What exists already is better used than more of its kind made.
	slices.SortStableFunc(parts, func(x, y item) int {
		return cmp.Or(cmp.Compare(rank[x.device.Profile], rank[y.device.Profile]), cmp.Compare(order(x), order(y)))
	})
	return parts
}

func order(i item) int {
	if i.foreign {
		return 0
	}
	return 1
}

// apart bars devices until none that are left overlap, for a server that keeps no counters: what is held stays, by itself
// or in a group, then foreign partitions, then the whole.
func apart(items []item, grouped bool) {
	const why = "the API server keeps no shared counters, so that no two devices may overlap"
	var stays []item
	whole, busy := grouped, grouped
	for _, i := range items {
		whole = whole || i.held && i.device.Kind == gpu.KindGPU
		busy = busy || i.device.Kind == gpu.KindMIG && (i.held || i.foreign)
		if i.held {
			stays = append(stays, i)
		}
	}
	for n := range items {
		i := &items[n]
		switch {
		case i.held:
		case i.device.Kind == gpu.KindGPU:
			if busy {
				i.bar(Foreign, why)
			}
		case !i.foreign || whole || slices.ContainsFunc(stays, func(h item) bool {
			return h.device.Kind == gpu.KindMIG && (h.place.Size < 1 || h.place.Overlaps(i.place))
		}):
			i.bar(Foreign, why)
		}
	}
}
