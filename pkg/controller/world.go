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

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/tools/cache"

	"gpu-dra-driver/pkg/admission"
	"gpu-dra-driver/pkg/fleet"
)

// settle is how long changes are collected before what follows from all slices is worked out anew.
const settle = 50 * time.Millisecond

// worlds keeps the World that reviews read.
type worlds struct {
	driver  string
	nodes   *nodes
	classes cache.Indexer
	cache   *admission.Cache
	recent  recent

	dirty   chan struct{}
	current atomic.Pointer[admission.World]
	// changed hears of each new World.
	changed func()
}

func newWorlds(driver string, nodes *nodes, classes cache.Indexer, recent recent, changed func()) *worlds {
	w := &worlds{
		driver: driver, nodes: nodes, classes: classes, cache: admission.NewCache(), recent: recent, dirty: make(chan struct{}, 1), changed: changed,
	}
	w.build()
	return w
}

// touch says that a slice or a class has changed.
func (w *worlds) touch() {
	select {
	case w.dirty <- struct{}{}:
	default:
	}
}

// run keeps the World up to date until the context ends.
func (w *worlds) run(ctx context.Context) {
	forget := time.NewTimer(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-forget.C:
		case <-w.dirty:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(settle):
		}
		if again := w.build(); again > 0 {
			forget.Reset(again)
		}
		w.changed()
	}
}

// build makes a World of the shapes there are now. While they stay the same the one there is goes on, and with it what it
// has found out: it looks at the classes itself.
func (w *worlds) build() (again time.Duration) {
	now, again := w.recent.with(distinct(w.nodes.pools()))
	if is := w.current.Load(); is != nil && slices.EqualFunc(is.Pools, now, alike) {
		return again
	}
	world := &admission.World{Driver: w.driver, ClassNamed: w.class, Classes: w.classes.ListKeys, Cache: w.cache, Pools: now}
	world.Prepare()
	w.current.Store(world)
	return again
}

func (w *worlds) class(name string) *resourceapi.DeviceClass {
	object, _, _ := w.classes.GetByKey(name) // The cache has no errors.
	class, _ := object.(*resourceapi.DeviceClass)
	return class
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
