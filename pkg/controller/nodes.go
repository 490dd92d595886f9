// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"

	"gpu-dra-driver/pkg/fleet"
)

// nodes keeps the pool of each node, so that one node's change among thousands costs one node's work. It is safe for
// concurrent use.
type nodes struct {
	slices cache.Indexer

	mu    sync.Mutex
	known map[string]fleet.Pool
	// changed are the nodes whose pools are to be put together anew.
	changed map[string]bool
}

func newNodes(slices cache.Indexer) *nodes {
	return &nodes{slices: slices, known: map[string]fleet.Pool{}, changed: map[string]bool{}}
}

// invalidate says that a slice of a node has changed.
func (n *nodes) invalidate(node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changed[node] = true
}

// pools are those of all nodes.
func (n *nodes) pools() []fleet.Pool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for node := range n.changed {
		if all := slicesOf(n.slices, node); len(all) > 0 {
			n.known[node] = fleet.PoolOf(all)
		} else {
			delete(n.known, node)
		}
	}
	clear(n.changed)
	return slices.Collect(maps.Values(n.known))
}

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
