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
	what   string
	device cel.Device
}

// samples are devices of which some cluster has one: another driver's, each kind of this driver's with nothing but what
// every device of the kind has, and those of this cluster without what others of their model may lack.
func (w *World) samples() []sample {
	out := []sample{{"another driver", cel.Device{Driver: "other.example.com"}}}
	for _, kind := range []gpu.Kind{gpu.KindGPU, gpu.KindMIG, gpu.KindGroup, gpu.KindMonitor} {
		out = append(out, sample{"this driver of type " + string(kind), w.least(kind)})
	}
	seen := map[string]bool{}
	for _, p := range w.Pools {
		for d, kind := range p.Devices() {
			what := "type " + string(kind.Type) + " and model " + kind.Product + " " + kind.Profile
			if seen[what] {
				continue
			}
			seen[what] = true
			whole := cel.Device{Driver: w.Driver, Attributes: d.Attributes, Capacity: d.Capacity, AllowMultipleAllocations: d.AllowMultipleAllocations}
			least := whole
			least.Attributes, least.Capacity = maps.Clone(d.Attributes), maps.Clone(d.Capacity)
			for _, e := range resourceslices.Catalogue() {
				if !slices.Contains(e.Always, kind.Type) {
					delete(least.Attributes, resourceapi.QualifiedName(e.Name))
					delete(least.Capacity, resourceapi.QualifiedName(e.Name))
				}
			}
			out = append(out, sample{what, whole}, sample{what + " that lacks what not every one has", least})
		}
	}
	return out
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
