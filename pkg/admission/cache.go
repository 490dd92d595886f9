// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"iter"
	"sync/atomic"
	"weak"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/lru"

	"gpu-dra-driver/pkg/fleet"
	"gpu-dra-driver/pkg/selector"
)

// Cache remembers of selectors what takes long to find: their compiled form, what they say, and which devices satisfy
// them. It holds for every World of a process, since a Shape never changes, and is safe for concurrent use.
type Cache struct {
	compiled *cel.Cache
	readings *lru.Cache // of expressions
	trials   *lru.Cache // of shapeTrial
}

// NewCache makes a cache for as many selectors as a busy cluster has in use.
func NewCache() *Cache {
	return &Cache{cel.NewCache(500, cel.Features{EnableConsumableCapacity: true}), lru.New(500), lru.New(5000)}
}

// reading is what an expression says, and the error of one that cannot be read.
type reading struct {
	selector.Reading
	err error
}

func (c *Cache) read(expression string) (selector.Reading, error) {
	if known, ok := c.readings.Get(expression); ok {
		r := known.(reading)
		return r.Reading, r.err
	}
	said, err := selector.Read(expression)
	c.readings.Add(expression, reading{said, err})
	return said, err
}

// shapeTrial is an expression tried on the devices of a shape, which it does not keep alive.
type shapeTrial struct {
	shape      weak.Pointer[fleet.Shape]
	expression string
}

// What is known of a device and an expression. One that fails is tried again, for its error.
const (
	untried uint32 = iota
	satisfied
	unsatisfied
)

// place is a device in a shape.
type place struct {
	shape *fleet.Shape
	index int
}

// places are all devices of a pool.
func places(p fleet.Pool) iter.Seq[place] {
	return func(yield func(place) bool) {
		for _, s := range p.Slices {
			for i := range s.Shape.Devices {
				if !yield(place{s.Shape, i}) {
					return
				}
			}
		}
	}
}

// tryAt evaluates one selector on a device of the cluster, if it has not been.
func (w *World) tryAt(ctx context.Context, s resourceapi.DeviceSelector, at place) (bool, error) {
	if s.CEL == nil {
		return true, nil
	}
	key := shapeTrial{weak.Make(at.shape), s.CEL.Expression}
	var results []atomic.Uint32
	if known, ok := w.Cache.trials.Get(key); ok {
		results = known.([]atomic.Uint32)
	} else {
		results = make([]atomic.Uint32, len(at.shape.Devices))
		w.Cache.trials.Add(key, results)
	}
	switch results[at.index].Load() {
	case satisfied:
		return true, nil
	case unsatisfied:
		return false, nil
	}
	d := at.shape.Devices[at.index]
	ok, err := w.try(ctx, s, cel.Device{Driver: w.Driver, Attributes: d.Attributes, Capacity: d.Capacity, AllowMultipleAllocations: d.AllowMultipleAllocations})
	switch {
	case err != nil:
	case ok:
		results[at.index].Store(satisfied)
	default:
		results[at.index].Store(unsatisfied)
	}
	return ok, err
}
