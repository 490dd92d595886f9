// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package layout computes MIG geometry: the placements that exclude each other, and the order in which to offer them.
//
// It uses only the profiles that NVML reports for a GPU, whatever their number, names and sizes. A GPU has as many
// memory slices as its placements cover, and as many engines as the profile with the most of them.
//
// Traps. NVML can report implausible profiles: Check them before other calls. Memory slices alone do not decide which
// partitions fit, because some profiles need an engine that the GPU has once. Compute slices do not either: a 3g takes
// as many memory slices as a 4g.
package layout

import "gpu-dra-driver/pkg/gpu"

// Choice is a profile at one of its placements.
type Choice struct {
	Profile   gpu.Profile
	Placement gpu.Placement
}

// Slices returns the number of memory slices of the GPU.
func Slices(profiles []gpu.Profile) int {
	n := 0
	for _, p := range profiles {
		for _, at := range p.Placements {
			n = max(n, at.End())
		}
	}
	return n
}

// startingAt returns the choices with this start.
func startingAt(profiles []gpu.Profile, start int) []Choice {
	var out []Choice
	for _, p := range profiles {
		for _, at := range p.Placements {
			if at.Start == start {
				out = append(out, Choice{p, at})
			}
		}
	}
	return out
}
