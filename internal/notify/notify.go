// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package notify passes events between the parts of a process. No sender waits for a receiver.
package notify

import "sync/atomic"

// Reporter receives errors that no caller receives.
type Reporter interface {
	// Report must not block.
	Report(err error)
}

// Trigger requests work of one goroutine. Pending requests are merged.
type Trigger chan struct{}

// NewTrigger returns a Trigger for one receiver and any number of senders.
func NewTrigger() Trigger { return make(Trigger, 1) }

// Fire does not block.
func (t Trigger) Fire() {
	select {
	case t <- struct{}{}:
	default:
	}
}

// Newest passes values to one goroutine, which can miss all but the newest one.
type Newest[T any] struct {
	// Changed is fired after each Put.
	Changed Trigger
	value   atomic.Pointer[T]
}

func NewNewest[T any]() *Newest[T] { return &Newest[T]{Changed: NewTrigger()} }

// Put replaces a value that was not taken.
func (n *Newest[T]) Put(value T) {
	n.value.Store(&value)
	n.Changed.Fire()
}

// Take returns the newest value; false if it was taken already.
func (n *Newest[T]) Take() (value T, ok bool) {
	if taken := n.value.Swap(nil); taken != nil {
		return *taken, true
	}
	return value, false
}
