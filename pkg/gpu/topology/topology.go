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

// maxExhaustive is the largest island for which every pairing is tried: 8 GPUs have 105 pairings, 12 have 10,395.
const maxExhaustive = 12

// cliques finds the groups of an island without switches. A group is a clique: two GPUs without a link would
// communicate through others. It chooses the pairs that form the most cliques of four, then of eight, and so on.
// Among equals it takes the groups with the most links.
func (w interconnect) cliques(members []string) (order []string, groups []Group) {
	levels := w.levels(w.pair(members))
	groups = slices.Concat(levels...)
	// The largest groups come first in the order, then the GPUs outside of them.
	for _, level := range slices.Backward(slices.Insert(levels, 0, singles(members))) {
		for _, g := range level {
			if !slices.Contains(order, g.Members[0]) {
				order = append(order, g.Members...)
			}
		}
	}
	return order, groups
}

// pair chooses disjoint pairs of linked GPUs.
func (w interconnect) pair(members []string) []Group {
	if len(members) > maxExhaustive {
		return w.greedy(singles(members))
	}
	var best []Group
	var bestScore []int
	var try func(left []string, chosen []Group)
	try = func(left []string, chosen []Group) {
		if len(left) == 0 {
			if score := w.score(chosen); best == nil || slices.Compare(score, bestScore) > 0 {
				best, bestScore = slices.Clone(chosen), score
			}
			return
		}
		first, rest := left[0], left[1:]
		for i, other := range rest {
			if n := w.between(first, other); n > 0 {
				without := slices.Delete(slices.Clone(rest), i, i+1)
				try(without, append(chosen, Group{Members: []string{first, other}, Links: n}))
			}
		}
		try(rest, chosen) // first stays without a pair.
	}
	try(members, nil)
	return best
}

// score ranks a choice of pairs; a larger score is better. It holds the size of the largest level, its number of groups
// and their links, then the same numbers of each level below.
func (w interconnect) score(pairs []Group) []int {
	levels := w.levels(pairs)
	out := []int{len(levels)}
	for _, level := range slices.Backward(levels) {
		links := 0
		for _, g := range level {
			links += g.Links
		}
		out = append(out, len(level), links)
	}
	return out
}

// levels returns the groups of 2, of 4, of 8, …; each group joins two of the previous level.
func (w interconnect) levels(pairs []Group) [][]Group {
	var out [][]Group
	for level := pairs; len(level) > 0; level = w.greedy(level) {
		out = append(out, level)
	}
	return out
}

// greedy joins pairs of groups in which every two GPUs are linked, those with the most links first.
func (w interconnect) greedy(level []Group) []Group {
	type choice struct {
		a, b  int
		group Group
	}
	var choices []choice
	for a := range level {
		for b := a + 1; b < len(level); b++ {
			if g, ok := w.join(level[a], level[b]); ok {
				choices = append(choices, choice{a, b, g})
			}
		}
	}
	slices.SortStableFunc(choices, func(x, y choice) int { return cmp.Compare(y.group.Links, x.group.Links) })
	// Groups are in the order of their first parts.
	taken, joined := map[int]bool{}, make([]Group, len(level))
	for _, c := range choices {
		if !taken[c.a] && !taken[c.b] {
			taken[c.a], taken[c.b], joined[c.a] = true, true, c.group
		}
	}
	return slices.DeleteFunc(joined, func(g Group) bool { return g.Members == nil })
}

func (w interconnect) join(a, b Group) (Group, bool) {
	links := a.Links + b.Links
	for _, x := range a.Members {
		for _, y := range b.Members {
			n := w.between(x, y)
			if n == 0 {
				return Group{}, false
			}
			links += n
		}
	}
	return Group{Members: slices.Concat(a.Members, b.Members), Links: links}, true
}

func singles(members []string) []Group {
	var out []Group
	for _, m := range members {
		out = append(out, Group{Members: []string{m}})
	}
	return out
}
