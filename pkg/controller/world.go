// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/cel"

	"gpu-dra-driver/pkg/admission"
	"gpu-dra-driver/pkg/fleet"
)

// settle is how long changes are collected before what follows from all slices is worked out anew.
const settle = 50 * time.Millisecond

// worlds keeps the World that reviews read.
type worlds struct {
	driver  string
	slices  cache.Indexer
	classes cache.Indexer
	cel     *cel.Cache

	dirty   chan struct{}
	current atomic.Pointer[admission.World]
	// changed hears of each new World.
	changed func()
}

func newWorlds(driver string, slices, classes cache.Indexer, changed func()) *worlds {
	w := &worlds{driver: driver, slices: slices, classes: classes, cel: admission.NewCache(), dirty: make(chan struct{}, 1), changed: changed}
	w.build()
	return w
}

// touch says that a slice has changed.
func (w *worlds) touch() {
	select {
	case w.dirty <- struct{}{}:
	default:
	}
}

// run keeps the World up to date until the context ends.
func (w *worlds) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.dirty:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(settle):
		}
		w.build()
		w.changed()
	}
}

func (w *worlds) build() {
	world := &admission.World{Driver: w.driver, ClassNamed: w.class, Classes: w.classes.ListKeys, Cache: w.cel}
	world.Pools = distinct(pools(w.slices))
	world.Prepare()
	w.current.Store(world)
}

func (w *worlds) class(name string) *resourceapi.DeviceClass {
	object, _, _ := w.classes.GetByKey(name) // The cache has no errors.
	class, _ := object.(*resourceapi.DeviceClass)
	return class
}

// distinct keeps one pool of each shape, in the order of their nodes. What is not well now can be tomorrow, and counts.
func distinct(all []fleet.Pool) []fleet.Pool {
	slices.SortFunc(all, func(a, b fleet.Pool) int { return cmp.Compare(a.Node, b.Node) })
	seen := map[[32]*fleet.Shape]bool{}
	var out []fleet.Pool
	for _, p := range all {
		key, ok := p.Shape()
		if !p.Whole || !ok || seen[key] {
			continue
		}
		seen[key] = true
		out = append(out, p)
	}
	return out
}
