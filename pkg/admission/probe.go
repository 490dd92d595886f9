// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/resourceslices"
)

// probe is a device to evaluate selectors on.
type probe struct {
	description string
	candidate
	// invented means that the cluster has no such device: its values are examples, and only missing names count.
	invented bool
}

// probeDevices returns devices that can exist in some cluster: one of another driver, and one of each kind with only
// the attributes of every such device. It also adds each kind of device of this cluster twice: as published, and
// without the attributes that not every device of that kind has.
func (v *ClusterView) probeDevices() []probe {
	kinds := []gpu.Kind{gpu.KindGPU, gpu.KindMIG, gpu.KindGroup, gpu.KindMonitor}
	out := []probe{{"another driver", candidate{nil, 0, 1 + len(kinds), cel.Device{Driver: "other.example.com"}}, true}}
	for i, kind := range kinds {
		out = append(out, probe{"this driver of type " + string(kind), candidate{nil, 1 + i, 1 + len(kinds), v.minimal(kind)}, true})
	}
	seen := map[string]bool{}
	for _, p := range v.pools {
		for _, slice := range p.Slices {
			for i, kind := range slice.Shape.Kinds {
				description := strings.TrimSpace("type " + string(kind.Type) + " and model " + kind.Product + " " + kind.Profile)
				if !seen[description] {
					seen[description] = true
					whole := v.published(slice.Shape, i)
					out = append(out, probe{description, whole, false}, probe{description + " without its optional attributes", stripped(whole, kind.Type), true})
				}
			}
		}
	}
	return out
}

// stripped removes the attributes and capacities that other devices of the kind may lack.
func stripped(c candidate, kind gpu.Kind) candidate {
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

// examples are realistic values, so that string functions of selectors work on them.
var examples = map[string]string{
	"productName": "NVIDIA H100 80GB HBM3", "architecture": "Hopper", "profile": "1g.10gb", "driverVersionRaw": "580.126.09",
	"uuid": "GPU-00000000-0000-0000-0000-000000000000", "parentUUID": "GPU-00000000-0000-0000-0000-000000000000",
	"driverVersion": "580.126.9", "cudaDriverVersion": "13.0.0", "cudaComputeCapability": "9.0.0", "isolation": "hardware",
	string(deviceattribute.StandardDeviceAttributePCIBusID): "0000:00:00.0",
}

// minimal returns a device with only the attributes and capacities of every device of the kind.
func (v *ClusterView) minimal(kind gpu.Kind) cel.Device {
	d := cel.Device{
		Driver: v.driver, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{},
	}
	for _, e := range resourceslices.Catalogue() {
		if !slices.Contains(e.Always, kind) {
			continue
		}
		name := resourceapi.QualifiedName(e.Name)
		text, number, truth := examples[e.Name], int64(1), false
		if e.Name == "type" {
			text = string(kind)
		}
		switch {
		case e.Capacity:
			d.Capacity[name] = resourceapi.DeviceCapacity{Value: *resource.NewQuantity(10<<30, resource.BinarySI)}
		case e.Type == "int":
			d.Attributes[name] = resourceapi.DeviceAttribute{IntValue: &number}
		case e.Type == "bool":
			d.Attributes[name] = resourceapi.DeviceAttribute{BoolValue: &truth}
		case e.Type == "version":
			d.Attributes[name] = resourceapi.DeviceAttribute{VersionValue: &text}
		default:
			d.Attributes[name] = resourceapi.DeviceAttribute{StringValue: &text}
		}
	}
	return d
}
