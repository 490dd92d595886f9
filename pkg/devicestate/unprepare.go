// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
)

// Unprepare undoes the preparation of a claim and returns after it is complete. It succeeds for a claim that is not
// prepared. It does not need the API server. Only a partition needs NVML.
func (e *Engine) Unprepare(ctx context.Context, claim plan.Claim) error {
	if !record.ValidUID(claim.UID) {
		return nil // No claim with such a UID was ever prepared.
	}
	ctx, cancel := e.limited(ctx)
	defer cancel()
	err := failure(ctx, "unprepare", claim, host.Guard(func() error { return e.unprepare(ctx, claim) }))
	e.releaseKept(ctx)
	return err
}

func (e *Engine) unprepare(ctx context.Context, claim plan.Claim) error {
	lock, boot, err := e.lockClaim(ctx, claim.UID)
	if err != nil {
		return err
	}
	defer lock.Release()
	return e.unprepareLocked(ctx, claim, boot)
}

// unprepareLocked is unprepare for a caller that holds the claim's lock.
func (e *Engine) unprepareLocked(ctx context.Context, claim plan.Claim, boot string) error {
	old, err := e.current(claim.UID, boot)
	if e.readLater(old, boot, err) {
		return e.postpone(claim, old, boot, err)
	}
	if phaseOf(old, boot) == absent {
		if err != nil {
			return err // A full disk prevents the replacement of an unreadable record, but not its release.
		}
		// An unreadable spec holds up no pod.
		if old, err = e.lostRecord(claim.UID, boot); err != nil || phaseOf(old, boot) == absent {
			return e.removeOrphan(claim.UID)
		}
	}
	locks, err := e.lockGPUs(ctx, old.Plan.HeldGPUs()...)
	if err != nil {
		return err
	}
	defer locks.release()
	err = e.release(ctx, old, boot, locks)
	if errors.Is(err, plan.ErrKept) {
		return nil // Its containers have ended, and its record is an intent that a later call completes.
	}
	return err
}

// readLater reports whether the plan of a claim without a readable one may be on a bad sector, from the result of
// current: the disk may read it later.
func (e *Engine) readLater(r record.Record, boot string, err error) bool {
	if phaseOf(r, boot) != unknown || err != nil {
		return errors.Is(err, errSpecUnreadable)
	}
	_, err = e.records.Aside(r)
	return err == nil || errors.Is(err, syscall.EIO)
}

// postpone lets the pod of a claim end while the claim's record and CDI spec are on bad sectors. A record in the state
// Unknown owns the effects. Recover undoes them once the disk reads a file again, or DeletedClaims gives them up.
func (e *Engine) postpone(claim plan.Claim, old record.Record, boot string, cause error) error {
	e.mark(func() { e.pending = true })
	if phaseOf(old, boot) == unknown {
		return nil
	}
	if err := e.records.Undo(claim.UID); err != nil {
		return err
	}
	r := unknownRecord(claim.UID, boot)
	r.Plan.Claim = claim
	aside, err := e.records.SetAside(claim.UID)
	if err == nil {
		r.Aside = filepath.Base(aside)
		err = e.records.Put(r)
	}
	// Without this record, as on a full disk, the file on the bad sector keeps the effects.
	e.o.Reports.Report(&claimerror.Error{
		Reason:  claimerror.RecordUnreadable,
		Attempt: "unprepare",
		Claim:   claim.String(),
		UID:     claim.UID,
		Cause:   errors.Join(cause, err),
		Remedy: "its pod can end. GPUs that no claim holds are unavailable until the disk reads a file of the claim " +
			"again, or some time after the claim's deletion; check the node's disk",
	})
	return nil
}

// abandon removes the record of a claim that is deleted and whose plan no file shows. Its partition becomes an external
// one.
func (e *Engine) abandon(ctx context.Context, r record.Record, boot string) error {
	if err := e.release(ctx, r, boot, nil); err != nil {
		return err
	}
	e.o.Reports.Report(&claimerror.Error{
		Reason: claimerror.RecordUnreadable, Attempt: "unprepare", Claim: r.Plan.Claim.String(), UID: r.Plan.Claim.UID,
		Cause: errors.New("the claim is deleted, and the disk still does not read its record"),
		Remedy: "a partition of it stays as if an administrator had made it. Destroy it (nvidia-smi mig -dci, then " +
			"-dgi) and check the node's disk",
	})
	return nil
}

// release undoes a record's effects and removes the record. It writes no file, so that pods can end while the disk is
// full. The caller holds the claim and GPU locks. After plan.ErrKept the record is an intent. It owns the effects that
// a claim with an unreadable record may need. Without it they would be external once that claim is known.
func (e *Engine) release(ctx context.Context, r record.Record, boot string, locks gpuLocks) error {
	if phaseOf(r, boot).prepared() && len(r.Plan.Steps) > 0 { // Otherwise a crash leaves nothing to undo.
		if err := e.records.Undo(r.Plan.Claim.UID); err != nil {
			return err
		}
	}
	if err := e.undoRecord(ctx, r, boot, locks); err != nil {
		if errors.Is(err, plan.ErrKept) {
			e.keep(r.Plan.Claim, err)
		}
		return err
	}
	if err := e.records.Remove(r.Plan.Claim.UID); err != nil {
		return err
	}
	e.mark(func() { delete(e.kept, r.Plan.Claim.UID) })
	for _, address := range slices.Sorted(maps.Keys(locks)) {
		e.removeNote(locks[address].Lock, r.Plan.Claim.UID, boot)
	}
	return nil
}

// restoreCommit undoes an intent that replaced a commit of an earlier boot, and restores that commit. The caller holds
// the claim and GPU locks.
func (e *Engine) restoreCommit(
	ctx context.Context, r record.Record, boot string, locks gpuLocks,
) (record.Record, error) {
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

// eachStep calls do for a GPU's steps in order, until the first error.
func (e *Engine) eachStep(
	p plan.Plan, address string, others coTenants, do func(i int, x Executor, w plan.Work) error,
) error {
	for i := range p.Steps {
		if err := e.step(p, i, address, others, do); err != nil {
			return err
		}
	}
	return nil
}

// step calls do with one step, if it belongs to the GPU.
func (e *Engine) step(
	p plan.Plan, i int, address string, others coTenants, do func(i int, x Executor, w plan.Work) error,
) error {
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
		w := plan.Work{Step: step, Devices: p.Devices, OnGPU: others[address].devices, Unknown: others[address].unknown}
		err := do(i, x, w)
		for j := range p.Devices { // Requests of one partition share the step.
			if p.Devices[j].Name == w.Target().Name {
				p.Devices[j].Partition = w.Target().Partition
			}
		}
		return err
	}
	return &claimerror.Error{
		Reason:  claimerror.HostFailure,
		Attempt: "work on GPU " + address,
		Claim:   p.Claim.String(),
		UID:     p.Claim.UID,
		Cause:   cause,
		Remedy:  "install the version that prepared the claim, or a later one; the claim keeps its record until then",
	}
}

// coTenants are the other claims whose effects of this boot may exist, by PCI address.
type coTenants map[string]gpuCoTenants

type gpuCoTenants struct {
	devices []plan.CoTenant
	// unknown are the UIDs of claims that neither a record nor a CDI spec describes.
	unknown []string
}

// coTenants finds them for the plan's steps. The caller holds the GPUs' locks, so the result stays valid.
func (e *Engine) coTenants(p plan.Plan, boot string, locks gpuLocks) (coTenants, error) {
	out := coTenants{}
	for _, step := range p.Steps {
		address := step.PCIAddress
		if _, known := out[address]; known || locks[address] == nil {
			continue
		}
		var on gpuCoTenants
		_, err := e.others(locks[address], address, boot, p.Claim.UID, func(uid string, r record.Record) error {
			now := phaseOf(r, boot)
			switch {
			case now == unknown:
				on.unknown = append(on.unknown, uid)
				return nil
			case r.BootID != boot:
				return nil
			case now != committed:
				// Its work ended without success, as this caller has the GPU's lock.
				e.mark(func() { e.pending = true })
			}
			for _, d := range r.Plan.Devices {
				on.devices = append(on.devices,
					plan.CoTenant{Claim: r.Plan.Claim, Device: d, Committed: now == committed})
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		out[address] = on
	}
	return out, nil
}

// checkSteps checks the effects of a committed plan.
func (e *Engine) checkSteps(ctx context.Context, p plan.Plan, locks gpuLocks) error {
	return e.eachGPU(ctx, p, locks, func(p plan.Plan, address string) error {
		return e.eachStep(p, address, nil, func(_ int, x Executor, w plan.Work) error { return x.Check(ctx, w) })
	})
}

// undo removes the spec, so that no container can start, then reverts the steps that may have changed the GPU, in
// reverse order. It returns plan.ErrKept after all other steps if an effect stays for a claim of unknown devices.
func (e *Engine) undo(ctx context.Context, p plan.Plan, locks gpuLocks, changed []bool, others coTenants) error {
	if err := e.o.Specs.Remove(p.Claim.UID); err != nil {
		return err
	}
	kept := make([]error, len(p.Steps)) // GPUs are reverted concurrently, each step by one of them.
	err := e.eachGPU(ctx, p, locks, func(p plan.Plan, address string) error {
		for i := len(p.Steps) - 1; i >= 0; i-- {
			if p.Steps[i].PCIAddress != address || !changed[i] { // Work that hangs may change the other GPU's values.
				continue
			}
			err := e.step(p, i, address, others, func(_ int, x Executor, w plan.Work) error { return x.Revert(ctx, w) })
			if errors.Is(err, plan.ErrKept) {
				kept[i] = keptError(p.Claim, p.Devices[p.Steps[i].Device].Name, others[address].unknown)
				continue
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return cmp.Or(kept...)
}

func keptError(c plan.Claim, device string, unknown []string) error {
	return &claimerror.Error{
		Reason: claimerror.RecordUnreadable, Attempt: "unprepare", Claim: c.String(), UID: c.UID, Device: device,
		Cause: fmt.Errorf("its partition stays: %w (claim UID %s)", plan.ErrKept, strings.Join(unknown, ", ")),
		Remedy: "this claim's pod can end; the plugin removes the partition once the other claim is looked up or " +
			"released. Check the node's disk",
	}
}

// keep notes that a claim's release is incomplete, and reports it once.
func (e *Engine) keep(c plan.Claim, err error) {
	again := false
	e.mark(func() {
		_, again = e.kept[c.UID]
		e.kept[c.UID] = c
	})
	if !again {
		e.o.Reports.Report(err)
	}
}

func (e *Engine) mark(change func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change()
}

// releaseKept tries again to release the claims whose effects were kept: a claim that was unknown may be known or
// released now. It does not wait, and Recover tries too.
func (e *Engine) releaseKept(ctx context.Context) {
	var findings []Finding
	e.mark(func() {
		for _, c := range e.kept {
			findings = append(findings, Finding{Claim: c})
		}
	})
	if len(findings) == 0 {
		return
	}
	e.eachClaim(context.WithoutCancel(ctx), &e.keeping, 0, findings, func(ctx context.Context, f *Finding) error {
		ctx, cancel := context.WithTimeout(ctx, undoTime)
		defer cancel()
		lock, boot, err := e.lockClaim(ctx, f.Claim.UID)
		if err != nil {
			return err
		}
		defer lock.Release()
		r, err := e.record(f.Claim.UID)
		if now := phaseOf(r, boot); errors.Is(err, fs.ErrNotExist) || err == nil && now != intent && now != replacing {
			e.mark(func() { delete(e.kept, f.Claim.UID) }) // Another call completed it, or prepared the claim again.
			return nil
		}
		if err != nil {
			return err
		}
		return e.unprepareLocked(ctx, f.Claim, boot)
	})
}

// undoRecord undoes a record's plan. Effects of an earlier boot no longer exist. The caller holds the claim and GPU
// locks.
func (e *Engine) undoRecord(ctx context.Context, r record.Record, boot string, locks gpuLocks) error {
	others, err := e.coTenants(r.Plan, boot, locks)
	if err != nil {
		return err
	}
	return e.undo(ctx, r.Plan, locks, slices.Repeat([]bool{r.BootID == boot}, len(r.Plan.Steps)), others)
}
