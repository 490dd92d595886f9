// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nvmltest

import (
	"slices"
	"sync"
	"time"

	"gpu-dra-driver/internal/nvml"
)

// Call is a call of one of NVML's C functions. A function that changes the GPU is two calls: one before its effect, and
// one after it.
type Call struct {
	Query string
	// GPU is a UUID, empty for a call without a GPU.
	GPU         string
	AfterEffect bool
}

func (c Call) String() string {
	if c.AfterEffect {
		return c.Query + ", done, on " + c.GPU
	}
	return c.Query + " on " + c.GPU
}

// Calls answers calls of NVML with a code, or lets them hang. The zero Calls lets all calls pass. Its Do is a hook of
// sim/nvmlfake.
type Calls struct {
	mu    sync.Mutex
	match func(n int, c Call) bool
	code  nvml.Code
	hung  chan Call
	// clear is closed by Clear, and releases hanging calls.
	clear chan struct{}
	seen  []Call
	// limit is closed while the limits of calls have passed.
	limit   chan time.Time
	expired bool
}

// Nth matches one call, counted from 0.
func Nth(n int) func(int, Call) bool { return func(i int, _ Call) bool { return i == n } }

// On matches all calls for a GPU.
func On(uuid string) func(int, Call) bool { return func(_ int, c Call) bool { return c.GPU == uuid } }

// Of matches all calls of a function, for one GPU or, with an empty UUID, for all.
func Of(query, uuid string) func(int, Call) bool {
	return func(_ int, c Call) bool { return c.Query == query && (uuid == "" || c.GPU == uuid) }
}

// Answer makes matching calls return a code until Clear, and counts calls anew. With code 0 it only counts.
func (f *Calls) Answer(code nvml.Code, match func(n int, c Call) bool) {
	f.set(match, code, nil)
}

// Hang makes matching calls hang until Clear, then pass. The channel receives each of them once it hangs.
func (f *Calls) Hang(match func(n int, c Call) bool) <-chan Call {
	hung := make(chan Call, 1000)
	f.set(match, 0, hung)
	return hung
}

func (f *Calls) set(match func(n int, c Call) bool, code nvml.Code, hung chan Call) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.release()
	f.match, f.code, f.hung, f.seen, f.clear = match, code, hung, nil, make(chan struct{})
}

// Clear lets hanging and later calls pass. It returns the calls since Answer or Hang.
func (f *Calls) Clear() []Call {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.release()
	f.match = nil
	if f.expired {
		f.limit, f.expired = nil, false
	}
	return slices.Clone(f.seen)
}

// Expire makes all limits pass until Clear.
func (f *Calls) Expire() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.limitOf())
	f.expired = true
}

// After is the clock of limits, on which time passes only by Expire.
func (f *Calls) After(time.Duration) <-chan time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.limitOf()
}

func (f *Calls) limitOf() chan time.Time {
	if f.limit == nil {
		f.limit = make(chan time.Time)
	}
	return f.limit
}

func (f *Calls) release() {
	if f.match != nil {
		close(f.clear)
	}
}

func (f *Calls) Do(query, uuid string, afterEffect bool) nvml.Code {
	f.mu.Lock()
	c := Call{query, uuid, afterEffect}
	if f.match == nil {
		f.mu.Unlock()
		return 0
	}
	f.seen = append(f.seen, c)
	matches, code, hung, clear := f.match(len(f.seen)-1, c), f.code, f.hung, f.clear
	f.mu.Unlock()
	switch {
	case !matches:
		return 0
	case hung != nil:
		hung <- c
		<-clear
	}
	return code
}
