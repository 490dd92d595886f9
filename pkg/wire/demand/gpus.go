// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// leastFree is the number of free GPUs of a node and a kind that have partitions and shares. A claim gets the first one
// while the node publishes the next.
const leastFree = 2

// GPU is a GPU with a whole device.
type GPU struct {
	// Address is the PCI address.
	Address string
	// Kind is equal for GPUs that have the same partitions and shares.
	Kind string
	// Whole means that claims hold all of it, Part that a claim holds a partition or a share. Both can be true: each
	// claim of a shareable GPU has a share.
	Whole, Part bool
	// Closed means that it has a device taint.
	Closed bool
}

// ServingGPUs returns the GPUs that have the partitions and shares of a node. These are the ones of which claims hold a
// part, and free ones of each kind, first the ones of the last choice, which all stay unless it shrinks. all is in the
// order in which the scheduler tries them, so claims of whole GPUs use the last ones last. A sample node has one of
// each kind in any case. The result is sorted, and Decode accepts it, also if a node invents GPUs.
func ServingGPUs(last []string, all []GPU, free int, shrink, sample bool) []string {
	out, count := []string{}, map[string]int{}
	sorted := slices.Clone(all)
	slices.Reverse(sorted)
	stays := func(g GPU) int { return first(slices.Contains(last, g.Address)) }
	slices.SortStableFunc(sorted, func(a, b GPU) int {
		return cmp.Or(first(a.Part)-first(b.Part), first(!a.Whole)-first(!b.Whole), first(!a.Closed)-first(!b.Closed),
			stays(a)-stays(b))
	})
	for _, g := range sorted {
		n, serves := count[g.Kind]
		switch {
		case g.Part:
			if !g.Closed {
				count[g.Kind] = n
			}
		case !g.Whole && (n < free || !shrink && !g.Closed && stays(g) == 0):
			count[g.Kind]++
		case sample && !serves:
			count[g.Kind] = free
		default:
			continue
		}
		out = append(out, g.Address)
	}
	out = out[:min(len(out), maxGPUs)]
	slices.Sort(out)
	return out
}

// Free returns how many free GPUs of a kind each serving node has with partitions and shares, at least. Some nodes have
// as many as a pod asks for devices, because these can need a GPU each. While a pod waits although each node with room
// serves, all nodes have more, in the end all of their GPUs: the pod can need a certain one. shrink means that other
// free GPUs stop serving now: each change writes slices of nodes, and the next claims can need them.
func (s *Serving) Free(
	serving map[string][]string, nodes map[string]Candidate, waiting map[string]Waiting, now time.Time,
) (least map[string]int, shrink bool) {
	waits := false
	for what, w := range waiting {
		waits = waits || w.Unscheduled && what != Groups
	}
	switch {
	case !waits:
		s.exhausted = time.Time{}
		if now.Sub(s.waited) >= retention {
			s.free = 0
		}
	case s.Exhausted && s.exhausted.IsZero():
		s.exhausted = now
	case s.Exhausted && now.Sub(s.exhausted) >= Grow:
		s.free, s.exhausted = min(s.free*growthFactor, maxGPUs), now
	}
	if waits {
		s.waited = now
	}
	s.free = max(s.free, leastFree)
	if s.shrunk.IsZero() { // A new controller waits, too.
		s.shrunk = now
	}
	if shrink = now.Sub(s.shrunk) >= renewInterval; shrink {
		s.shrunk = now
	}
	least = map[string]int{}
	for what, names := range serving {
		if what == Groups {
			continue
		}
		w := waiting[what]
		mostFree := slices.SortedFunc(slices.Values(names), func(a, b string) int {
			return cmp.Or(first(w.some(a))-first(w.some(b)), nodes[b].free()-nodes[a].free(), strings.Compare(a, b))
		})
		for i, name := range mostFree {
			least[name] = max(least[name], s.free)
			if i < leastReserve {
				least[name] = max(least[name], min(w.Devices, maxGPUs))
			}
		}
	}
	return least, shrink
}
