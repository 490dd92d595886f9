// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/resourceslices"
)

// sample is a device to try a selector on.
type sample struct {
	// what names it to a person.
	what string
	candidate
}

// samples are devices of which some cluster has one: another driver's, each kind of this driver's with nothing but what
// every device of the kind has, and those of this cluster without what others of their model may lack.
func (w *World) samples() []sample {
	kinds := []gpu.Kind{gpu.KindGPU, gpu.KindMIG, gpu.KindGroup, gpu.KindMonitor}
	out := []sample{{"another driver", candidate{nil, 0, 1 + len(kinds), cel.Device{Driver: "other.example.com"}}}}
	for i, kind := range kinds {
		out = append(out, sample{"this driver of type " + string(kind), candidate{nil, 1 + i, 1 + len(kinds), w.least(kind)}})
	}
	seen := map[string]bool{}
	for _, p := range w.Pools {
		for _, slice := range p.Slices {
			for i, kind := range slice.Shape.Kinds {
				what := "type " + string(kind.Type) + " and model " + kind.Product + " " + kind.Profile
				if !seen[what] {
					seen[what] = true
					whole := w.made(slice.Shape, i)
					out = append(out, sample{what, whole}, sample{what + " that lacks what not every one has", bare(whole, kind.Type)})
				}
			}
		}
	}
	return out
}

// bare is a device without what others of its kind may lack.
func bare(c candidate, kind gpu.Kind) candidate {
	c.index += c.of / 2
	c.device.Attributes, c.device.Capacity = maps.Clone(c.device.Attributes), maps.Clone(c.device.Capacity)
	for _, e := range resourceslices.Catalogue() {
		if !slices.Contains(e.Always, kind) {
			delete(c.device.Attributes, resourceapi.QualifiedName(e.Name))
			delete(c.device.Capacity, resourceapi.QualifiedName(e.Name))
		}
	}
	return c
}

// least is a device with what every one of the kind has.
func (w *World) least(kind gpu.Kind) cel.Device {
	d := cel.Device{
		Driver: w.Driver, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{},
	}
	for _, e := range resourceslices.Catalogue() {
		if !slices.Contains(e.Always, kind) {
			continue
		}
		name := resourceapi.QualifiedName(e.Name)
		text, number, truth, version := "none", int64(0), false, "0.0.0"
		switch {
		case e.Capacity:
			d.Capacity[name] = resourceapi.DeviceCapacity{Value: *resource.NewQuantity(0, resource.DecimalSI)}
		case e.Name == "type":
			text = string(kind)
			d.Attributes[name] = resourceapi.DeviceAttribute{StringValue: &text}
		case e.Type == "int":
			d.Attributes[name] = resourceapi.DeviceAttribute{IntValue: &number}
		case e.Type == "bool":
			d.Attributes[name] = resourceapi.DeviceAttribute{BoolValue: &truth}
		case e.Type == "version":
			d.Attributes[name] = resourceapi.DeviceAttribute{VersionValue: &version}
		default:
			d.Attributes[name] = resourceapi.DeviceAttribute{StringValue: &text}
		}
	}
	return d
}
