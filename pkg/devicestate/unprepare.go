// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"context"
	"errors"
	"maps"
	"slices"

	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/record"
)

// Unprepare undoes all that was prepared for a claim and answers once nothing of it is left. A claim that is not
// prepared is a success. It needs neither the API server nor NVML.
func (e *Engine) Unprepare(ctx context.Context, claim plan.Claim) error {
	if !record.ValidUID(claim.UID) {
		return nil // No claim of such a UID was ever prepared.
	}
	fail := func(err error) error { return e.failure(ctx, "unprepare", plan.Plan{Claim: claim}, err) }
	lock, err := e.lockClaim(ctx, claim.UID)
	if err != nil {
		return fail(err)
	}
	defer lock.Release()
	old, found, err := e.current(claim)
	if err != nil {
		return fail(err)
	}
	if !found {
		if err := e.sweep(claim.UID); err != nil {
			return fail(err)
		}
		return nil
	}
	locks, err := e.lockGPUs(ctx, old.Plan.Exclusive())
	if err != nil {
		return fail(err)
	}
	defer locks.release()
	boot, err := e.Host.BootID()
	if err != nil {
		return fail(err)
	}
	if err := e.release(ctx, old, boot, locks); err != nil {
		return fail(err)
	}
	return nil
}

// release undoes a record's effects and removes it. Claim and GPU locks are held. As Prepare needs no intent where
// nothing can be stranded, this needs no releasing record there, so that a pod can end while the disk is full.
func (e *Engine) release(ctx context.Context, r record.Record, boot string, locks gpuLocks) error {
	if r.State != record.Releasing && len(r.Plan.Steps) > 0 {
		r.State = record.Releasing
		if err := e.records.Put(r); err != nil {
			return err
		}
	}
	// Effects of an earlier boot died with it.
	beside, err := e.beside(r.Plan, boot, locks)
	if err != nil {
		return err
	}
	if err := e.undo(ctx, r.Plan, all(r.Plan, r.BootID == boot), beside); err != nil {
		return err
	}
	if err := e.records.Remove(r.Plan.Claim.UID); err != nil {
		return err
	}
	for _, address := range slices.Sorted(maps.Keys(locks)) {
		e.forget(locks[address], r.Plan.Claim.UID)
	}
	return nil
}

// giveBack undoes an intent that followed a commit of an earlier boot and gives the claim that commit back. Claim and
// GPU locks are held.
func (e *Engine) giveBack(ctx context.Context, r record.Record, boot string, locks gpuLocks) (record.Record, error) {
	beside, err := e.beside(r.Plan, boot, locks)
	if err != nil {
		return record.Record{}, err
	}
	if err := e.undo(ctx, r.Plan, all(r.Plan, r.BootID == boot), beside); err != nil {
		return record.Record{}, err
	}
	r = record.Record{State: record.Committed, BootID: r.Renews, Plan: r.Plan}
	return r, e.records.Put(r)
}

// sweep removes what a claim without a record can have left: its spec and unfinished files.
func (e *Engine) sweep(uid string) error {
	return errors.Join(e.Specs.Remove(uid), e.records.Remove(uid))
}
