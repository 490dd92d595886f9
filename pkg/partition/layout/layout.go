// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package layout is the geometry of MIG: which placements of one GPU exclude each other, and in which order to offer them.
//
// Everything follows from the profiles that NVML reports of that GPU, whatever their number, names and sizes: a board has
// as many memory slices as its placements reach, and as many engines as the profile with the most of them.
//
// Traps. NVML is not always right, so profiles go through Check first; the other functions take what passed it. Memory
// slices alone do not say what fits: some profiles take an engine that the GPU has once. Compute slices are no measure of
// place: a 3g takes as many memory slices as a 4g.
package layout

import "gpu-dra-driver/pkg/gpu"

// Choice is a profile at one of its placements.
type Choice struct {
	Profile   gpu.Profile
	Placement gpu.Placement
}

// Slices is the number of memory slices of the GPU.
func Slices(profiles []gpu.Profile) int {
	n := 0
	for _, p := range profiles {
		for _, at := range p.Placements {
			n = max(n, at.End())
		}
	}
	return n
}

// startingAt gives every choice with a start.
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
