// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"cmp"
	"iter"
	"slices"

	"gpu-dra-driver/pkg/gpu"
)

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

// Fits says whether a choice can be made on a GPU that is cut into others.
func Fits(profiles []gpu.Profile, others []Choice, c Choice) bool {
	for _, o := range others {
		if o.Placement.Overlaps(c.Placement) {
			return false
		}
	}
	for _, r := range resources(profiles) {
		if used := r.Of(c.Profile) + r.sum(others); used > r.Total && r.Of(c.Profile) > 0 {
			return false
		}
	}
	return true
}

// Each gives every set of partitions that a GPU can be cut into, the empty one first, each once and in order of the
// starts. The set is valid until the next one; their number grows fast with that of the slices.
func Each(profiles []gpu.Profile) iter.Seq[[]Choice] {
	choices := all(profiles)
	slices.SortStableFunc(choices, func(a, b Choice) int { return cmp.Compare(a.Placement.Start, b.Placement.Start) })
	return func(yield func([]Choice) bool) {
		var from func(set []Choice, next int) bool
		from = func(set []Choice, next int) bool {
			if !yield(set) {
				return false
			}
			for i := next; i < len(choices); i++ {
				if Fits(profiles, set, choices[i]) && !from(append(set, choices[i]), i+1) {
					return false
				}
			}
			return true
		}
		from(nil, 0)
	}
}

// Maximal says that nothing can be added to a set of partitions.
func Maximal(profiles []gpu.Profile, set []Choice) bool {
	return !slices.ContainsFunc(all(profiles), func(c Choice) bool { return Fits(profiles, set, c) })
}

// all is every profile at every placement.
func all(profiles []gpu.Profile) []Choice {
	var out []Choice
	for _, p := range profiles {
		for _, at := range p.Placements {
			out = append(out, Choice{p, at})
		}
	}
	return out
}
