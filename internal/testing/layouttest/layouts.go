// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package layouttest

import (
	"cmp"
	"iter"
	"slices"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/partition/layout"
)

// Fits reports whether a choice can be created beside others on one GPU.
func Fits(profiles []gpu.Profile, others []layout.Choice, c layout.Choice) bool {
	instances := 1
	for _, o := range others {
		if o.Placement.Overlaps(c.Placement) {
			return false
		}
		if o.Profile.Name == c.Profile.Name {
			instances++
		}
	}
	if instances > c.Profile.Instances {
		return false
	}
	needs, total := engines(c.Profile), [6]int{}
	for _, p := range profiles {
		for i, n := range engines(p) {
			total[i] = max(total[i], n)
		}
	}
	sum := needs
	for _, o := range others {
		for i, n := range engines(o.Profile) {
			sum[i] += n
		}
	}
	for i := range sum {
		if needs[i] > 0 && sum[i] > total[i] {
			return false
		}
	}
	return true
}

// engines returns a profile's multiprocessors and engines.
func engines(p gpu.Profile) [6]int {
	return [6]int{p.Multiprocessors, p.CopyEngines, p.Decoders, p.Encoders, p.JPEGEngines, p.OFAEngines}
}

// Each iterates over all sets of partitions that a GPU can hold, from the empty one on, each once and in order of
// starts. A set is valid until the next one. Their number grows fast with the number of slices.
func Each(profiles []gpu.Profile) iter.Seq[[]layout.Choice] {
	choices := all(profiles)
	slices.SortStableFunc(choices, func(a, b layout.Choice) int {
		return cmp.Compare(a.Placement.Start, b.Placement.Start)
	})
	return func(yield func([]layout.Choice) bool) {
		var from func(set []layout.Choice, next int) bool
		from = func(set []layout.Choice, next int) bool {
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

// Maximal reports whether no partition can be added to a set.
func Maximal(profiles []gpu.Profile, set []layout.Choice) bool {
	return !slices.ContainsFunc(all(profiles), func(c layout.Choice) bool { return Fits(profiles, set, c) })
}

// Stranded returns the number of free memory slices that no placement can use.
func Stranded(profiles []gpu.Profile, occupied []gpu.Placement) int {
	n := 0
	for i := range layout.Slices(profiles) {
		at := gpu.Placement{Start: i, Size: 1}
		usable := slices.ContainsFunc(all(profiles), func(c layout.Choice) bool {
			return c.Placement.Overlaps(at) && !slices.ContainsFunc(occupied, c.Placement.Overlaps)
		})
		if !usable && !slices.ContainsFunc(occupied, at.Overlaps) {
			n++
		}
	}
	return n
}

// all returns every profile at every placement.
func all(profiles []gpu.Profile) []layout.Choice {
	var out []layout.Choice
	for _, p := range profiles {
		for _, at := range p.Placements {
			out = append(out, layout.Choice{Profile: p, Placement: at})
		}
	}
	return out
}
