// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/record"
)

// Unprepare undoes the preparation of a claim and returns after it is complete. It succeeds for a claim that is not
// prepared. It does not need the API server. Only a partition needs NVML.
func (e *Engine) Unprepare(ctx context.Context, claim plan.Claim) error {
	if !record.ValidUID(claim.UID) {
		return nil // No claim with such a UID was ever prepared.
	}
	return failure(ctx, "unprepare", claim, host.Guard(func() error { return e.unprepare(ctx, claim) }))
}

func (e *Engine) unprepare(ctx context.Context, claim plan.Claim) error {
	lock, err := e.lockClaim(ctx, claim.UID)
	if err != nil {
		return err
	}
	defer lock.Release()
	return e.unprepareLocked(ctx, claim)
}

// unprepareLocked is unprepare for a caller that holds the claim's lock.
func (e *Engine) unprepareLocked(ctx context.Context, claim plan.Claim) error {
	old, err := e.current(claim.UID)
	if err != nil && old.State == "" {
		return err // A full disk prevents the replacement of an unreadable record, but not its release.
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

// release undoes a record's effects and removes the record. It writes no file, so that pods can end while the disk is
// full. The caller holds the claim and GPU locks.
func (e *Engine) release(ctx context.Context, r record.Record, boot string, locks gpuLocks) error {
	if r.State == record.Committed && len(r.Plan.Steps) > 0 { // Otherwise a crash leaves nothing to undo.
		if err := e.records.Undo(r.Plan.Claim.UID); err != nil {
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
		e.removeNote(locks[address].Lock, r.Plan.Claim.UID)
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

// eachGPU calls work for each GPU, concurrently because creating a partition takes a second. A failure on one GPU does
// not stop the work on others.
func (e *Engine) eachGPU(p plan.Plan, work func(address string) error) error {
	return host.Parallel(e.o.Host, p.HeldGPUs(), work)
}

// eachStep calls do for a GPU's steps in order, until the first error.
func (e *Engine) eachStep(p plan.Plan, address string, others coTenants, do func(i int, x Executor, w plan.Work) error) error {
	for i := range p.Steps {
		if err := e.step(p, i, address, others, do); err != nil {
			return err
		}
	}
	return nil
}

// step calls do with one step, if it belongs to the GPU.
func (e *Engine) step(p plan.Plan, i int, address string, others coTenants, do func(i int, x Executor, w plan.Work) error) error {
	step := p.Steps[i]
	if step.PCIAddress != address {
		return nil
	}
	x, ok := e.o.Executors[step.Executor]
	var cause error
	switch {
	case !ok:
		cause = fmt.Errorf("this version of the driver has no executor %q", step.Executor)
	case step.Device < 0 || step.Device >= len(p.Devices):
		cause = fmt.Errorf("the claim's record has %d devices, but a step for device %d", len(p.Devices), step.Device)
	default:
		w := plan.Work{Step: step, Devices: p.Devices, OnGPU: others[address]}
		err := do(i, x, w)
		for j := range p.Devices { // Requests of one partition share the step.
			if p.Devices[j].Name == w.Target().Name {
				p.Devices[j].Partition = w.Target().Partition
			}
		}
		return err
	}
	return &claimerror.Error{
		Reason: claimerror.HostFailure, Attempt: "work on GPU " + address, Claim: p.Claim.String(), Cause: cause,
		Remedy: "install the version that prepared the claim, or a later one; the claim keeps its record until then",
	}
}

// coTenants are the devices of other claims whose effects of this boot may exist, by PCI address.
type coTenants map[string][]plan.CoTenant

// coTenants finds them for the plan's steps. The caller holds the GPUs' locks, so the result stays valid.
func (e *Engine) coTenants(p plan.Plan, boot string, locks gpuLocks) (coTenants, error) {
	out := coTenants{}
	for _, step := range p.Steps {
		address := step.PCIAddress
		if _, known := out[address]; known || locks[address] == nil {
			continue
		}
		out[address] = nil
		_, err := e.others(locks[address], address, boot, p.Claim.UID, func(_ string, r record.Record, err error) error {
			switch {
			case errors.Is(err, record.ErrUnreadable):
				return nil // An unreadable record blocks new claims, but not the release of this one.
			case err != nil:
				return err
			case r.State == record.Unknown || r.BootID != boot:
				return nil
			}
			for _, d := range r.Plan.Devices {
				out[address] = append(out[address],
					plan.CoTenant{Claim: r.Plan.Claim, Device: d, Committed: r.State == record.Committed})
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// checkSteps checks the effects of a committed plan.
func (e *Engine) checkSteps(ctx context.Context, p plan.Plan) error {
	return e.eachGPU(p, func(address string) error {
		return e.eachStep(p, address, nil, func(_ int, x Executor, w plan.Work) error { return x.Check(ctx, w) })
	})
}

// undo removes the spec, so that no container can start, then reverts the steps that may have changed the GPU, in
// reverse order.
func (e *Engine) undo(ctx context.Context, p plan.Plan, changed []bool, others coTenants) error {
	if err := e.o.Specs.Remove(p.Claim.UID); err != nil {
		return err
	}
	return e.eachGPU(p, func(address string) error {
		for i := len(p.Steps) - 1; i >= 0; i-- {
			if !changed[i] {
				continue
			}
			err := e.step(p, i, address, others, func(_ int, x Executor, w plan.Work) error { return x.Revert(ctx, w) })
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// undoRecord undoes a record's plan. Effects of an earlier boot no longer exist. The caller holds the claim and GPU
// locks.
func (e *Engine) undoRecord(ctx context.Context, r record.Record, boot string, locks gpuLocks) error {
	others, err := e.coTenants(r.Plan, boot, locks)
	if err != nil {
		return err
	}
	return e.undo(ctx, r.Plan, slices.Repeat([]bool{r.BootID == boot}, len(r.Plan.Steps)), others)
}
