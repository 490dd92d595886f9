// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	// leastReserve and mostReserve limit the number of serving nodes with free GPUs; between them it is one of each
	// reserveOf nodes.
	leastReserve, reserveOf, mostReserve = 8, 20, 50
	// Grow is the time after which the serving nodes of what a pod still waits for become growth times as many. A node
	// publishes within a second, and the scheduler tries a pod again after a second.
	Grow   = 2 * time.Second
	growth = 4
)

// Candidate is a node that could publish a profile, or groups.
type Candidate struct {
	Node string
	// GPUs is the number of its whole devices. Claims hold all of the Full ones, and a part of the Partly ones.
	GPUs, Full, Partly int
	// Open means that it has other GPUs too, such as one that an administrator cut, whose free part is unknown.
	Open bool
	// Cut means that the node publishes other partitions or groups.
	Cut bool
}

// free is the number of GPUs of which no claim holds a part.
func (c Candidate) free() int { return c.GPUs - c.Full - c.Partly }

// has reports whether a claim could get a device from the node: a partition also of a GPU of which a part is held.
func (c Candidate) has(what string) bool {
	if what == Groups {
		return c.free() >= 2
	}
	return c.GPUs > c.Full || c.Open
}

// reserve reports whether the node counts for the reserve: it has free GPUs for a claim.
func (c Candidate) reserve(what string) bool { return c.free() > 0 && c.has(what) }

// Serving chooses the nodes that publish the devices which the cluster asks for: the holders of such devices, and a reserve
// of nodes with free GPUs. Other nodes publish plain devices, which cost the scheduler less. While a pod waits, it chooses
// more, in the end all of them that have room. The zero Serving has chosen none.
type Serving struct{ of map[string]*served }

type served struct {
	nodes map[string]bool
	// grown is the time of the first choice and of each growth, waited the last time at which a pod waited.
	grown, waited time.Time
}

// Keep forgets all but these devices.
func (s *Serving) Keep(what map[string]bool) {
	maps.DeleteFunc(s.of, func(one string, _ *served) bool { return !what[one] })
}

// Choose returns the serving nodes of a profile or of Groups, sorted. last are the ones in the ConfigMap, which count after a
// restart. holders are nodes of which a claim holds such a device, and waits means that a pod which asks for one was not
// scheduled. If it waits, ask again after Grow.
func (s *Serving) Choose(last []string, what string, candidates []Candidate, holders []string, waits bool, now time.Time) []string {
	if s.of == nil {
		s.of = map[string]*served{}
	}
	o := s.of[what]
	if o == nil {
		o = &served{nodes: map[string]bool{}, grown: now, waited: now}
		s.of[what] = o
		for _, node := range last {
			o.nodes[node] = true
		}
	}
	reserve := min(max(len(candidates)/reserveOf, leastReserve), mostReserve)
	if waits {
		o.waited = now
	} else if now.Sub(o.waited) >= keep {
		o.shrink(what, candidates, reserve)
		o.waited = now
	}
	known := map[string]bool{}
	for _, c := range candidates {
		known[c.Node] = true
	}
	maps.DeleteFunc(o.nodes, func(node string, _ bool) bool { return !known[node] })
	for _, node := range holders {
		o.nodes[node] = true
	}
	var others []Candidate
	for _, c := range candidates {
		switch {
		case !o.nodes[c.Node] && c.has(what):
			others = append(others, c)
		case o.nodes[c.Node] && c.reserve(what):
			reserve--
		}
	}
	slices.SortFunc(others, func(a, b Candidate) int { return order(a, b, what) })
	full := slices.IndexFunc(others, func(c Candidate) bool { return !c.reserve(what) })
	if full < 0 {
		full = len(others)
	}
	add := min(max(reserve, 0), full)
	if more := min(max((growth-1)*len(o.nodes), 1), len(others)); waits && now.Sub(o.grown) >= Grow && more > add {
		add, o.grown = more, now
	}
	for _, c := range others[:add] {
		o.nodes[c.Node] = true
	}
	return slices.Sorted(maps.Keys(o.nodes))
}

// shrink keeps the reserve alone. Choose adds the holders.
func (o *served) shrink(what string, candidates []Candidate, reserve int) {
	ours := slices.DeleteFunc(slices.Clone(candidates), func(c Candidate) bool { return !o.nodes[c.Node] || !c.reserve(what) })
	slices.SortFunc(ours, func(a, b Candidate) int { return order(a, b, what) })
	clear(o.nodes)
	for _, c := range ours[:min(reserve, len(ours))] {
		o.nodes[c.Node] = true
	}
}

// order prefers nodes with free GPUs, then nodes that have counters anyway. Partitions go to the node with the fewest free
// GPUs, so that whole nodes stay whole, and groups to the one with the most.
func order(a, b Candidate, what string) int {
	rank := func(yes bool) int {
		if yes {
			return 0
		}
		return 1
	}
	fewest := cmp.Compare(a.free(), b.free())
	if what == Groups {
		fewest = -fewest
	}
	return cmp.Or(rank(a.reserve(what))-rank(b.reserve(what)), rank(a.Cut)-rank(b.Cut), fewest, strings.Compare(a.Node, b.Node))
}
