// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"time"

	"gpu-dra-driver/pkg/gpu"
)

// Locker locks GPUs. *devicestate.Engine implements it.
type Locker interface {
	// WithIdleGPU calls do while it holds the lock of a GPU without claims, and reports whether it did.
	WithIdleGPU(ctx context.Context, address string, do func() error) (bool, error)
}

// IdleModes restores the MIG modes of GPUs that no claim has used for a while.
type IdleModes struct {
	x        *Executor
	locker   Locker
	snapshot func() gpu.Snapshot
	after    time.Duration
	since    map[string]time.Time
}

// NewIdleModes returns IdleModes. A GPU must be idle for the duration after; 0 keeps modes on until a claim takes the
// whole GPU.
func NewIdleModes(x *Executor, locker Locker, snapshot func() gpu.Snapshot, after time.Duration) *IdleModes {
	return &IdleModes{x: x, locker: locker, snapshot: snapshot, after: after}
}

// Reconcile checks each GPU whose mode this driver switched on. Call it from one goroutine, at intervals shorter than
// the duration. It returns the failed switches, which the next call repeats.
func (i *IdleModes) Reconcile(ctx context.Context) (failed []error) {
	addresses, err := i.x.modes.Addresses()
	if err != nil {
		return []error{err}
	}
	snapshot, since := i.snapshot(), map[string]time.Time{}
	for _, address := range addresses {
		g, ok := snapshot.ByAddress(address)
		if !ok {
			continue // The GPU is gone. Its record stays until it returns.
		}
		first, seen := i.since[address]
		if !seen {
			first = i.x.host.Now()
		}
		due := seen && i.after > 0 && i.x.host.Now().Sub(first) >= i.after
		idle, err := i.locker.WithIdleGPU(ctx, address, func() error {
			if err := i.x.dropDead(g); err != nil || !due {
				return err
			}
			return i.x.Restore(ctx, g)
		})
		if err != nil {
			failed = append(failed, err)
		}
		if idle && (!due || err != nil) {
			since[address] = first
		}
	}
	i.since = since
	return failed
}
