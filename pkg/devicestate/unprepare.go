// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"gpu-dra-driver/pkg/devicestate/plan"
	"gpu-dra-driver/pkg/devicestate/record"
)

// Unprepare undoes all that was prepared for a claim and answers once nothing of it is left. A claim that is not
// prepared is a success. It needs neither the API server nor NVML.
func (e *Engine) Unprepare(ctx context.Context, claim plan.Claim) error {
	p := plan.Plan{Claim: claim}
	lock, err := e.lockClaim(ctx, claim.UID)
	if err != nil {
		return e.interrupted("unprepare", p, err)
	}
	defer lock.Release()
	old, found, err := e.current(claim)
	if err != nil {
		return e.failure("unprepare", p, err)
	}
	if !found {
		if err := e.sweep(claim.UID); err != nil {
			return e.failure("unprepare", p, err)
		}
		return nil
	}
	locks, err := e.lockGPUs(ctx, old.Plan.Exclusive())
	if err != nil {
		return e.interrupted("unprepare", p, err)
	}
	defer locks.release()
	boot, err := e.Host.BootID()
	if err != nil {
		return e.failure("unprepare", p, err)
	}
	if err := e.release(ctx, old, boot, locks); err != nil {
		return e.failure("unprepare", p, err)
	}
	return nil
}

// release undoes a record's effects and removes it. Claim and GPU locks are held.
func (e *Engine) release(ctx context.Context, r record.Record, boot string, locks gpuLocks) error {
	if r.State != record.Releasing {
		r.State = record.Releasing
		if err := e.records.Put(r); err != nil {
			return err
		}
	}
	// Effects of an earlier boot died with it.
	if err := e.undo(ctx, r.Plan, r.BootID == boot); err != nil {
		return err
	}
	for address, lock := range locks {
		was, err := lock.Notes()
		if err != nil {
			continue // A note without a record means nothing.
		}
		notes := slices.DeleteFunc(slices.Clone(was), func(uid string) bool { return uid == r.Plan.Claim.UID })
		if err := e.Host.SetNotes(LabelNotes, lock, was, notes); err != nil {
			return fmt.Errorf("GPU %s: %w", address, err)
		}
	}
	return nil
}

// undo removes the spec, so that nothing new can start, then the effects in reverse, then the record.
func (e *Engine) undo(ctx context.Context, p plan.Plan, alive bool) error {
	if err := e.Specs.Remove(p.Claim.UID); err != nil {
		return err
	}
	if alive {
		for _, step := range slices.Backward(p.Steps) {
			executor, ok := e.Executors[step.Executor]
			if !ok {
				return fmt.Errorf("no executor %q in this version of the driver", step.Executor)
			}
			if err := executor.Revert(ctx, step); err != nil {
				return err
			}
		}
	}
	return e.records.Remove(p.Claim.UID)
}

// sweep removes what a claim without a record can have left: its spec and unfinished files.
func (e *Engine) sweep(uid string) error {
	return errors.Join(e.Specs.Remove(uid), e.records.Remove(uid))
}
