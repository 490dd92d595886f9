// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package topology finds from the NVLinks of a node's GPUs which of them belong together.
//
// An island is a set of GPUs that reach each other over NVLink, directly or through switches. Groups are the parts of an
// island to hand out together: of 2, 4, 8, … GPUs, each GPU in one group of a size, each group inside one of the next
// size, so that what is left after any choice can still be handed out in groups.
//
// Only what is certain counts: a link that one end alone reports is none, and a GPU whose links cannot be told is in no
// island. Everything here is a function of the GPUs, whatever their order.
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
	w := newWiring(gpus)
	var islands []Island
	for _, members := range w.components() {
		if len(members) < 2 {
			continue
		}
		i := Island{Switched: w.switched(members)}
		if i.Switched {
			i.Members = members
			i.Groups = aligned(members)
		} else {
			i.Members, i.Groups = w.cliques(members)
		}
		islands = append(islands, i)
	}
	return islands
}

// wiring is who is connected to whom.
type wiring struct {
	// order is NUMA node, PCIe root, PCI address: GPUs that are close stand together.
	order []string
	// links counts those between two GPUs, by their addresses, each once for both directions.
	links map[[2]string]int
	// onSwitch are the GPUs with a link to a switch.
	onSwitch map[string]bool
}

func newWiring(gpus []gpu.GPU) wiring {
	w := wiring{links: map[[2]string]int{}, onSwitch: map[string]bool{}}
	gpus = slices.Clone(gpus)
	slices.SortFunc(gpus, func(a, b gpu.GPU) int {
		return cmp.Or(cmp.Compare(numa(a), numa(b)), cmp.Compare(a.PCIeRoot, b.PCIeRoot), cmp.Compare(a.PCIAddress, b.PCIAddress))
	})
	said := map[[2]string]int{}
	for _, g := range gpus {
		if slices.Contains(w.order, g.PCIAddress) {
			continue // Which of two GPUs of one address it is cannot be told.
		}
		w.order = append(w.order, g.PCIAddress)
		for _, l := range g.Links {
			switch {
			case l.Peer == gpu.PeerSwitch:
				w.onSwitch[g.PCIAddress] = true
			case l.Peer == gpu.PeerGPU && l.PeerAddress != g.PCIAddress:
				said[[2]string{g.PCIAddress, l.PeerAddress}]++
			}
		}
	}
	for ends, n := range said {
		// Both ends must report it.
		if n = min(n, said[[2]string{ends[1], ends[0]}]); n > 0 {
			w.links[ends] = n
		}
	}
	return w
}

func numa(g gpu.GPU) int {
	if g.NUMANode == nil {
		return -1
	}
	return *g.NUMANode
}

// between is how many links connect two GPUs directly.
func (w wiring) between(a, b string) int { return w.links[[2]string{a, b}] }

// connected says that two GPUs reach each other over NVLink in one step, switches counting as none.
func (w wiring) connected(a, b string) bool {
	return w.between(a, b) > 0 || w.onSwitch[a] && w.onSwitch[b]
}

// components are the sets of GPUs that are connected over any number of steps, each in order.
func (w wiring) components() [][]string {
	var out [][]string
	seen := map[string]bool{}
	for _, first := range w.order {
		if seen[first] {
			continue
		}
		seen[first] = true
		reached := map[string]bool{first: true}
		for todo := []string{first}; len(todo) > 0; todo = todo[1:] {
			for _, next := range w.order {
				if !seen[next] && w.connected(todo[0], next) {
					seen[next], reached[next] = true, true
					todo = append(todo, next)
				}
			}
		}
		var members []string
		for _, m := range w.order {
			if reached[m] {
				members = append(members, m)
			}
		}
		out = append(out, members)
	}
	return out
}

// switched says that all of them are on switches. GPUs of a node on switches are on the same ones.
func (w wiring) switched(members []string) bool {
	return !slices.ContainsFunc(members, func(m string) bool { return !w.onSwitch[m] })
}

// aligned cuts an island in which every choice is as good into groups of 2, 4, 8, … in the order of its members: so they
// follow NUMA nodes and PCIe roots.
func aligned(members []string) []Group {
	var out []Group
	for size := 2; size <= len(members); size *= 2 {
		for at := 0; at+size <= len(members); at += size {
			out = append(out, Group{Members: slices.Clone(members[at : at+size])})
		}
	}
	return out
}
