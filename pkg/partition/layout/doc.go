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
