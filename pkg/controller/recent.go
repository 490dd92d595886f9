// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"slices"
	"time"

	"gpu-dra-driver/pkg/fleet"
)

// recent remembers the shapes of the grace period: a node whose kubelet starts, or whose pool is being written, is not one
// that is gone, and nobody is to hear that the cluster lacks its model.
type recent struct {
	grace time.Duration
	last  map[[32]*fleet.Shape]seen
}

// seen is a pool and when there was last one of its shape.
type seen struct {
	pool fleet.Pool
	at   time.Time
}

// with adds to the pools there are now those of the grace period, in the order of their nodes, and says when one of these
// is to be forgotten, 0 for none.
func (r *recent) with(now []fleet.Pool) (all []fleet.Pool, again time.Duration) {
	if r.last == nil {
		r.last = map[[32]*fleet.Shape]seen{}
	}
	current := map[[32]*fleet.Shape]bool{}
	for _, p := range now {
		if key, ok := p.Shape(); ok {
			current[key], r.last[key] = true, seen{p, time.Now()}
		}
	}
	for key, s := range r.last {
		rest := r.grace - time.Since(s.at)
		switch {
		case current[key]:
		case rest <= 0:
			delete(r.last, key)
			continue
		case again == 0 || rest < again:
			again = rest
		}
		all = append(all, s.pool)
	}
	slices.SortFunc(all, func(a, b fleet.Pool) int { return cmp.Compare(a.Node, b.Node) })
	return all, again
}
