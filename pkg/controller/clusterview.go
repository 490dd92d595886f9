// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"

	"gpu-dra-driver/pkg/admission"
	"gpu-dra-driver/pkg/fleet"
)

// settle is how long changes are collected before what follows from all slices is worked out anew.
const settle = 50 * time.Millisecond

// viewKeeper keeps the ClusterView that reviews read.
type viewKeeper struct {
	driver  string
	nodes   *nodes
	classes resourcelisters.DeviceClassLister
	cache   *admission.Cache
	recent  recent

	dirty   chan struct{}
	current atomic.Pointer[admission.ClusterView]
	// changed is called after each build.
	changed func()
}

func newViewKeeper(driver string, nodes *nodes, classes cache.Indexer, recent recent, changed func()) *viewKeeper {
	k := &viewKeeper{
		driver: driver, nodes: nodes, classes: resourcelisters.NewDeviceClassLister(classes), cache: admission.NewCache(),
		recent: recent, dirty: make(chan struct{}, 1), changed: changed,
	}
	k.build()
	return k
}

// run keeps the view up to date until the context ends.
func (k *viewKeeper) run(ctx context.Context) {
	forget := time.NewTimer(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-forget.C:
		case <-k.dirty:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(settle):
		}
		if again := k.build(); again > 0 {
			forget.Reset(again)
		}
		k.changed()
	}
}

// build makes a view of the current shapes. While they stay the same, the present view stays with all that it has cached:
// it reads the classes itself.
func (k *viewKeeper) build() (again time.Duration) {
	pools, again := k.recent.with(distinct(k.nodes.pools()))
	if v := k.current.Load(); v == nil || !slices.EqualFunc(v.Pools(), pools, alike) {
		k.current.Store(admission.NewClusterView(k.driver, k.classes, pools, admission.Options{Cache: k.cache}))
	}
	return again
}

// distinct keeps one pool of each shape, in the order of their nodes. What is not well now can be tomorrow, and counts.
func distinct(all []fleet.Pool) []fleet.Pool {
	first := map[[32]*fleet.Shape]fleet.Pool{}
	for _, p := range all {
		key, ok := p.Shape()
		if !p.Whole || !ok {
			continue
		}
		if known, seen := first[key]; !seen || p.Node < known.Node {
			first[key] = p
		}
	}
	return slices.SortedFunc(maps.Values(first), func(a, b fleet.Pool) int { return cmp.Compare(a.Node, b.Node) })
}

// alike says that two pools have the same shape.
func alike(a, b fleet.Pool) bool {
	x, _ := a.Shape()
	y, _ := b.Shape()
	return x == y
}
