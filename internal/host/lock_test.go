// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"
)

var background = context.Background()

func mustLock(t *testing.T, h *Host, path string, at int64) *Lock {
	t.Helper()
	ctx, cancel := context.WithTimeout(background, time.Minute)
	defer cancel()
	l, err := h.Lock(ctx, path, at)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// until polls for asynchronous changes of the kernel and the scheduler.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("in vain for", what)
		}
	}
}

func (h *Host) waiting(path string, at int64) int {
	h.locks.mu.Lock()
	defer h.locks.mu.Unlock()
	if q := h.locks.queues[lockKey{path, at}]; q != nil {
		return len(q.waiters)
	}
	return 0
}

func TestLock_ManyWaiters_GrantedInOrder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l")
	h := New(Options{})
	first := mustLock(t, h, path, 3)
	var order []int
	var mu sync.Mutex
	var all sync.WaitGroup
	const n = 20
	for i := range n {
		all.Go(func() {
			l, err := h.Lock(background, path, 3)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			order = append(order, i)
			mu.Unlock()
			l.Release()
		})
		until(t, "a waiter to queue", func() bool { return h.waiting(path, 3) == i+1 })
	}
	first.Release()
	all.Wait()
	for i, got := range order {
		if got != i {
			t.Fatalf("served in order %v", order)
		}
	}
	if len(h.locks.queues) > 0 {
		t.Errorf("queues left: %v", h.locks.queues)
	}
}

func TestLock_OtherBytesAndFiles_Independent(t *testing.T) {
	dir := t.TempDir()
	h, other := New(Options{}), New(Options{})
	a := mustLock(t, h, filepath.Join(dir, "l"), 1<<61)
	b := mustLock(t, h, filepath.Join(dir, "l"), 1<<61+1)
	c := mustLock(t, other, filepath.Join(dir, "l"), 0)
	d := mustLock(t, other, filepath.Join(dir, "m"), 1<<61)
	for _, l := range []*Lock{a, b, c, d} {
		l.Release()
	}
}

func TestLock_WaiterLeaves_NextIsGranted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l")
	for _, mine := range []bool{true, false} {
		h := New(Options{})
		holder := h
		if !mine {
			holder = New(Options{}) // another process
		}
		held := mustLock(t, holder, path, 0)
		ctx, cancel := context.WithCancelCause(background)
		gone := errors.New("the kubelet hung up")
		left := make(chan error, 1)
		go func() { _, err := h.Lock(ctx, path, 0); left <- err }()
		until(t, "the first waiter", func() bool { return h.waiting(path, 0) == 1 })
		got := make(chan *Lock, 1)
		go func() { got <- mustLock(t, h, path, 0) }()
		until(t, "the second waiter", func() bool { return h.waiting(path, 0) == 2 })
		cancel(gone)
		if err := <-left; !errors.Is(err, gone) {
			t.Error(err)
		}
		select {
		case <-got:
			t.Fatal("two hold the lock")
		default:
		}
		held.Release()
		(<-got).Release()
		if _, err := h.Lock(ctx, path, 0); !errors.Is(err, gone) {
			t.Error("a caller who had gone got", err)
		}
	}
}

func TestLock_LastWaiterLeaves_GivenBackToKernel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l")
	h, other := New(Options{}), New(Options{})
	held := mustLock(t, other, path, 0)
	ctx, cancel := context.WithCancel(background)
	left := make(chan error, 1)
	go func() { _, err := h.Lock(ctx, path, 0); left <- err }()
	until(t, "the waiter", func() bool { return h.waiting(path, 0) == 1 })
	cancel()
	<-left
	held.Release() // The kernel now gives it to h, which has no waiter.
	mustLock(t, other, path, 0).Release()
	mustLock(t, h, path, 0).Release()
}

// TestLock_TwoProcesses_Exclude lets two hosts, as two processes, contend for two bytes of one file.
func TestLock_TwoProcesses_Exclude(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l")
	one, two := New(Options{}), New(Options{})
	held := mustLock(t, one, path, 0)
	ctx, cancel := context.WithTimeout(background, 50*time.Millisecond)
	defer cancel()
	if _, err := two.Lock(ctx, path, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal("two hold the lock:", err)
	}
	held.Release()
	var inside [2]int
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, h := range []*Host{one, two} {
		for w := range 4 {
			all.Go(func() {
				for range 100 {
					l, err := h.Lock(background, path, int64(w%2))
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if inside[w%2]++; inside[w%2] > 1 {
						t.Error("two inside")
					}
					mu.Unlock()
					runtime.Gosched() // Lets the other process run while the lock is held.
					mu.Lock()
					inside[w%2]--
					mu.Unlock()
					l.Release()
				}
			})
		}
	}
	all.Wait()
}

func TestClose_HeldLocks_Released(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l")
	dead, alive := New(Options{}), New(Options{})
	mine := mustLock(t, alive, path, 7)
	_ = mustLock(t, dead, path, 1)
	// A thread of the ended process waits in the kernel for another byte of the same file.
	go func() { _, _ = dead.Lock(background, path, 7) }()
	until(t, "the thread to hang", func() bool { return dead.waiting(path, 7) == 1 })
	dead.Close()
	mustLock(t, alive, path, 1).Release()
	if _, err := dead.Lock(background, path, 2); !errors.Is(err, os.ErrClosed) {
		t.Error("a closed host locks:", err)
	}
	mine.Release()
	mustLock(t, alive, path, 7).Release()
}

func TestLock_NoDirectory_ReturnsError(t *testing.T) {
	if _, err := New(Options{}).Lock(background, filepath.Join(t.TempDir(), "none", "l"), 0); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// TestLock_FileDeleted_StillExcludesProcesses deletes a lock file that two processes have open, between two of their locks.
func TestLock_FileDeleted_StillExcludesProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l")
	one, two := New(Options{}), New(Options{})
	t.Cleanup(one.Close)
	t.Cleanup(two.Close)
	mustLock(t, one, path, 0).Release()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	held := mustLock(t, two, path, 0) // Like a new process.
	got := make(chan *Lock, 1)
	go func() {
		l, err := one.Lock(background, path, 0)
		if err != nil {
			t.Error(err)
		}
		got <- l
	}()
	until(t, "the second process to wait", func() bool { return one.waiting(path, 0) == 1 })
	held.Release()
	(<-got).Release()
}
