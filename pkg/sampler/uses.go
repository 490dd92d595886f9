// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package sampler

import (
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/plan"
)

// Use is a claim's device with the measurements of the GPU or partition.
type Use struct {
	plan.Device
	Measured Device
	// Model is that of the board.
	Model string
	// Alone means that no other claim uses the GPU or partition, so that its measurements are those of the claim.
	Alone bool
}

// Uses returns the measured devices of plans, by the positions of plan and device. Devices with admin access are not in
// use.
func Uses(s Snapshot, plans []plan.Plan) map[[2]int]Use {
	measured, models, claims := map[string]Device{}, map[string]string{}, map[string]int{}
	for _, g := range s.GPUs {
		measured[g.UUID], models[g.UUID] = g.Device, g.Model
		for _, p := range g.Partitions {
			measured[p.UUID] = p
		}
	}
	out := map[[2]int]Use{}
	for n, p := range plans {
		for i, d := range p.Devices {
			uuid := d.UUID
			if d.Kind == gpu.KindMIG {
				uuid = d.Partition.UUID
			}
			m, ok := measured[uuid]
			if ok && !d.Admin {
				claims[uuid]++
				out[[2]int{n, i}] = Use{Device: d, Measured: m, Model: models[d.UUID]}
			}
		}
	}
	for at, u := range out {
		u.Alone = claims[u.Measured.UUID] == 1
		out[at] = u
	}
	return out
}
