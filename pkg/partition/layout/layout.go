// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

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
