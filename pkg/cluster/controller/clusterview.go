// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"

	"gpu-dra-driver/pkg/cluster/admission"
	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
)

// settle is the time for which changes are collected before a new view is built.
const settle = 50 * time.Millisecond

type viewKeeper struct {
	driver string
	nodes  *nodes
	asker  ask.Asker
	recent recent
	// onDemand is passed to each admission.ClusterView.
	onDemand bool

	dirty   chan struct{}
	current atomic.Pointer[admission.ClusterView]
}

func newViewKeeper(driver string, nodes *nodes, classes cache.Indexer, recent recent, onDemand bool) *viewKeeper {
	k := &viewKeeper{
		driver: driver, nodes: nodes,
		asker:  ask.Asker{Evaluator: ask.NewEvaluator(), Classes: resourcelisters.NewDeviceClassLister(classes)},
		recent: recent, onDemand: onDemand, dirty: make(chan struct{}, 1),
	}
	k.build()
	return k
}

// build builds a view of the current shapes. While they are unchanged, it keeps the current view and its caches,
// because the view reads the classes by itself.
func (k *viewKeeper) build() (again time.Duration) {
	pools, again := k.recent.with(distinct(k.nodes.withGroups()))
	if v := k.current.Load(); v == nil || !slices.EqualFunc(v.Pools(), pools, alike) {
		next := admission.NewClusterView(k.driver, k.asker, pools)
		next.OnDemand = k.onDemand
		k.current.Store(next)
	}
	return again
}

// distinct returns one pool of each shape. Unhealthy devices count, because they can recover.
func distinct(all []pool.Pool) (out []pool.Pool) {
	whole := slices.DeleteFunc(slices.Clone(all), func(p pool.Pool) bool { return !p.Whole })
	for p := range pool.Distinct(whole) {
		// Work on a faulty node's devices would be without limit.
		if _, ok := p.Shape(); ok && !p.Faulty() {
			out = append(out, p)
		}
	}
	return out
}

// alike reports whether two pools have the same shape.
func alike(a, b pool.Pool) bool {
	x, _ := a.Shape()
	y, _ := b.Shape()
	return x == y
}

// nodes caches the pool of each node, so that a change on one node costs the work for one node. It is safe for
// concurrent use.
type nodes struct {
	slices cache.Indexer

	// autoGroups has the meaning of Options.AutoGroups.
	autoGroups bool

	mu sync.Mutex
	// known are the pools as published; possible ones have the groups that nodes publish once an object asks for them.
	known, possible map[string]pool.Pool
	// changed are the nodes whose pools are outdated.
	changed map[string]bool
}

func (n *nodes) invalidate(node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changed[node] = true
}

// pools returns the published devices.
func (n *nodes) pools() []pool.Pool { return n.updated(n.known) }

// withGroups returns the published devices, and the groups that nodes publish once an object asks for them.
func (n *nodes) withGroups() []pool.Pool { return n.updated(n.possible) }

// updated reads the changed nodes, and returns the pools of one of the maps.
func (n *nodes) updated(pools map[string]pool.Pool) []pool.Pool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for node := range n.changed {
		all := read.SlicesOf(n.slices, node)
		if len(all) == 0 {
			delete(n.known, node)
			delete(n.possible, node)
			continue
		}
		n.known[node] = pool.Of(all)
		n.possible[node] = n.known[node]
		if n.autoGroups {
			n.possible[node] = n.known[node].WithGroups()
		}
	}
	clear(n.changed)
	return slices.Collect(maps.Values(pools))
}

// recent keeps shapes for the grace period: a node whose kubelet starts, or whose pool is being written, still exists.
// No warning should say that the cluster lacks its model.
type recent struct {
	grace time.Duration
	last  map[[32]*pool.Shape]seen
}

// seen is a pool and the time when its shape last existed.
type seen struct {
	pool pool.Pool
	at   time.Time
}

// with adds the shapes of the grace period to the current pools, in the order of nodes. It returns when the next of
// them expires, or 0.
func (r *recent) with(now []pool.Pool) (all []pool.Pool, again time.Duration) {
	if r.last == nil {
		r.last = map[[32]*pool.Shape]seen{}
	}
	current := map[[32]*pool.Shape]bool{}
	for _, p := range now {
		if key, ok := p.Shape(); ok {
			current[key], r.last[key] = true, seen{p, time.Now()}
		}
	}
	for key, s := range r.last {
		if rest := r.grace - time.Since(s.at); !current[key] {
			if rest <= 0 {
				delete(r.last, key)
				continue
			}
			again = sooner(again, rest)
		}
		all = append(all, s.pool)
	}
	slices.SortFunc(all, func(a, b pool.Pool) int { return cmp.Compare(a.Node, b.Node) })
	return all, again
}
