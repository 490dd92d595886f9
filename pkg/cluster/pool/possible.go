// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
)

// With adds devices of some kinds that the node could publish and does not: an NVLink group of each size that its GPUs
// form, and their monitor devices. Nodes with the setting Auto publish them only while an object asks for them, and
// classes and reviews must know them before.
func (p Pool) With(kinds ...gpu.Kind) Pool {
	published := map[Kind]bool{}
	for _, kind := range p.Devices() {
		published[alike(kind)] = true
	}
	all := slices.Clone(p.Slices)
	for _, s := range p.Slices {
		for _, possible := range s.Shape.possible {
			if kind := alike(possible.Kinds[0]); slices.Contains(kinds, kind.Type) && !published[kind] {
				published[kind] = true
				all = append(all, &Slice{
					ObjectMeta: s.ObjectMeta,
					Node:       s.Node,
					Pool:       s.Pool,
					Shape:      possible,
					Possible:   true,
				})
			}
		}
	}
	p.Slices = all
	return p
}

// Without returns the pool without some GPUs, as if the node lacked them: also without their partitions and monitor
// devices, and without the groups that they are in. All that is gone must be named at once: the pool that is left does
// not know which of its GPUs stood beside those, and so which form a group.
func (p Pool) Without(gone map[string]bool) Pool {
	of := func(d resourceapi.Device) bool {
		named, err := gpu.ParseName(d.Name)
		return err == nil && gone[gpu.NameOf(named.PCIAddress)] ||
			slices.ContainsFunc(GPUsOf(d), func(name string) bool { return gone[name] })
	}
	out := p
	out.Slices = nil
	for _, s := range p.Slices {
		if s.Possible {
			continue
		}
		rest := s.ResourceSlice()
		rest.Spec.Devices = slices.DeleteFunc(slices.Clone(rest.Spec.Devices), of)
		left := Unshared(rest)
		left.Shape.possible = slices.DeleteFunc(left.Shape.possible,
			func(s *Shape) bool { return s.Kinds[0].Type == gpu.KindGroup })
		left.Shape.possible = append(possibleGroups(s.Shape, gone), left.Shape.possible...)
		out.Slices = append(out.Slices, left)
	}
	return out
}

// alike returns what groups of one size have in common, or monitor devices.
func alike(k Kind) Kind { return Kind{Type: k.Type, GPUs: k.GPUs} }

// possible returns the shapes of groups and of monitor devices that GPUs could have.
func possible(of *Shape) []*Shape {
	out := possibleGroups(of, nil)
	var monitors []resourceapi.Device
	for i, d := range of.Spec.Devices {
		if of.Kinds[i].Type == gpu.KindGPU {
			monitors = append(monitors, monitorOf(d))
		}
	}
	if len(monitors) > 0 {
		out = append(out, shapeOf(of.Spec.Driver, monitors...))
	}
	return out
}

func shapeOf(driver string, devices ...resourceapi.Device) *Shape {
	s := &Shape{Spec: resourceapi.ResourceSliceSpec{Driver: driver, Devices: devices}}
	for _, d := range devices {
		s.Kinds = append(s.Kinds, KindOf(d))
	}
	return s
}

// monitorOf returns the monitor device of a GPU, with what both have in common.
func monitorOf(d resourceapi.Device) resourceapi.Device {
	named, _ := gpu.ParseName(d.Name)
	named.Kind = gpu.KindMonitor
	out := resourceapi.Device{
		Name:                     named.Name(),
		Attributes:               map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{},
		Capacity:                 map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{},
		AllowMultipleAllocations: ptr.To(true),
		Taints: []resourceapi.DeviceTaint{
			{Key: wire.MonitorTaint, Effect: resourceapi.DeviceTaintEffectNoSchedule},
		},
	}
	for _, e := range resourceslices.Catalogue() {
		name := resourceapi.QualifiedName(e.Name)
		if !slices.Contains(e.Devices, gpu.KindMonitor) {
			continue
		}
		if a, ok := d.Attributes[name]; ok && !e.Capacity {
			out.Attributes[name] = a
		}
		if c, ok := d.Capacity[name]; ok && e.Capacity { // A claim of a monitor device consumes nothing.
			none := resource.NewQuantity(0, resource.DecimalSI)
			c.RequestPolicy = &resourceapi.CapacityRequestPolicy{Default: none,
				ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: none}}
			out.Capacity[name] = c
		}
	}
	out.Attributes["type"] = resourceapi.DeviceAttribute{StringValue: ptr.To(string(gpu.KindMonitor))}
	out.Attributes["isolation"] = resourceapi.DeviceAttribute{StringValue: ptr.To("none")}
	return out
}

// possibleGroups returns a shape for each size of groups that GPUs form, with one group that has the GPUs' common
// attributes. Groups have 2, 4, 8, … GPUs (see pkg/gpu/topology), at most as many as the GPU's largest group. Those
// with one of the gone GPUs are left out.
func possibleGroups(of *Shape, gone map[string]bool) (out []*Shape) {
	members := map[string][]resourceapi.Device{} // By largest group.
	var order []string
	for i, d := range of.Spec.Devices {
		if group := Text(d, "nvlinkGroup"); of.Kinds[i].Type == gpu.KindGPU && group != "" {
			if members[group] == nil {
				order = append(order, group)
			}
			members[group] = append(members[group], d)
		}
	}
	made := map[int]bool{}
	for _, group := range order {
		largest, err := gpu.ParseName(group)
		for size := 2; err == nil && size <= min(largest.Size, len(members[group])); size *= 2 {
			for some := range slices.Chunk(members[group], size) {
				lacks := slices.ContainsFunc(some, func(d resourceapi.Device) bool { return gone[d.Name] })
				if !made[size] && len(some) == size && !lacks {
					made[size] = true
					out = append(out, shapeOf(of.Spec.Driver, groupOf(some)))
				}
			}
		}
	}
	return out
}

func groupOf(members []resourceapi.Device) resourceapi.Device {
	size := int64(len(members))
	first, _ := gpu.ParseName(members[0].Name)
	out := resourceapi.Device{
		Name:       gpu.Device{Kind: gpu.KindGroup, Size: len(members), PCIAddress: first.PCIAddress}.Name(),
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{},
		Capacity:   map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{},
	}
	for _, e := range resourceslices.Catalogue() {
		name := resourceapi.QualifiedName(e.Name)
		if !slices.Contains(e.Devices, gpu.KindGroup) {
			continue
		}
		if capacity, ok := members[0].Capacity[name]; ok && e.Capacity {
			total := resource.NewQuantity(capacity.Value.Value()*size, capacity.Value.Format)
			out.Capacity[name] = resourceapi.DeviceCapacity{Value: *total}
		}
		a, ok := members[0].Attributes[name]
		if ok && !e.Capacity && !slices.ContainsFunc(members, func(m resourceapi.Device) bool {
			return !equality.Semantic.DeepEqual(m.Attributes[name], a)
		}) {
			out.Attributes[name] = a
		}
	}
	out.Attributes["type"] = resourceapi.DeviceAttribute{StringValue: ptr.To(string(gpu.KindGroup))}
	out.Attributes["gpuCount"] = resourceapi.DeviceAttribute{IntValue: &size}
	return out
}
