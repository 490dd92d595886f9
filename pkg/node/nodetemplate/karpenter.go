// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nodetemplate

import (
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/gpu"
)

// Karpenter has the fields of DynamicResources in Karpenter's package `cloudprovider`, v1.14.1. That type has no encoding,
// so a provider copies the values.
type Karpenter struct {
	ResourceSliceTemplates []karpenterSlice   `json:"resourceSliceTemplates"`
	AttributeBindings      []karpenterBinding `json:"attributeBindings,omitempty"`
}

type karpenterSlice struct {
	Driver         string                   `json:"driver"`
	Pool           karpenterPool            `json:"pool"`
	Devices        []karpenterDevice        `json:"devices,omitempty"`
	SharedCounters []resourceapi.CounterSet `json:"sharedCounters,omitempty"`
}

type karpenterPool struct {
	Name string `json:"name"`
}

type karpenterDevice struct {
	Name                     string                                                    `json:"name"`
	Attributes               map[resourceapi.QualifiedName]resourceapi.DeviceAttribute `json:"attributes,omitempty"`
	Capacity                 map[resourceapi.QualifiedName]resourceapi.DeviceCapacity  `json:"capacity,omitempty"`
	AllowMultipleAllocations bool                                                      `json:"allowMultipleAllocations,omitempty"`
	ConsumesCounters         []resourceapi.DeviceCounterConsumption                    `json:"consumesCounters,omitempty"`
}

// karpenterBinding says that devices have the same value of an attribute, which is unknown before the node runs.
type karpenterBinding struct {
	Devices   []karpenterDeviceID       `json:"devices"`
	Attribute resourceapi.QualifiedName `json:"attribute"`
}

type karpenterDeviceID struct {
	Driver string `json:"driver"`
	Pool   string `json:"pool"`
	Device string `json:"device"`
}

// Karpenter returns the template for a provider of Karpenter. UUIDs are left out: bindings say which partitions have the
// same parentUUID. Monitor devices are left out too, because Karpenter knows no taints and would use them as GPUs.
func (t Template) Karpenter() Karpenter {
	var out Karpenter
	parents := map[string][]karpenterDeviceID{}
	driver := ""
	for _, s := range t.Slices {
		driver = s.Spec.Driver
		slice := karpenterSlice{Driver: driver, Pool: karpenterPool{s.Spec.Pool.Name}, SharedCounters: s.Spec.SharedCounters}
		for _, d := range s.Spec.Devices {
			if text(d, "type") == string(gpu.KindMonitor) {
				continue
			}
			if parent := text(d, "parentUUID"); parent != "" {
				parents[parent] = append(parents[parent], karpenterDeviceID{driver, s.Spec.Pool.Name, d.Name})
			}
			attributes := maps.Clone(d.Attributes)
			delete(attributes, "uuid")
			delete(attributes, "parentUUID")
			slice.Devices = append(slice.Devices, karpenterDevice{
				Name: d.Name, Attributes: attributes, Capacity: d.Capacity, ConsumesCounters: d.ConsumesCounters,
				AllowMultipleAllocations: ptr.Deref(d.AllowMultipleAllocations, false),
			})
		}
		if len(slice.Devices) > 0 || len(slice.SharedCounters) > 0 {
			out.ResourceSliceTemplates = append(out.ResourceSliceTemplates, slice)
		}
	}
	for _, parent := range slices.Sorted(maps.Keys(parents)) {
		if len(parents[parent]) > 1 {
			out.AttributeBindings = append(out.AttributeBindings, karpenterBinding{
				Devices: parents[parent], Attribute: resourceapi.QualifiedName(driver + "/parentUUID"),
			})
		}
	}
	return out
}
