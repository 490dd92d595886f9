// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"maps"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
)

// The attributes of a GPU or partition that claims cannot share until an object asks for shares. A device that can be
// shared, or never, has neither.
const maxShares, shareIsolation resourceapi.QualifiedName = "maxShares", "shareIsolation"

// Shareable returns the device as its node publishes it once an object asks for shares. ok is false for other devices,
// also for those that claims can share already.
func Shareable(d resourceapi.Device) (out resourceapi.Device, ok bool) {
	most, isolation := d.Attributes[maxShares].IntValue, d.Attributes[shareIsolation].StringValue
	memory := d.Capacity["memory"]
	has := memory.Value.Value()
	if most == nil || *most <= 0 || isolation == nil || has <= 0 || d.AllowMultipleAllocations != nil {
		return d, false
	}
	s := attributeSource{
		device: gpu.Device{Kind: gpu.KindGPU}, gpu: gpu.GPU{MemoryBytes: uint64(has)},
		offer: &sharing.Offer{Memory: uint64(has) / sharing.Step * sharing.Step, MaxShares: int(*most)},
	}
	out = d
	out.AllowMultipleAllocations = new(true)
	out.Attributes, out.Capacity = maps.Clone(d.Attributes), maps.Clone(d.Capacity)
	delete(out.Attributes, maxShares)
	delete(out.Attributes, shareIsolation)
	out.Attributes["isolation"] = resourceapi.DeviceAttribute{StringValue: isolation}
	for _, c := range capacities {
		name := resourceapi.QualifiedName(c.Name)
		one, published := out.Capacity[name]
		if !published && c.policy == nil {
			continue
		}
		if !published {
			one.Value = *c.quantity(s)
		}
		one.RequestPolicy = c.requestPolicy(s)
		out.Capacity[name] = one
	}
	return out, true
}
