// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package topology finds from the NVLinks of a node's GPUs which of them belong together.
//
// An island is a set of GPUs that reach each other over NVLink, directly or through switches. Groups are the parts of an
// island to hand out together: of 2, 4, 8, … GPUs, each GPU in one group of a size, each group inside one of the next
// size, so that what is left after any choice can still be handed out in groups.
//
// Only what is certain counts: a link that one end alone reports is none, a GPU whose links are unknown is in no island,
// and a GPU on switches that lacks a link which others of its model have is in no group, for by default the fabric manager
// takes it out of peer traffic altogether. What fails on a board with switches takes away the groups it is part of,
// and leaves the others as they are. Everything here is a function of the GPUs, whatever their order.
package topology

import (
	"cmp"
	"slices"

	"gpu-dra-driver/pkg/gpu"
)

// Island is a set of GPUs that NVLink connects.
type Island struct {
	// Members are PCI addresses in the order of groups: those of one group stand together.
	Members []string
	// Switched says that a switch connects each with each, at the full bandwidth of a GPU.
	Switched bool
	// Groups are those to hand out, the smaller first, in order of their members.
	Groups []Group
}

// Group is a part of an island in which each GPU has a link to each other.
type Group struct {
	// Members are in the island's order; the first names the group.
	Members []string
	// Links is how many links connect its members with each other; 0 in a switched island, where it does not depend on the choice.
	Links int
}

// Find gives the islands of two GPUs and more, in order of their first members.
func Find(gpus []gpu.GPU) []Island {
	w := newInterconnect(gpus)
	var islands []Island
	for _, members := range w.components() {
		switch {
		case len(members) < 2:
		case !slices.ContainsFunc(members, func(m string) bool { return !w.switched[m] }):
			// GPUs of a node on switches are on the same ones.
			islands = append(islands, Island{Members: members, Switched: true, Groups: w.aligned(members)})
		default:
			order, groups := w.cliques(members)
			islands = append(islands, Island{Members: order, Groups: groups})
		}
	}
	return islands
}

// At finds the group of that size with that first member.
func At(islands []Island, size int, first string) (Group, bool) {
	for _, i := range islands {
		for _, g := range i.Groups {
			if len(g.Members) == size && g.Members[0] == first {
				return g, true
			}
		}
	}
	return Group{}, false
}

// Rank numbers the GPUs of islands from 1, in order, by PCI address.
func Rank(islands []Island) map[string]int {
	rank := map[string]int{}
	for _, i := range islands {
		for _, m := range i.Members {
			rank[m] = len(rank) + 1
		}
	}
	return rank
}

// Sort puts GPUs, by PCI address, in link order: as they stand in their islands, then the others as they were.
func Sort(gpus []gpu.GPU, addresses []string) []string {
	rank := Rank(Find(gpus))
	place := func(address string) int { return cmp.Or(rank[address], len(rank)+1) }
	out := slices.Clone(addresses)
	slices.SortStableFunc(out, func(a, b string) int { return cmp.Compare(place(a), place(b)) })
	return out
}
