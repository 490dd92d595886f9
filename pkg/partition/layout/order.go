// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"cmp"
	"slices"

	"gpu-dra-driver/pkg/gpu"
)

// Order is every choice in the order to offer it to a scheduler that takes the first that is free.
//
// Profiles come from the smallest to the largest, so that who asks for any partition gets no more than needed. Of one
// profile, that placement comes next that costs the fewest of the largest placements still possible, then of the second
// largest, and so on, given that those before it are taken; among equals the one with the highest start.
func Order(profiles []gpu.Profile) []Choice {
	profiles = slices.Clone(profiles)
	slices.SortFunc(profiles, bySize)
	out := make([]Choice, 0, len(profiles))
	for _, p := range profiles {
		left := slices.Clone(p.Placements)
		var taken []gpu.Placement
		for len(left) > 0 {
			best := 0
			for i := range left {
				c := slices.Compare(cost(profiles, taken, left[i]), cost(profiles, taken, left[best]))
				if c < 0 || c == 0 && left[i].Start > left[best].Start {
					best = i
				}
			}
			out = append(out, Choice{p, left[best]})
			taken = append(taken, left[best])
			left = slices.Delete(left, best, best+1)
		}
	}
	return out
}

// cost is how many placements of each profile, the largest first, a placement makes impossible that others have left.
// Profiles are in order of size.
func cost(profiles []gpu.Profile, taken []gpu.Placement, at gpu.Placement) []int {
	out := make([]int, 0, len(profiles))
	for _, p := range slices.Backward(profiles) {
		n := 0
		for _, other := range p.Placements {
			if other.Overlaps(at) && free(taken, other) {
				n++
			}
		}
		out = append(out, n)
	}
	return out
}

// free says that a placement overlaps none of others.
func free(others []gpu.Placement, at gpu.Placement) bool {
	return !slices.ContainsFunc(others, at.Overlaps)
}

// bySize compares profiles: by the place they take, then by what they bring, engines last.
func bySize(a, b gpu.Profile) int {
	return cmp.Or(
		cmp.Compare(size(a), size(b)), cmp.Compare(a.Slices, b.Slices), cmp.Compare(a.MemoryBytes, b.MemoryBytes),
		cmp.Compare(media(a), media(b)), cmp.Compare(a.Name, b.Name),
	)
}

// size is the number of memory slices a profile takes.
func size(p gpu.Profile) int {
	if len(p.Placements) == 0 {
		return 0
	}
	return p.Placements[0].Size
}

func media(p gpu.Profile) int { return p.Decoders + p.Encoders + p.JPEGEngines + p.OFAEngines }
