// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/wire"
)

// taintCordoned taints a device if one of its GPUs is cordoned.
func (b *builder) taintCordoned(d *resourceapi.Device, gpus ...gpuState) {
	if effect := b.o.Cordons.Effect(addresses(gpus)...); effect != "" && b.o.Taints {
		d.Taints = append(d.Taints, resourceapi.DeviceTaint{Key: wire.CordonTaint, Effect: effect})
	}
}

func addresses(gpus []gpuState) (out []string) {
	for _, g := range gpus {
		out = append(out, g.gpu.PCIAddress)
	}
	return out
}

// withdrawn reports whether a GPU's devices are not published to new claims because it is cordoned, and the API server
// drops taints.
func (b *builder) withdrawn(g gpuState) bool {
	return !b.o.Taints && b.o.Cordons.Effect(g.gpu.PCIAddress) != ""
}
