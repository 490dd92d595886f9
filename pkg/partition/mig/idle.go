// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"time"

	"gpu-dra-driver/pkg/gpu"
)

// Idle switches MIG modes back on GPUs that no claim has used for a while, so that what is left behind after the last
// partition is what was found.
type Idle struct {
	Executor *Executor
	// Unheld calls do with the lock of a GPU that no claim holds any part of, and says whether it did.
	Unheld func(ctx context.Context, address string, do func() error) (bool, error)
	// Snapshot is the newest look at the node.
	Snapshot func() gpu.Snapshot
	// After is how long a GPU must be unused. 0: modes are only switched back for a claim of the whole.
	After time.Duration

	since map[string]time.Time
}

// Look asks once about each GPU whose mode this driver switched on. Call it from one goroutine, at intervals below After.
// The errors are of GPUs whose mode could not be switched back; it is tried again.
func (i *Idle) Look(ctx context.Context) (failed []error) {
	addresses, err := i.Executor.Modes.Addresses()
	if err != nil {
		return []error{err}
	}
	snapshot, since := i.Snapshot(), map[string]time.Time{}
	for _, address := range addresses {
		g, ok := snapshot.ByAddress(address)
		if !ok {
			continue // It is gone; the record waits for it.
		}
		first, seen := i.since[address]
		if !seen {
			first = i.Executor.Host.Now()
		}
		due := seen && i.After > 0 && i.Executor.Host.Now().Sub(first) >= i.After
		unheld, err := i.Unheld(ctx, address, func() error {
			if err := i.Executor.Forget(g); err != nil || !due {
				return err
			}
			return i.Executor.Restore(ctx, g)
		})
		if err != nil {
			failed = append(failed, err)
		}
		if unheld && (!due || err != nil) {
			since[address] = first
		}
	}
	i.since = since
	return failed
}
