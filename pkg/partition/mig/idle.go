// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"time"

	"gpu-dra-driver/pkg/gpu"
)

// Locker locks GPUs; *devicestate.Engine is the one.
type Locker interface {
	// WithIdleGPU calls do with the lock of a GPU of which no claim holds any part, and says whether it did.
	WithIdleGPU(ctx context.Context, address string, do func() error) (bool, error)
}

// IdleModes switches MIG modes back on GPUs that no claim has used for a while, so that what is left behind after the
// last partition is what was found.
type IdleModes struct {
	x        *Executor
	locker   Locker
	snapshot func() gpu.Snapshot
	after    time.Duration
	since    map[string]time.Time
}

// NewIdleModes makes IdleModes. The duration is how long a GPU must be unused; 0 leaves modes on until a claim takes the
// whole GPU.
func NewIdleModes(x *Executor, locker Locker, snapshot func() gpu.Snapshot, after time.Duration) *IdleModes {
	return &IdleModes{x: x, locker: locker, snapshot: snapshot, after: after}
}

// Reconcile checks each GPU whose mode this driver switched on. Call it from one goroutine, at intervals below the
// duration. The errors are of GPUs whose mode could not be switched back; it is tried again.
func (i *IdleModes) Reconcile(ctx context.Context) (failed []error) {
	addresses, err := i.x.modes.Addresses()
	if err != nil {
		return []error{err}
	}
	snapshot, since := i.snapshot(), map[string]time.Time{}
	for _, address := range addresses {
		g, ok := snapshot.ByAddress(address)
		if !ok {
			continue // It is gone; the record waits for it.
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
