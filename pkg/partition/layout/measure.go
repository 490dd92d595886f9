// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package layout

import "gpu-dra-driver/pkg/gpu"

// Largest is the largest profile that still has a placement clear of those that are occupied.
func Largest(profiles []gpu.Profile, occupied []gpu.Placement) (gpu.Profile, bool) {
	var best gpu.Profile
	found := false
	for _, c := range all(profiles) {
		if free(occupied, c.Placement) && (!found || bySize(c.Profile, best) > 0) {
			best, found = c.Profile, true
		}
	}
	return best, found
}

// Stranded is the number of free memory slices that no placement can use any more.
func Stranded(profiles []gpu.Profile, occupied []gpu.Placement) int {
	n := 0
	for i := range Slices(profiles) {
		at := gpu.Placement{Start: i, Size: 1}
		if !free(occupied, at) {
			continue
		}
		usable := false
		for _, c := range all(profiles) {
			usable = usable || c.Placement.Overlaps(at) && free(occupied, c.Placement)
		}
		if !usable {
			n++
		}
	}
	return n
}

// Fragmentation is what the places of a GPU's partitions cost it: 0 where the largest profile that its free slices could
// hold, were they anywhere, still has a placement; 1 where none has; between them, one minus the largest that has divided
// by the largest that could, in memory slices. A full GPU is not fragmented.
func Fragmentation(profiles []gpu.Profile, occupied []gpu.Placement) float64 {
	left := 0
	for i := range Slices(profiles) {
		if free(occupied, gpu.Placement{Start: i, Size: 1}) {
			left++
		}
	}
	could := 0
	for _, p := range profiles {
		if s := size(p); s <= left {
			could = max(could, s)
		}
	}
	if could == 0 {
		return 0
	}
	has := 0
	for _, c := range all(profiles) {
		if free(occupied, c.Placement) {
			has = max(has, c.Placement.Size)
		}
	}
	return 1 - float64(has)/float64(could)
}
