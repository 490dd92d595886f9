// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"cmp"
	"slices"

	"gpu-dra-driver/pkg/gpu"
)

// Order returns every choice in the order for a scheduler that takes the first free one.
//
// Smaller profiles come first, so that a request for any partition gets no more than it needs. Within a profile,
// placements come first in regions that hold more partitions of the profile. Example: the upper half of a board holds
// three of the smallest profile, the lower half four. Small partitions then fill the lower half, and the upper half
// stays free for a large one. Next come placements that block fewer smaller profiles, then those that block fewer of
// the remaining larger placements.
func Order(profiles []gpu.Profile) []Choice {
	profiles = slices.Clone(profiles)
	slices.SortFunc(profiles, bySize)
	for i := range profiles {
		profiles[i].Placements = slices.SortedFunc(slices.Values(profiles[i].Placements), func(a, b gpu.Placement) int {
			return cmp.Compare(a.Start, b.Start)
		})
	}
	out := make([]Choice, 0, len(profiles))
	for _, p := range profiles {
		left := slices.Clone(p.Placements)
		rank := make(map[gpu.Placement][]int, len(left))
		for _, at := range left {
			rank[at] = append(room(profiles, p, at), within(profiles, at))
		}
		var taken []gpu.Placement
		for len(left) > 0 {
			best := slices.MinFunc(left, func(a, b gpu.Placement) int {
				return cmp.Or(slices.Compare(rank[a], rank[b]),
					slices.Compare(cost(profiles, taken, a), cost(profiles, taken, b)),
					cmp.Compare(a.Start, b.Start))
			})
			out, taken = append(out, Choice{p, best}), append(taken, best)
			left = slices.DeleteFunc(left, func(at gpu.Placement) bool { return at == best })
		}
	}
	return out
}

// room returns a rank of a placement: for each larger size, the largest first, the number of partitions of the profile
// that fit into the larger placement around it. Numbers are negative, so that more comes first.
func room(profiles []gpu.Profile, p gpu.Profile, at gpu.Placement) []int {
	var out []int
	last := -1
	for _, larger := range slices.Backward(profiles) {
		if size(larger) <= at.Size {
			break
		}
		fit := 0
		for _, region := range larger.Placements {
			if region.Start <= at.Start && at.End() <= region.End() {
				fit = max(fit, fitting(p.Placements, region))
			}
		}
		if size(larger) == last {
			out[len(out)-1] = min(out[len(out)-1], -fit)
			continue
		}
		out, last = append(out, -fit), size(larger)
	}
	return out
}

// fitting counts the disjoint placements within a region. All have one size and are in order of their start.
func fitting(placements []gpu.Placement, region gpu.Placement) int {
	n, end := 0, region.Start
	for _, at := range placements {
		if at.Start >= end && at.End() <= region.End() {
			n, end = n+1, at.End()
		}
	}
	return n
}

// within counts the smaller placements inside a placement.
func within(profiles []gpu.Profile, at gpu.Placement) int {
	n := 0
	for _, p := range profiles {
		for _, other := range p.Placements {
			if other.Size < at.Size && other.Start >= at.Start && other.End() <= at.End() {
				n++
			}
		}
	}
	return n
}

// cost counts, by profile from the largest on, the remaining placements that a placement would block. Profiles are in
// order of size.
func cost(profiles []gpu.Profile, taken []gpu.Placement, at gpu.Placement) []int {
	out := make([]int, 0, len(profiles))
	for _, p := range slices.Backward(profiles) {
		n := 0
		for _, other := range p.Placements {
			if other.Overlaps(at) && !slices.ContainsFunc(taken, other.Overlaps) {
				n++
			}
		}
		out = append(out, n)
	}
	return out
}

// bySize compares profiles by memory slices, then by compute slices, memory, media engines and name.
func bySize(a, b gpu.Profile) int {
	return cmp.Or(
		cmp.Compare(size(a), size(b)), cmp.Compare(a.Slices, b.Slices), cmp.Compare(a.MemoryBytes, b.MemoryBytes),
		cmp.Compare(media(a), media(b)), cmp.Compare(a.Name, b.Name),
	)
}

// size returns the number of memory slices of a profile.
func size(p gpu.Profile) int {
	if len(p.Placements) == 0 {
		return 0
	}
	return p.Placements[0].Size
}

func media(p gpu.Profile) int { return p.Decoders + p.Encoders + p.JPEGEngines + p.OFAEngines }
