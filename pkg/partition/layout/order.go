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
// profile, a placement stands the earlier, the more of its kind fit where it is: on a board whose upper half has room for
// three of the smallest and whose lower half has room for four, small partitions fill the lower half, and the upper, which
// they would waste, stays whole for a large one the longest. Then come those that take the least from smaller profiles,
// for the same reason; then those that cost the fewest of the larger placements which those before them left.
func Order(profiles []gpu.Profile) []Choice {
	profiles = slices.Clone(profiles)
	slices.SortFunc(profiles, bySize)
	for i := range profiles {
		profiles[i].Placements = slices.SortedFunc(slices.Values(profiles[i].Placements), func(a, b gpu.Placement) int { return cmp.Compare(a.Start, b.Start) })
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
				return cmp.Or(slices.Compare(rank[a], rank[b]), slices.Compare(cost(profiles, taken, a), cost(profiles, taken, b)),
					cmp.Compare(a.Start, b.Start))
			})
			out, taken = append(out, Choice{p, best}), append(taken, best)
			left = slices.DeleteFunc(left, func(at gpu.Placement) bool { return at == best })
		}
	}
	return out
}

// room is, for each larger size of placement, the largest first, how many of the profile fit where one of that size and
// the given placement could both be; negated, so that more comes first.
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

// fitting is how many placements, none overlapping, lie within a region. All are of one size and in order of their start.
func fitting(placements []gpu.Placement, region gpu.Placement) int {
	n, end := 0, region.Start
	for _, at := range placements {
		if at.Start >= end && at.End() <= region.End() {
			n, end = n+1, at.End()
		}
	}
	return n
}

// within is how many smaller placements lie within one.
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

// cost is how many placements of each profile, the largest first, a placement makes impossible that others have left.
// Profiles are in order of size.
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
