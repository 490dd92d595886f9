// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/gpu"
)

// Keys of the taints. They do not follow the driver's name: tolerations are written once, in classes and claims.
const (
	// MonitorTaint is on every monitor device, so that only who asks to watch gets one.
	MonitorTaint = "gpu.nvidia.com/monitor"
	// UnhealthyTaint is on a published GPU that is not for new claims; its value is the State.
	UnhealthyTaint = "gpu.nvidia.com/unhealthy"
)

// devices are those of one GPU. It is published whole only while it is well, or is held, or is tainted.
func (b *builder) devices(c candidate) []resourceapi.Device {
	var out []resourceapi.Device
	name := gpu.Device{Kind: gpu.KindGPU, PCIAddress: c.gpu.PCIAddress}.Name()
	switch {
	case c.sick.State == "":
		out = append(out, b.device(gpu.KindGPU, c.gpu))
	case c.held[gpu.KindGPU]:
		// Held: withdrawing it would hand what it stands for out twice.
		out = append(out, b.sickDevice(c))
		b.warn(name, c.sick.State, "GPU at %s stays published for the claim that holds it, and is not for others: %s",
			c.gpu.PCIAddress, c.sick.Message)
	case c.sick.State == Withheld && b.o.Taints:
		out = append(out, b.sickDevice(c))
		b.warn(name, c.sick.State, "GPU at %s is not for new claims: %s", c.gpu.PCIAddress, c.sick.Message)
	case !c.only(gpu.KindMonitor):
		b.warn(name, c.sick.State, "GPU at %s is not published: %s", c.gpu.PCIAddress, c.sick.Message)
	}
	if b.o.Taints && b.o.SharedDevices && c.watchable() {
		out = append(out, b.monitor(c.gpu))
	}
	return out
}

// only says that the GPU is known for nothing but a held device of that kind.
func (c candidate) only(kind gpu.Kind) bool {
	return c.sick.State == Absent && c.held[kind] && len(c.held) == 1
}

// watchable says that there is a GPU to watch, or a claim that does.
func (c candidate) watchable() bool {
	switch c.sick.State {
	case Lost, Unreadable, Absent:
		return c.held[gpu.KindMonitor]
	}
	return true
}

func (b *builder) device(kind gpu.Kind, g gpu.GPU) resourceapi.Device {
	d := resourceapi.Device{Name: gpu.Device{Kind: kind, PCIAddress: g.PCIAddress}.Name()}
	for _, a := range attributes {
		if !slices.Contains(a.Devices, kind) {
			continue
		}
		value, note := a.value(subject{kind: kind, gpu: g, driver: b.driver})
		if note != "" {
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
		if !slices.Contains(c.Devices, kind) {
			continue
		}
		if q := c.quantity(g); q != nil {
			if d.Capacity == nil {
				d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{}
			}
			d.Capacity[resourceapi.QualifiedName(c.Name)] = resourceapi.DeviceCapacity{Value: *q}
		}
	}
	return d
}

func (b *builder) sickDevice(c candidate) resourceapi.Device {
	d := b.device(gpu.KindGPU, c.gpu)
	if b.o.Taints {
		d.Taints = []resourceapi.DeviceTaint{{
			Key: UnhealthyTaint, Value: string(c.sick.State), Effect: resourceapi.DeviceTaintEffectNoSchedule,
		}}
	}
	return d
}

func (b *builder) monitor(g gpu.GPU) resourceapi.Device {
	warned := len(b.warnings)
	d := b.device(gpu.KindMonitor, g)
	b.warnings = b.warnings[:warned] // said of the gpu device already
	shared := true
	d.AllowMultipleAllocations = &shared
	d.Taints = []resourceapi.DeviceTaint{{Key: MonitorTaint, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	return d
}

func sortedKeys[K ~string, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
