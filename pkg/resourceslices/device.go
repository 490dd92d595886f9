// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/sharing"
)

// Keys of the taints. They do not follow the driver's name: tolerations are written once, in classes and claims.
const (
	// MonitorTaint is on every monitor device, so that only who asks to watch gets one.
	MonitorTaint = "gpu.nvidia.com/monitor"
	// UnhealthyTaint is on a published GPU that is not for new claims; its value is the State.
	UnhealthyTaint = "gpu.nvidia.com/unhealthy"
)

// unit is a GPU with the devices to publish of it, its monitor aside.
type unit struct {
	candidate
	items []item
}

func (b *builder) units(s gpu.Snapshot, conditions map[string]Condition) []unit {
	var out []unit
	for _, c := range b.candidates(s, conditions) {
		out = append(out, unit{candidate: c, items: b.items(c)})
	}
	return out
}

// devices are those of one GPU, the whole and the parts, and the counters that keep them apart, if they overlap.
func (b *builder) devices(c unit, bonds bonds) (whole, parts []resourceapi.Device, set *resourceapi.CounterSet) {
	var consumed [][]resourceapi.DeviceCounterConsumption
	if b.o.Counters && slices.ContainsFunc(c.items, func(i item) bool { return i.device.Kind == gpu.KindMIG }) {
		set, consumed = b.geometry(c.gpu.MIG).counters(c.gpu, c.items)
	}
	for n, i := range c.items {
		d := b.device(subject{
			device: i.device, kind: i.device.Kind, gpu: c.gpu, driver: b.driver, profile: b.profile(c.gpu, i), uuid: i.uuid,
			offer: b.offer(c.gpu, i), group: b.labels[c.gpu.PCIAddress],
		})
		if set != nil {
			d.ConsumesCounters = consumed[n]
		}
		d.ConsumesCounters = append(d.ConsumesCounters, bonds.consumed(c.gpu.PCIAddress, i)...)
		b.taint(&d, i.state)
		if i.held && i.state != "" {
			b.warn(d.Name, i.state, "%s of GPU at %s stays published for the claim that holds it, and is not for others: %s",
				i.what(), c.gpu.PCIAddress, i.why)
		}
		if i.device.Kind == gpu.KindGPU {
			whole = append(whole, d)
		} else {
			parts = append(parts, d)
		}
	}
	if c.sick.State != "" && !c.whole {
		switch {
		case c.sick.State == Withheld && b.o.Taints:
			b.warn(c.name(), c.sick.State, "GPU at %s is not for new claims: %s", c.gpu.PCIAddress, c.sick.Message)
		case c.sick.State != Absent:
			b.warn(c.name(), c.sick.State, "GPU at %s is not published: %s", c.gpu.PCIAddress, c.sick.Message)
		}
	}
	return whole, parts, set
}

func (b *builder) taint(d *resourceapi.Device, state State) {
	if state != "" && b.o.Taints {
		d.Taints = []resourceapi.DeviceTaint{{Key: UnhealthyTaint, Value: string(state), Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}
}

// monitors are the device to watch a GPU by, or none.
func (b *builder) monitors(c unit) []resourceapi.Device {
	if b.o.Taints && b.o.SharedDevices && c.watchable() {
		return []resourceapi.Device{b.monitor(c.gpu)}
	}
	return nil
}

// profile is what is known of an item's engines: of a GPU, what the partition that takes all of it would have.
func (b *builder) profile(g gpu.GPU, i item) *gpu.Profile {
	if i.device.Kind == gpu.KindMIG {
		return &i.profile
	}
	return b.geometry(g.MIG).all
}

// watchable says that there is a GPU to watch, or a claim that does.
func (c candidate) watchable() bool {
	switch c.sick.State {
	case Lost, Unreadable, Absent:
		return c.monitor
	}
	return true
}

func (b *builder) device(s subject) resourceapi.Device {
	d := resourceapi.Device{Name: s.device.Name()}
	for _, a := range attributes {
		if !slices.Contains(a.Devices, s.kind) {
			continue
		}
		value, note := a.value(s)
		if note != "" && s.kind == gpu.KindGPU { // The same of its other devices.
			b.warn(d.Name, "", "attribute %s: %s", a.Name, note)
		}
		if value != nil {
			if d.Attributes == nil {
				d.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
			}
			d.Attributes[resourceapi.QualifiedName(a.Name)] = *value
		}
	}
	for _, c := range capacities {
		if !slices.Contains(c.Devices, s.kind) {
			continue
		}
		if q := c.quantity(s); q != nil {
			if d.Capacity == nil {
				d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{}
			}
			d.Capacity[resourceapi.QualifiedName(c.Name)] = resourceapi.DeviceCapacity{Value: *q, RequestPolicy: c.requestPolicy(s)}
		}
	}
	if s.offer != nil {
		shared := true
		d.AllowMultipleAllocations = &shared
	}
	return d
}

// offer is what can be had of a device in shares, nil where it is for one claim.
func (b *builder) offer(g gpu.GPU, i item) *sharing.Offer {
	if !b.o.SharedDevices || b.o.Offer == nil {
		return nil
	}
	o, ok := b.o.Offer(g, i.device.Profile)
	if !ok {
		return nil
	}
	return &o
}

func (b *builder) monitor(g gpu.GPU) resourceapi.Device {
	d := b.device(subject{
		device: gpu.Device{Kind: gpu.KindMonitor, PCIAddress: g.PCIAddress}, kind: gpu.KindMonitor, gpu: g, driver: b.driver, uuid: g.UUID,
	})
	shared := true
	d.AllowMultipleAllocations = &shared
	d.Taints = []resourceapi.DeviceTaint{{Key: MonitorTaint, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	return d
}

func sortedKeys[K ~string, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
