// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"gpu-dra-driver/pkg/cluster/controller"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/wire/demand"
)

const (
	// samplePatience is the time that a sample node has to publish its sample, also while its slices are missing: a
	// kubelet that starts removes them. Then another node becomes the sample node. The time doubles with each node that
	// failed.
	samplePatience = 10 * time.Second
	// maxChosen is the number of layouts above which those of no node are forgotten early. Layouts of many nodes come
	// first.
	maxChosen = 2 * demand.MaxSamples
	// mostPatience is the longest such time. If no node publishes the sample, the choice changes seldom.
	mostPatience = 10 * time.Minute
)

// sampleNodes chooses one node for each MIG layout, which publishes a placement of each profile that no object asks
// for. It keeps its choice, because each change writes the slices of two nodes.
type sampleNodes struct {
	// grace is the time for which a layout that no node has keeps its node.
	grace time.Duration
	// chosen is the present node of a layout.
	chosen map[string]*sampleNode
	// missing is since when sample nodes of the ConfigMap have had no slices. After a restart of the controller their
	// layouts are unknown, or their slices are not read yet.
	missing map[string]time.Time
}

type sampleNode struct {
	name string
	// silent is since when the node does not publish the sample; zero if it does.
	silent time.Time
	// failed are the nodes that did not publish the sample in time. changes counts them, also those of earlier rounds.
	failed  map[string]bool
	changes int
}

// choose returns the sample nodes, sorted, and the delay until the next choice if nothing changes; 0: none. last are
// the ones in the ConfigMap. pools has one pool for each node.
func (s *sampleNodes) choose(last []string, pools []pool.Pool, now time.Time) (names []string, again time.Duration) {
	if s.chosen == nil {
		s.chosen, s.missing = map[string]*sampleNode{}, map[string]time.Time{}
	}
	names, again = s.keepMissing(last, pools, now)
	waits := again > 0
	of := map[string]map[string]pool.Pool{}
	for _, p := range pools {
		for _, layout := range p.Layouts() {
			if of[layout] == nil {
				of[layout] = map[string]pool.Pool{}
			}
			of[layout][p.Node] = p
		}
	}
	layouts := slices.AppendSeq(slices.Collect(maps.Keys(of)), maps.Keys(s.chosen))
	slices.SortFunc(layouts, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(of[b]), len(of[a])), cmp.Compare(a, b))
	})
	for i, layout := range slices.Compact(layouts) {
		if i >= maxChosen && len(of[layout]) == 0 {
			delete(s.chosen, layout)
			continue
		}
		one := s.chosen[layout]
		if one == nil {
			one = &sampleNode{failed: map[string]bool{}}
			if waits && !slices.ContainsFunc(last, func(name string) bool { _, has := of[layout][name]; return has }) {
				continue
			}
		}
		wait, ok := one.choose(layout, last, of[layout], s.grace, now)
		if !ok || !slices.Contains(names, one.name) && len(names) >= demand.MaxSamples {
			delete(s.chosen, layout)
			continue
		}
		again = controller.Sooner(again, wait)
		s.chosen[layout] = one
		names = append(names, one.name)
		slices.Sort(names)
		names = slices.Compact(names)
	}
	return names, again
}

// keepMissing returns the sample nodes without slices that stay for now, and the delay until the next one does not.
func (s *sampleNodes) keepMissing(
	last []string, pools []pool.Pool, now time.Time,
) (names []string, again time.Duration) {
	names = []string{} // Nil would mean that all nodes are sample nodes.
	before := s.missing
	s.missing = map[string]time.Time{}
	for _, name := range last {
		if slices.ContainsFunc(pools, func(p pool.Pool) bool { return p.Node == name }) {
			continue
		}
		since, known := before[name]
		if !known {
			since = now
		}
		s.missing[name] = since
		if rest := samplePatience - now.Sub(since); rest > 0 {
			names, again = append(names, name), controller.Sooner(again, rest)
		}
	}
	return names, again
}

// choose keeps or replaces the node; of are the nodes of the layout. ok is false if there is none.
func (n *sampleNode) choose(
	layout string, last []string, of map[string]pool.Pool, grace time.Duration, now time.Time,
) (wait time.Duration, ok bool) {
	known := map[[32]*pool.Shape]bool{} // Nodes that are alike have one answer.
	complete := func(name string) bool {
		shape, ok := of[name].Shape()
		if _, seen := known[shape]; !seen || !ok {
			known[shape] = of[name].Complete(layout)
		}
		return known[shape]
	}
	for _, name := range append([]string{n.name}, last...) { // The last ones count after a restart of the controller.
		if _, has := of[name]; !has {
			continue
		}
		if complete(name) {
			*n = sampleNode{name: name, failed: map[string]bool{}}
			return 0, true
		}
		n.name = cmp.Or(n.name, name)
	}
	if n.silent.IsZero() {
		n.silent = now
	}
	patience := min(samplePatience<<min(n.changes, 10), mostPatience)
	if len(of) == 0 {
		patience = max(patience, grace)
	}
	if rest := patience - now.Sub(n.silent); n.name != "" && rest > 0 {
		return rest, true
	}
	if len(of) == 0 {
		return 0, false
	}
	if n.name != "" {
		n.failed[n.name] = true
		n.changes++
	}
	next := n.next(of, complete)
	if next == "" { // All of them failed.
		clear(n.failed)
		next = n.next(of, complete)
	}
	n.name, n.silent = next, now
	if complete(next) {
		n.silent = time.Time{}
	}
	return samplePatience, true
}

// next prefers a node that publishes the sample: by its settings, or because it read no ConfigMap yet.
func (n *sampleNode) next(of map[string]pool.Pool, complete func(string) bool) (name string) {
	for _, one := range slices.Sorted(maps.Keys(of)) {
		switch {
		case n.failed[one]:
		case complete(one):
			return one
		case name == "":
			name = one
		}
	}
	return name
}
