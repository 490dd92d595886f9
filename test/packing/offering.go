// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

const (
	// keepOffering is the time for which a node offers partitions and shares after it was last needed.
	keepOffering = time.Hour
	// burst is the time between two growths up to which the second one is twice as large as the first.
	burst = time.Minute
)

// growth is the size of a step of the set of nodes that offer partitions and shares.
type growth string

const (
	// doubled means that each growth doubles the set. stepped means that it adds one node, and twice as many as the last
	// growth if that was less than a minute ago.
	doubled growth = "doubled"
	stepped growth = "stepped"
)

// offering is the set of nodes that offer partitions and shares. It is a value: update and grow return another one.
type offering struct {
	growth growth
	// needed has the time at which each node was last needed: when it joined, or last held a claim for a part of a GPU.
	needed map[string]time.Time
	// grown is the time of the last growth, which added step nodes if there were as many.
	grown time.Time
	step  int
}

// candidate is the rule's view of a node of the cluster.
type candidate struct {
	name string
	// held is the number of claims for parts of the node's GPUs.
	held int
	// free is the number of wholly free GPUs.
	free int
	// fits means that the waiting request would fit on the node, if the node offered partitions and shares.
	fits bool
}

// has reports whether a node offers partitions and shares.
func (o offering) has(name string) bool {
	_, ok := o.needed[name]
	return ok
}

// grow returns the set for a request that fits on none of its nodes. Nodes on which the request fits join, those with the
// fewest free GPUs first, so that whole nodes stay whole. One growth is therefore enough for a request. The set stays as
// it is if the request fits nowhere.
func (o offering) grow(nodes []candidate, now time.Time) offering {
	var joining []candidate
	for _, n := range nodes {
		if n.fits && !o.has(n.name) {
			joining = append(joining, n)
		}
	}
	if len(joining) == 0 {
		return o
	}
	slices.SortFunc(joining, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.free, b.free), cmp.Compare(a.name, b.name))
	})
	next := offering{growth: o.growth, needed: maps.Clone(o.needed), grown: now, step: 1}
	if next.needed == nil {
		next.needed = map[string]time.Time{}
	}
	switch {
	case o.growth == doubled:
		next.step = max(1, len(o.needed))
	case now.Sub(o.grown) < burst:
		next.step = 2 * max(1, o.step)
	}
	for _, n := range joining[:min(len(joining), next.step)] {
		next.needed[n.name] = now
	}
	return next
}

// update returns the set with all nodes that hold claims for parts, and without the nodes that were not needed for an
// hour. Call it before grow, so that the set does not grow while a node that is cut already has room.
func (o offering) update(nodes []candidate, now time.Time) offering {
	next := o
	next.needed = map[string]time.Time{}
	for _, n := range nodes {
		needed, offers := o.needed[n.name]
		switch {
		case n.held > 0:
			next.needed[n.name] = now
		case offers && now.Sub(needed) < keepOffering:
			next.needed[n.name] = needed
		}
	}
	return next
}
