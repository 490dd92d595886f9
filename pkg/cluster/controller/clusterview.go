// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/cluster/admission"
	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire/schedulerfault"
)

// settle is the time for which changes are collected before a new view is built.
const settle = 50 * time.Millisecond

type viewKeeper struct {
	driver string
	nodes  *nodes
	asker  ask.Asker
	// onDemand is passed to each admission.ClusterView.
	onDemand bool

	// server is the version of the API server, once it is known.
	server  atomic.Pointer[schedulerfault.Version]
	dirty   chan struct{}
	current atomic.Pointer[admission.ClusterView]
}

func newViewKeeper(driver string, nodes *nodes, classes cache.Indexer, onDemand bool) *viewKeeper {
	k := &viewKeeper{
		driver: driver, nodes: nodes,
		asker:    ask.Following(classes),
		onDemand: onDemand, dirty: make(chan struct{}, 1),
	}
	k.build()
	return k
}

// versionInterval and versionRetry are the times between two reads of the API server's version.
const versionInterval, versionRetry = 10 * time.Minute, time.Minute

// readVersion reads the API server's version, by which reviews ask its scheduler's allocator.
func (k *viewKeeper) readVersion(
	ctx context.Context, server discovery.ServerVersionInterfaceWithContext,
) (again time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, versionRetry)
	defer cancel()
	info, err := server.ServerVersionWithContext(ctx)
	var version schedulerfault.Version
	if err == nil {
		version, err = schedulerfault.Parse(info.GitVersion)
	}
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot read the API server's version; reviews ask the newest allocator", "err",
			err)
		return versionRetry
	}
	if was := k.server.Swap(&version); was == nil || *was != version {
		Trigger(k.dirty)
	}
	return versionInterval
}

// build builds a view of the current shapes. While they are unchanged, it keeps the current view and its caches,
// because the view reads the classes by itself.
func (k *viewKeeper) build() (again time.Duration) {
	pools, again := k.nodes.shapes()
	asker := k.asker
	if version := k.server.Load(); version != nil {
		asker.Server = *version
	}
	if v := k.current.Load(); v == nil || v.Server != asker.Server || !slices.EqualFunc(v.Pools(), pools, alike) {
		next := admission.NewClusterView(k.driver, asker, pools)
		next.OnDemand = k.onDemand
		k.current.Store(next)
	}
	return again
}

// alike reports whether two pools have the same shape.
func alike(a, b pool.Pool) bool {
	x, _ := a.Shape()
	y, _ := b.Shape()
	return x == y
}

// nodes caches the pools of each node, so that a change on one node costs the work for one node, and a node has one
// place, however often it changes. It is safe for concurrent use.
type nodes struct {
	slices cache.Indexer
	// grace is the time for which the last complete pool of a node counts.
	grace time.Duration
	// auto has the meaning of Options.Auto.
	auto []gpu.Kind
	// samples has the partitions that nodes could publish.
	samples *pool.Samples

	mu    sync.Mutex
	known map[string]*node
	// changed are the nodes whose pools are outdated.
	changed map[string]bool
}

// node holds the pools of a node.
type node struct {
	// published is the pool as published, without slices if there is none. partitioned also has the partitions that the
	// node publishes once an object asks for them. possible has such groups and monitor devices too.
	published, partitioned, possible pool.Pool
	// layouts are the MIG layouts of its slices.
	layouts []string
	// whole is the last published pool that was complete, and last the possible one of it. A node whose kubelet starts,
	// or whose pool is being written, still exists: no warning should say that the cluster lacks its model.
	whole, last pool.Pool
	incomplete  absence
}

func newNodes(slices cache.Indexer, grace time.Duration, auto []gpu.Kind) *nodes {
	return &nodes{
		slices:  slices,
		grace:   grace,
		auto:    auto,
		samples: pool.NewSamples(),
		known:   map[string]*node{},
		changed: map[string]bool{},
	}
}

func (n *nodes) invalidate(node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changed[node] = true
}

// Pools returns the published devices.
func (n *nodes) Pools() []pool.Pool {
	return n.updated(func(one *node) pool.Pool { return one.published })
}

// Partitioned returns the published devices, and one of each partition that nodes publish once an object asks for it.
func (n *nodes) Partitioned() []pool.Pool {
	return n.updated(func(one *node) pool.Pool { return one.partitioned })
}

// Possible returns the published devices, and those that nodes publish once an object asks for them: one of each kind.
func (n *nodes) Possible() []pool.Pool {
	return n.updated(func(one *node) pool.Pool { return one.possible })
}

func (n *nodes) updated(which func(*node) pool.Pool) (out []pool.Pool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.update()
	for _, one := range n.known {
		if p := which(one); len(p.Slices) > 0 {
			out = append(out, p)
		}
	}
	return out
}

// shapes returns one pool of each shape that a node had when it was last complete, in the order of nodes. Unhealthy
// devices count, because they can recover. It returns when the next node is forgotten, or 0.
func (n *nodes) shapes() (out []pool.Pool, again time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.update()
	var all []pool.Pool
	forgotten := false
	for name, one := range n.known {
		rest := one.incomplete.left(n.grace, !one.published.Whole)
		switch {
		case rest > 0:
			again = Sooner(again, rest)
		case len(one.published.Slices) == 0:
			delete(n.known, name)
			forgotten = true
			continue
		case !one.published.Whole:
			one.whole, one.last = pool.Pool{}, pool.Pool{}
		}
		if len(one.last.Slices) > 0 {
			all = append(all, one.last)
		}
	}
	if forgotten {
		n.samples.Keep(n.layouts())
	}
	for p := range pool.Distinct(all) {
		// Work on a faulty node's devices would be without limit.
		if _, ok := p.Shape(); ok && !p.Faulty() {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b pool.Pool) int { return cmp.Compare(a.Node, b.Node) })
	return out, again
}

// layouts returns the MIG layouts of all nodes. The caller holds n.mu.
func (n *nodes) layouts() map[string]bool {
	out := map[string]bool{}
	for _, one := range n.known {
		for _, name := range one.layouts {
			out[name] = true
		}
	}
	return out
}

// update reads the changed nodes, and the others of a layout that became known: its partitions are possible there too.
// The caller holds n.mu.
func (n *nodes) update() {
	var learnt []string
	for name := range n.changed {
		one := n.known[name]
		if one == nil {
			one = &node{}
			n.known[name] = one
		}
		one.published = pool.Of(read.SlicesOf(n.slices, name))
		one.layouts = append(one.published.Layouts(), one.whole.Layouts()...)
		learnt = append(learnt, n.samples.Learn(one.published)...)
	}
	for name := range n.changed {
		n.known[name].extend(n.samples, n.auto)
	}
	clear(n.changed)
	if len(learnt) == 0 {
		return
	}
	for _, one := range n.known {
		if slices.ContainsFunc(learnt, func(layout string) bool { return slices.Contains(one.layouts, layout) }) {
			one.extend(n.samples, n.auto)
		}
	}
	if len(n.samples.Known()) > manyLayouts {
		n.samples.Keep(n.layouts())
	}
}

// manyLayouts is the number of known layouts above which those of no node are forgotten early.
const manyLayouts = 100

// extend adds the devices that the node could publish.
func (n *node) extend(samples *pool.Samples, auto []gpu.Kind) {
	n.partitioned = samples.Add(n.published)
	n.possible = n.partitioned.With(auto...)
	if n.published.Whole {
		n.whole, n.last = n.published, n.possible
	} else {
		n.last = samples.Add(n.whole).With(auto...)
	}
}
