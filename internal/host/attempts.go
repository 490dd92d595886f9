// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"maps"
	"slices"
	"sync"
)

// Attempts makes one attempt at a time for each key, such as a GPU. One that hangs holds up no other key, and its own
// key gets no second attempt before it ends. The zero value is ready, and safe for concurrent use.
type Attempts[T any] struct {
	// Ordered makes attempts one after the other, in the caller's goroutine.
	Ordered bool

	mu      sync.Mutex
	running map[string]T
	ended   []Attempt[T]
}

// Attempt is an attempt that ended.
type Attempt[T any] struct {
	Item T
	Err  error
}

// Begin calls do, guarded, with a copy of each item whose key has no attempt in progress. The channel receives a value
// for each of these calls that ends, and is closed after the last one.
func (a *Attempts[T]) Begin(items map[string]T, do func(*T) error) (ended <-chan struct{}) {
	begun := a.begin(items)
	each, all := make(chan struct{}, len(begun)), new(sync.WaitGroup)
	for _, key := range begun {
		item := items[key]
		attempt := func() {
			err := Guard(func() error { return do(&item) })
			a.end(key, Attempt[T]{item, err})
			each <- struct{}{}
		}
		if a.Ordered {
			attempt()
		} else {
			all.Go(attempt)
		}
	}
	go func() {
		all.Wait()
		close(each)
	}()
	return each
}

// Each is Begin and Results, once all these calls have ended or the context has.
func (a *Attempts[T]) Each(
	ctx context.Context, items map[string]T, do func(*T) error,
) (ended []Attempt[T], running []T) {
	begun := a.Begin(items, do)
	for open := true; open; {
		select {
		case _, open = <-begun:
		case <-ctx.Done():
			open = false
		}
	}
	return a.Results()
}

// Results returns the attempts that ended, once each, and the items of those in progress as they were given. Both can
// be of earlier calls of Begin.
func (a *Attempts[T]) Results() (ended []Attempt[T], running []T) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ended, a.ended = a.ended, nil
	for _, key := range slices.Sorted(maps.Keys(a.running)) {
		running = append(running, a.running[key])
	}
	return ended, running
}

// begin notes an attempt for each key without one, and returns these keys in order.
func (a *Attempts[T]) begin(items map[string]T) (begun []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running == nil {
		a.running = map[string]T{}
	}
	for _, key := range slices.Sorted(maps.Keys(items)) {
		if _, runs := a.running[key]; !runs {
			a.running[key] = items[key]
			begun = append(begun, key)
		}
	}
	return begun
}

func (a *Attempts[T]) end(key string, result Attempt[T]) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.running, key)
	a.ended = append(a.ended, result)
}
