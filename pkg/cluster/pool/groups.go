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
)

// WithGroups adds an NVLink group of each size that the node's GPUs form and that it does not publish. Nodes with the
// setting Auto publish groups only while an object asks for them, and classes and reviews must know them before.
func (p Pool) WithGroups() Pool {
	published := map[int]bool{}
	for _, kind := range p.Devices() {
		published[kind.GPUs] = published[kind.GPUs] || kind.Type == gpu.KindGroup
	}
	all := slices.Clone(p.Slices)
	for _, s := range p.Slices {
		for _, possible := range s.Shape.groups {
			if size := possible.Kinds[0].GPUs; !published[size] {
				published[size] = true
				all = append(all, &Slice{ObjectMeta: s.ObjectMeta, Node: s.Node, Pool: s.Pool, Shape: possible, Possible: true})
			}
		}
	}
	p.Slices = all
	return p
}

// possibleGroups returns a shape for each size of groups that GPUs form, with one group that has the GPUs' common
// attributes. Groups have 2, 4, 8, … GPUs (see pkg/gpu/topology), at most as many as the GPU's largest group.
func possibleGroups(of *Shape) (out []*Shape) {
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
			if !made[size] {
				made[size] = true
				d := groupOf(members[group][:size])
				out = append(out, &Shape{Spec: resourceapi.ResourceSliceSpec{Driver: of.Spec.Driver, Devices: []resourceapi.Device{d}}, Kinds: []Kind{kindOf(d)}})
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
