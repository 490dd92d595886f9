// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/wire"
)

// taintReserved taints a device if one of its GPUs is reserved.
func (b *builder) taintReserved(d *resourceapi.Device, gpus ...gpuState) {
	if b.o.Taints && slices.ContainsFunc(gpus, func(g gpuState) bool { return b.o.Reserved.Has(g.gpu.PCIAddress) }) {
		d.Taints = append(d.Taints,
			resourceapi.DeviceTaint{Key: wire.ReservedTaint, Effect: resourceapi.DeviceTaintEffectNoSchedule})
	}
}
