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
	// Grow is the time after which the serving nodes of what a pod still waits for become growthFactor times as many. A
	// node publishes within a second, and the scheduler tries a pod again after a second.
	Grow         = 2 * time.Second
	growthFactor = 4
	// noRoomTimeout is the time after which a node without room stops serving, if none of its claims ends.
	noRoomTimeout = time.Minute
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
	// Changed is another number after each change of the claims on the node.
	Changed int
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

// Waiting are the pods without a node that ask for a profile, groups or shares.
type Waiting struct {
	// Unscheduled means that the scheduler could not place one of them.
	Unscheduled bool
	// Devices is the largest number of devices that one of them asks for.
	Devices int
	// Nodes has the nodes on which pods of each kind may run by all but the devices, as far as known.
	Nodes []map[string]bool
}

// Serving chooses the nodes that publish the devices which the cluster asks for: the holders of such devices, and a
// reserve of nodes with free GPUs. Other nodes publish plain devices, which cost the scheduler less. While a pod waits,
// it chooses more, in the end all of them that have room. The zero Serving has chosen none.
type Serving struct {
	// Most is the largest number of nodes with counters that a choice leads to, apart from holders; 0: no limit.
	Most int
	// Limited means that a choice since it was set to false was smaller because of Most, while a pod waited. Exhausted
	// means that a pod waited for partitions or shares, and no further node could serve.
	Limited, Exhausted bool

	of map[string]*served
	// free is the number of free GPUs of each node. exhausted is since when a pod waits in vain, waited when one last
	// waited, and shrunk when nodes last had fewer GPUs.
	free                      int
	exhausted, waited, shrunk time.Time
}

type served struct {
	nodes map[string]bool
	// full has the serving nodes without room.
	full map[string]filled
	// grown is the time of the first choice and of each growth, waited the last time at which a pod waited.
	grown, waited time.Time
}

// filled is the time since when a node has had no room, and its Candidate.Changed. Between two choices the node can
// have room.
type filled struct {
	since   time.Time
	changed int
}

// Keep forgets all but these devices.
func (s *Serving) Keep(what map[string]bool) {
	maps.DeleteFunc(s.of, func(one string, _ *served) bool { return !what[one] })
}

// Choose returns the serving nodes of a profile, of Groups or of Shares, sorted. last are the ones in the ConfigMap,
// which count after a restart. holders are nodes of which a claim holds such a device. Each kind of waiting pods has a
// serving node with free GPUs at once, if there is one. While a pod is unscheduled, ask again after Grow.
func (s *Serving) Choose(
	last []string, what string, candidates []Candidate, holders []string, waiting Waiting, now time.Time,
) []string {
	if s.of == nil {
		s.of = map[string]*served{}
	}
	o := s.of[what]
	if o == nil {
		o = &served{nodes: map[string]bool{}, full: map[string]filled{}, grown: now, waited: now}
		s.of[what] = o
		for _, node := range last {
			o.nodes[node] = true
		}
	}
	reserve := min(max(len(candidates)/reserveOf, leastReserve), mostReserve)
	if waiting.Unscheduled {
		o.waited = now
	} else if now.Sub(o.waited) >= retention {
		o.shrink(what, candidates, reserve)
		o.waited = now
	}
	known := map[string]bool{}
	for _, c := range candidates {
		known[c.Node] = true
	}
	maps.DeleteFunc(o.nodes, func(node string, _ bool) bool { return !known[node] })
	o.settle(what, candidates, now)
	for _, node := range holders {
		o.nodes[node] = true
	}
	rank := func(a, b Candidate) int {
		return cmp.Or(first(waiting.some(a.Node))-first(waiting.some(b.Node)), order(a, b, what))
	}
	sorted := slices.SortedFunc(slices.Values(candidates), rank)
	left := s.left(o, candidates)
	for _, may := range waiting.Nodes {
		s.Limited = !o.serve(what, sorted, may, &left) || s.Limited
	}
	var others []Candidate
	for _, c := range sorted {
		switch {
		case !o.nodes[c.Node] && c.has(what):
			others = append(others, c)
		case o.nodes[c.Node] && c.reserve(what):
			reserve--
		}
	}
	more := 0
	if waiting.Unscheduled && now.Sub(o.grown) >= Grow {
		more = min(max((growthFactor-1)*len(o.nodes), 1), len(others))
	}
	if more > max(reserve, 0) {
		o.grown = now
	}
	for i, c := range others {
		if i >= more && (reserve <= 0 || !c.reserve(what)) {
			continue
		}
		if !o.add(c, &left) {
			s.Limited = s.Limited || waiting.Unscheduled
			continue
		}
		if c.reserve(what) {
			reserve--
		}
	}
	s.Exhausted = s.Exhausted || waiting.Unscheduled && what != Groups && (left <= 0 ||
		!slices.ContainsFunc(others, func(c Candidate) bool { return !o.nodes[c.Node] }))
	return slices.Sorted(maps.Keys(o.nodes))
}

// left returns the number of nodes without counters that may get some.
func (s *Serving) left(o *served, candidates []Candidate) int {
	if s.Most <= 0 {
		return len(candidates)
	}
	left := s.Most
	for _, c := range candidates {
		if c.Cut || o.nodes[c.Node] {
			left--
		}
	}
	return left
}

// add adds a node, unless too many have counters.
func (o *served) add(c Candidate, left *int) bool {
	if !c.Cut {
		if *left <= 0 {
			return false
		}
		*left--
	}
	o.nodes[c.Node] = true
	return true
}

// some reports whether pods may run on a node.
func (w Waiting) some(node string) bool {
	return slices.ContainsFunc(w.Nodes, func(may map[string]bool) bool { return may[node] })
}

// serve adds some of the nodes on which a pod may run, unless one of them serves that has free GPUs. It reports false
// if too many nodes have counters for any of them.
func (o *served) serve(what string, sorted []Candidate, may map[string]bool, left *int) bool {
	ours := slices.DeleteFunc(slices.Clone(sorted), func(c Candidate) bool { return !may[c.Node] || !c.reserve(what) })
	if len(ours) == 0 || slices.ContainsFunc(ours, func(c Candidate) bool { return o.nodes[c.Node] }) {
		return true
	}
	added := false
	for _, c := range ours[:min(leastReserve, len(ours))] {
		added = o.add(c, left) || added
	}
	return added
}

// settle removes nodes that have had no room and the same claims for a while, such as a reserve whose GPUs other claims
// took. Choose adds the holders.
func (o *served) settle(what string, candidates []Candidate, now time.Time) {
	full := map[string]filled{}
	for _, c := range candidates {
		if !o.nodes[c.Node] || c.has(what) {
			continue
		}
		last, known := o.full[c.Node]
		switch {
		case !known || last.changed != c.Changed:
			full[c.Node] = filled{now, c.Changed}
		case now.Sub(last.since) < noRoomTimeout:
			full[c.Node] = last
		default:
			delete(o.nodes, c.Node)
		}
	}
	o.full = full
}

// shrink keeps the reserve alone. Choose adds the holders.
func (o *served) shrink(what string, candidates []Candidate, reserve int) {
	ours := slices.DeleteFunc(slices.Clone(candidates), func(c Candidate) bool {
		return !o.nodes[c.Node] || !c.reserve(what)
	})
	slices.SortFunc(ours, func(a, b Candidate) int { return order(a, b, what) })
	clear(o.nodes)
	for _, c := range ours[:min(reserve, len(ours))] {
		o.nodes[c.Node] = true
	}
}

// order prefers nodes with free GPUs, then nodes that have counters anyway. Partitions go to the node with the fewest
// free GPUs, so that whole nodes stay whole, and groups to the one with the most.
func order(a, b Candidate, what string) int {
	fewest := cmp.Compare(a.free(), b.free())
	if what == Groups {
		fewest = -fewest
	}
	return cmp.Or(first(a.reserve(what))-first(b.reserve(what)), first(a.Cut)-first(b.Cut), fewest,
		strings.Compare(a.Node, b.Node))
}

// first is the rank of what comes first.
func first(yes bool) int {
	if yes {
		return 0
	}
	return 1
}
