// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"maps"
	"slices"
	"sync"

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
