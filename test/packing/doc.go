// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command packing measures how well partitions pack: it replays seeded traces of arrivals and departures through the
// scheduler's own allocator over the driver's slices, in the order that they are published and in others, and prints a
// table and draws a plot.
//
// The scheduler takes the first device that fits, so the order of the devices is the whole of the policy. Beside our
// order stand its variant with the whole GPUs in a slice of their own and from the other end, a naive one (GPUs by index,
// placements by start), a random one, and the best fixed order of placements that there is, found by trying them all on
// the same trace in a model of first-fit; the model is checked against the allocator. On small cases the clairvoyant
// optimum, which knows the future and may refuse, is the bound.
package main
