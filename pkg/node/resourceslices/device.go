// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"cmp"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire"
)

// UnmonitoredTaint is on the devices of a GPU whose faults cannot be seen. It has no effect on scheduling.
const UnmonitoredTaint = "gpu.nvidia.com/unmonitored"

// devices returns the whole GPU and its partitions, and their counters if they overlap.
func (b *builder) devices(
	g gpuState, nvlink nvlinkCounters,
) (out published) {
	var consumed [][]resourceapi.DeviceCounterConsumption
	if b.o.Counters && g.cut() {
		groups := 0
		if nvlink.pairs {
			groups = len(g.heldAs(gpu.KindGroup))
		}
		out.set, consumed = b.geometry(g.gpu.MIG).counters(g.gpu, g.entries, groups)
	}
	for n, e := range g.entries {
		s := b.source(g.gpu, e.device)
		s.uuid, s.profile = e.uuid, &e.profile
		shares := b.offer(&s)
		if e.device.Kind == gpu.KindGPU {
			s.profile, s.migLayout = b.geometry(g.gpu.MIG).all, b.layoutName(g)
		}
		d := b.device(s)
		if out.set != nil {
			d.ConsumesCounters = consumed[n]
		}
		d.ConsumesCounters = append(d.ConsumesCounters, nvlink.consumedBy(g, e)...)
		b.taint(&d, cmp.Or(e.state, shares))
		b.taintCordoned(&d, g)
		b.taintReserved(&d, g)
		b.taintUnmonitored(&d, g)
		if e.held && e.state != "" {
			b.warn(d.Name, e.state,
				"%s of GPU at %s stays published for its claim but is unavailable to new claims: %s",
				e.describe(), g.gpu.PCIAddress, e.why)
		}
		if e.device.Kind == gpu.KindGPU {
			out.whole = append(out.whole, d)
		} else {
			out.partitions = append(out.partitions, d)
			out.cut = out.cut || e.held || e.external || e.placements == sharing.AllPlacements
		}
	}
	if c := g.unhealthy; c.State != "" && !g.holds(gpu.KindGPU) {
		switch {
		case c.State.groupsOnly():
			b.warn(g.name(), c.State, "groups with the GPU at %s are unavailable to new claims: %s",
				g.gpu.PCIAddress, c.Message)
		case c.State.temporary() && b.o.Taints:
			b.warn(g.name(), c.State, "GPU at %s is unavailable to new claims: %s", g.gpu.PCIAddress, c.Message)
		case c.State != Absent:
			b.warn(g.name(), c.State, "GPU at %s is not published: %s", g.gpu.PCIAddress, c.Message)
		}
	}
	return out
}

func (b *builder) taint(d *resourceapi.Device, state State) {
	if state != "" && b.o.Taints {
		effect := resourceapi.DeviceTaintEffectNoSchedule
		if slices.Contains(b.o.Evict, string(state)) {
			effect = resourceapi.DeviceTaintEffectNoExecute
		}
		d.Taints = []resourceapi.DeviceTaint{{Key: wire.UnhealthyTaint, Value: string(state), Effect: effect}}
	}
}

// taintUnmonitored taints a device if the faults of one of its GPUs cannot be seen.
func (b *builder) taintUnmonitored(d *resourceapi.Device, gpus ...gpuState) {
	if b.o.NoEffectTaints && slices.ContainsFunc(gpus, func(g gpuState) bool { return g.gpu.Unmonitored != "" }) {
		d.Taints = append(d.Taints,
			resourceapi.DeviceTaint{Key: UnmonitoredTaint, Effect: resourceapi.DeviceTaintEffectNone})
	}
}

// monitors returns the monitor device of a GPU. It needs a readable GPU or a claim that holds the device.
func (b *builder) monitors(g gpuState) []resourceapi.Device {
	gone := g.unhealthy.State == Lost || g.unhealthy.State == Unreadable || g.unhealthy.State == Absent
	if !b.o.Taints || !b.o.SharedDevices && !b.o.HeldShares ||
		(gone || b.o.NoMonitors || !b.o.SharedDevices) && !g.holds(gpu.KindMonitor) {
		return nil
	}
	asked := b.monitorsOf(g)
	if !g.holds(gpu.KindMonitor) && (asked == sharing.NoPlacement || asked == sharing.OnePlacement) {
		return nil
	}
	s := b.source(g.gpu, gpu.Device{Kind: gpu.KindMonitor, PCIAddress: g.gpu.PCIAddress})
	s.uuid = g.gpu.UUID
	d := b.device(s)
	d.AllowMultipleAllocations = new(true)
	if asked == sharing.EndingPlacements {
		b.taint(&d, NoDemand)
	}
	d.Taints = append(d.Taints,
		resourceapi.DeviceTaint{Key: wire.MonitorTaint, Effect: resourceapi.DeviceTaintEffectNoSchedule})
	return []resourceapi.Device{d}
}

// monitorsOf says whether the settings publish the monitor device of a GPU to new claims. With Auto they always publish
// that of a GPU without a device of its own, such as one that an administrator cut: node labels need its attributes.
func (b *builder) monitorsOf(g gpuState) sharing.Placements {
	asked := sharing.AllPlacements
	if b.o.Sharing != nil {
		asked = b.o.Sharing.Monitors(g.gpu)
	}
	whole := len(g.entries) > 0 && g.entries[0].device.Kind == gpu.KindGPU
	if asked == sharing.NoPlacement || whole {
		return asked
	}
	return sharing.AllPlacements
}

// source returns the data behind the attributes of a GPU's device.
func (b *builder) source(g gpu.GPU, d gpu.Device) attributeSource {
	return attributeSource{device: d, gpu: g, driver: b.driver, machine: b.machine, group: b.labels[g.PCIAddress]}
}

func (b *builder) device(s attributeSource) resourceapi.Device {
	d := resourceapi.Device{Name: s.device.Name(),
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}}
	for _, a := range attributes {
		if !slices.Contains(a.Devices, s.device.Kind) {
			continue
		}
		value, note := a.value(s)
		if note != "" && s.device.Kind == gpu.KindGPU { // The GPU's other devices have the same notes.
			b.warn(d.Name, "", "attribute %s: %s", a.Name, note)
		}
		if value == nil && slices.Contains(a.Always, s.device.Kind) {
			value = a.unknown()
		}
		if value != nil {
			d.Attributes[resourceapi.QualifiedName(a.Name)] = *value
		}
	}
	for _, c := range capacities {
		q := c.quantity(s)
		if q == nil && slices.Contains(c.Always, s.device.Kind) {
			q, c.policy = amount(0), nil
		}
		if q != nil && slices.Contains(c.Devices, s.device.Kind) {
			if d.Capacity == nil {
				d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{}
			}
			d.Capacity[resourceapi.QualifiedName(c.Name)] = resourceapi.DeviceCapacity{Value: *q,
				RequestPolicy: c.requestPolicy(s)}
		}
	}
	if s.offer != nil {
		d.AllowMultipleAllocations = new(true)
	}
	fit(&d)
	return d
}

// offer sets the shares of a GPU or of one of its partitions, if it has any now or later. The state is NoDemand if they
// end: without it, the scheduler could forget a share that it allocated at that moment. So a server without taints has
// them always.
func (b *builder) offer(s *attributeSource) State {
	if !b.o.SharedDevices && !b.o.HeldShares || b.o.Sharing == nil {
		return ""
	}
	var standing v1beta1.Strategy
	share := false
	for _, h := range b.o.Held {
		if h.Device == s.device {
			standing, share = cmp.Or(h.Shared, standing), share || h.Share
		}
	}
	o, ok := b.o.Sharing.Offer(s.gpu, s.device.Profile, standing)
	asked := sharing.AllPlacements
	if b.o.Taints && !share {
		asked = b.o.Sharing.Shares(b.administered(s.gpu), s.device.Profile)
	}
	switch {
	case !b.o.SharedDevices || !ok:
		if share && o.MaxShares > 0 {
			s.offer = &o
		}
	case asked == sharing.LaterPlacements:
		s.later = &o
	case asked == sharing.EndingPlacements:
		s.offer = &o
		return NoDemand
	default:
		s.offer = &o
	}
	return ""
}

func sortedKeys[K ~string, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
