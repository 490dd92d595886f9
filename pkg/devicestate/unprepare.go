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

// Unprepare undoes the preparation of a claim and returns after it is complete. It succeeds for a claim that is not
// prepared. It needs neither the API server nor NVML.
func (e *Engine) Unprepare(ctx context.Context, claim plan.Claim) error {
	if !record.ValidUID(claim.UID) {
		return nil // No claim with such a UID was ever prepared.
	}
	return failure(ctx, "unprepare", claim, e.unprepare(ctx, claim))
}

func (e *Engine) unprepare(ctx context.Context, claim plan.Claim) error {
	lock, err := e.lockClaim(ctx, claim.UID)
	if err != nil {
		return err
	}
	defer lock.Release()
	old, err := e.current(claim.UID)
	if err != nil {
		return err
	}
	if old.State == "" {
		return e.removeOrphan(claim.UID)
	}
	locks, err := e.lockGPUs(ctx, old.Plan.HeldGPUs()...)
	if err != nil {
		return err
	}
	defer locks.release()
	boot, err := e.o.Host.BootID()
	if err != nil {
		return err
	}
	return e.release(ctx, old, boot, locks)
}

// release undoes a record's effects and removes the record. It writes a releasing record only if a crash could strand
// an effect, so that pods with whole GPUs can end while the disk is full. The caller holds the claim and GPU locks.
func (e *Engine) release(ctx context.Context, r record.Record, boot string, locks gpuLocks) error {
	if r.State != record.Releasing && len(r.Plan.Steps) > 0 {
		r.State = record.Releasing
		if err := e.records.Put(r); err != nil {
			return err
		}
	}
	if err := e.undoRecord(ctx, r, boot, locks); err != nil {
		return err
	}
	if err := e.records.Remove(r.Plan.Claim.UID); err != nil {
		return err
	}
	for _, address := range slices.Sorted(maps.Keys(locks)) {
		e.removeNote(locks[address], r.Plan.Claim.UID)
	}
	return nil
}

// restoreCommit undoes an intent that replaced a commit of an earlier boot, and restores that commit. The caller holds
// the claim and GPU locks.
func (e *Engine) restoreCommit(ctx context.Context, r record.Record, boot string, locks gpuLocks) (record.Record, error) {
	if err := e.undoRecord(ctx, r, boot, locks); err != nil {
		return record.Record{}, err
	}
	r = record.Record{State: record.Committed, BootID: r.Renews, Plan: r.Plan}
	return r, e.records.Put(r)
}

// removeOrphan removes the spec and the unfinished files of a claim without a record.
func (e *Engine) removeOrphan(uid string) error {
	return errors.Join(e.o.Specs.Remove(uid), e.records.Remove(uid))
}
