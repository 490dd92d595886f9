// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package topology derives islands and groups from the NVLinks of a node's GPUs.
//
// An island is a set of GPUs that reach each other over NVLink, directly or through switches. Groups are the parts of
// an island that one claim can get: 2, 4, 8, … GPUs. A GPU is in one group of each size, and each group is inside one
// of the next size, so that the remaining GPUs still form groups.
//
// Doubtful links do not count. Both ends must report a link. A GPU with unknown links is in no island. A GPU on
// switches with fewer links than others of its model is in no group, because by default the fabric manager excludes it
// from peer traffic. On a board with switches a failure removes the affected groups and keeps the others. The result
// does not depend on the order of the GPUs.
package topology

import (
	"cmp"
	"slices"

	"gpu-dra-driver/pkg/gpu"
)

// Island is a set of GPUs that NVLink connects.
type Island struct {
	// Members are PCI addresses; the members of a group are neighbours.
	Members []string
	// Switched means that switches connect every two members at the full bandwidth of a GPU.
	Switched bool
	// Groups are in order of size, then of their members.
	Groups []Group
}

// Group is a part of an island in which every two GPUs are connected.
type Group struct {
	// Members are in the island's order; the first names the group.
	Members []string
	// Links counts the links among the members. It is 0 in a switched island, where all groups are equal.
	Links int
}

// Find returns the islands of at least two GPUs, in order of their first members.
func Find(gpus []gpu.GPU) []Island {
	w := newInterconnect(gpus)
	var islands []Island
	for _, members := range w.components() {
		switch {
		case len(members) < 2:
		case !slices.ContainsFunc(members, func(m string) bool { return !w.switched[m] }):
			// All switched GPUs of a node are on the same switches.
			islands = append(islands, Island{Members: members, Switched: true, Groups: w.aligned(members)})
		default:
			order, groups := w.cliques(members)
			islands = append(islands, Island{Members: order, Groups: groups})
		}
	}
	return islands
}

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

// Rank numbers the GPUs of islands from 1, by PCI address.
func Rank(islands []Island) map[string]int {
	rank := map[string]int{}
	for _, i := range islands {
		for _, m := range i.Members {
			rank[m] = len(rank) + 1
		}
	}
	return rank
}

// Sort orders PCI addresses as in their islands; GPUs in no island follow in their given order.
func Sort(gpus []gpu.GPU, addresses []string) []string {
	rank := Rank(Find(gpus))
	place := func(address string) int { return cmp.Or(rank[address], len(rank)+1) }
	out := slices.Clone(addresses)
	slices.SortStableFunc(out, func(a, b string) int { return cmp.Compare(place(a), place(b)) })
	return out
}
