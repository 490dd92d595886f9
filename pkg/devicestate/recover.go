// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/cdi"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
)

// ErrNoClaim means that the API server answered that it has no claim with the UID.
var ErrNoClaim = errors.New("no such claim")

type Claims interface {
	// Get returns ErrNoClaim if the claim is deleted or another claim has its name. Without a name it searches.
	Get(ctx context.Context, claim plan.Claim) (*resourceapi.ResourceClaim, error)
	// GetCached is Get from the server's cache, which costs less and may be a moment old.
	GetCached(ctx context.Context, claim plan.Claim) (*resourceapi.ResourceClaim, error)
}

// Finding is Recover's result for one claim.
type Finding struct {
	Claim plan.Claim
	// Found is the record's state, or "spec" for a CDI spec without a record.
	Found string
	// Did is the completed action.
	Did string
	// Err is the reason why the recovery is incomplete; it is retried.
	Err error
}

// Recover makes records and effects consistent, for all claims concurrently. It waits for Options.WorkLimit; then work
// continues on the remaining claims, each with a finding. It may run concurrently with Prepare and Unprepare and waits
// for their locks. Consistent claims yield no findings.
func (e *Engine) Recover(ctx context.Context) ([]Finding, error) {
	e.mark(func() { e.pending = false })
	if _, err := e.o.Host.BootID(); err != nil {
		return nil, err // Each claim would fail.
	}
	uids, specs, err := e.uids()
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	minors := minorsOf(e) // Before specs are written: Renumbered notices a later change.
	e.mark(func() { e.minors = minors })
	// All outdated specs go before one is written: two GPUs can have changed their numbers.
	unconfirmed, err := e.confirm(ctx)
	if err != nil {
		return nil, err
	}
	var findings []Finding
	for _, uid := range union(uids, specs) {
		f := Finding{Claim: plan.Claim{UID: uid}}
		if r, err := e.records.Get(uid); err == nil {
			f.Claim, f.Found = r.Plan.Claim, string(r.State)
		}
		findings = append(findings, f)
	}
	findings = e.eachClaim(ctx, &e.recovering, e.o.WorkLimit, findings,
		func(ctx context.Context, f *Finding) (err error) {
			f.Did, err = e.recoverClaim(ctx, f)
			return failure(ctx, "recovery", f.Claim, err)
		})
	return append(unconfirmed, findings...), nil
}

func (e *Engine) uids() (records, specs []string, err error) {
	if records, err = e.records.UIDs(); err == nil {
		specs, err = e.o.Specs.UIDs()
	}
	return records, specs, err
}

// recoverClaim recovers one claim and stores the claim and its state in the finding.
func (e *Engine) recoverClaim(ctx context.Context, f *Finding) (did string, err error) {
	uid := f.Claim.UID
	lock, boot, err := e.lockClaim(ctx, uid)
	if err != nil {
		return "", err
	}
	defer lock.Release()
	r, err := e.current(uid, boot)
	if err != nil {
		return "", err
	}
	now := phaseOf(r, boot)
	if now == absent {
		return e.recoverOrphan(ctx, f, boot)
	}
	if err := errors.Join(e.o.Specs.RemoveUnfinished(uid), e.records.RemoveUnfinished(uid)); err != nil {
		return "", err
	}
	f.Claim, f.Found = r.Plan.Claim, string(r.State)
	locks, err := e.lockGPUs(ctx, r.Plan.HeldGPUs()...)
	if err != nil {
		return "", err
	}
	defer locks.release()
	switch now {
	case replacing:
		_, err = e.restoreCommit(ctx, r, boot, locks)
		return "undone; the claim keeps its devices", err
	case intent:
		err := e.release(ctx, r, boot, locks)
		if errors.Is(err, plan.ErrKept) {
			return "", nil // Incomplete says so, until a later pass completes it.
		}
		return "undone", err
	case committedEarlier:
		// The effects ended with their boot. The record stays, because the claim is still allocated and the next
		// Prepare creates the effects again. A spec of an earlier boot would contain outdated device numbers.
		if _, err := e.o.Specs.Read(uid); err == nil {
			return "spec of an earlier boot removed", e.o.Specs.Remove(uid)
		}
	case committed:
		return e.repair(ctx, r, locks)
	}
	return "", nil
}

// recoverOrphan restores a record that is gone if the effects exist. Otherwise it removes the spec, which a crash left
// before the commit. It reports nothing if the claim was released before its lock was taken.
func (e *Engine) recoverOrphan(ctx context.Context, f *Finding, boot string) (did string, err error) {
	uids, specs, err := e.uids()
	if err != nil || !slices.Contains(union(uids, specs), f.Claim.UID) {
		return "", err
	}
	f.Found = "spec"
	lost, err := e.lostRecord(f.Claim.UID, boot)
	if err != nil {
		return "", err
	}
	if phaseOf(lost, boot) != absent {
		locks, err := e.lockGPUs(ctx, lost.Plan.HeldGPUs()...)
		if err != nil {
			return "", err
		}
		defer locks.release()
		switch err = e.checkSteps(ctx, lost.Plan, locks); {
		case err == nil: // An error of the restored record must not remove the spec.
			return "record restored from the spec", e.restoreLost(lost)
		case !errors.Is(err, plan.ErrDestroyed) && !errors.Is(err, fs.ErrNotExist):
			return "record restored from the spec", err
		}
	}
	return "removed", e.removeOrphan(f.Claim.UID)
}

// repair checks the effects of a committed record of this boot, and repairs the spec. It reports a missing effect and
// removes the spec, but does not create the effect again: a container that used it must end first. The next Prepare,
// which precedes any new container, creates it.
func (e *Engine) repair(ctx context.Context, r record.Record, locks gpuLocks) (did string, err error) {
	if err := e.withdrawUnchecked(r.Plan.Claim, e.checkSteps(ctx, r.Plan, locks)); err != nil {
		return "", err
	}
	if _, err := e.o.Specs.Read(r.Plan.Claim.UID); errors.Is(err, fs.ErrNotExist) {
		did = "spec rewritten"
	}
	return did, e.writeSpec(ctx, r.Plan, r.BootID)
}

// Verify checks the recorded effects of claims concurrently, and removes the specs of claims without them. It waits as
// Recover does, and its findings have errors only.
func (e *Engine) Verify(ctx context.Context, claims []plan.Claim) []Finding {
	var findings []Finding
	for _, c := range claims {
		findings = append(findings, Finding{Claim: c, Found: string(record.Committed)})
	}
	return e.eachClaim(ctx, &e.verifying, e.o.WorkLimit, findings, func(ctx context.Context, f *Finding) error {
		return e.verify(ctx, f.Claim)
	})
}

// verify checks one claim. A claim without a commit of this boot has no effects.
func (e *Engine) verify(ctx context.Context, claim plan.Claim) error {
	lock, boot, err := e.lockClaim(ctx, claim.UID)
	if err != nil {
		return err
	}
	defer lock.Release()
	r, err := e.record(claim.UID)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, record.ErrUnreadable) {
		return nil // It was released meanwhile, or Recover handles it.
	}
	if err != nil {
		return err
	}
	if phaseOf(r, boot) != committed {
		return nil
	}
	locks, err := e.lockGPUs(ctx, r.Plan.HeldGPUs()...)
	if err != nil {
		return err
	}
	defer locks.release()
	return e.withdrawUnchecked(r.Plan.Claim, e.checkSteps(ctx, r.Plan, locks))
}

// Identify looks up the claims of unreadable records and rebuilds their records.
func (e *Engine) Identify(ctx context.Context, claims Claims) ([]Finding, error) {
	uids, err := e.records.Unknown()
	if err != nil {
		return nil, err
	}
	var findings []Finding
	for _, uid := range uids {
		findings = append(findings, Finding{Claim: plan.Claim{UID: uid}, Found: string(record.Unknown)})
	}
	findings = e.eachClaim(ctx, &e.identifying, e.o.WorkLimit, findings, func(ctx context.Context, f *Finding) error {
		did, err := e.identify(ctx, f, claims)
		if err == nil {
			f.Did = did
		}
		return err
	})
	e.releaseKept(ctx)
	return findings, nil
}

func (e *Engine) identify(ctx context.Context, f *Finding, claims Claims) (did string, err error) {
	uid := f.Claim.UID
	claim, err := claims.Get(ctx, f.Claim)
	if errors.Is(err, ErrNoClaim) {
		return "", nil // DeletedClaims releases it.
	}
	if err != nil {
		return "", err
	}
	p, err := e.o.Planner(claim, e.node())
	if err != nil {
		return "", err
	}
	f.Claim = p.Claim
	lock, boot, err := e.lockClaim(ctx, uid)
	if err != nil {
		return "", err
	}
	defer lock.Release()
	locks, err := e.lockGPUs(ctx, p.HeldGPUs()...)
	if err != nil {
		return "", err
	}
	defer locks.release()
	r, err := e.current(uid, boot)
	if err != nil || phaseOf(r, boot) != unknown {
		return "", err // Its spec is back, or another call rebuilt it meanwhile.
	}
	if len(p.Devices) == 0 {
		return "released, because the claim has no devices", e.release(ctx, r, boot, locks)
	}
	_, err = e.adopt(p, boot, locks)
	return fmt.Sprintf("rebuilt from the claim's %d devices", len(p.Devices)), err
}

// rebuild replaces an unreadable record and keeps the damaged file in quarantine. The plan in the CDI spec keeps its
// devices blocked. Without a spec, the new record blocks every GPU that no other claim holds, until the claim is looked
// up or released. If the disk is full, it returns the new record beside the error. The caller holds the claim's lock.
func (e *Engine) rebuild(uid, boot string, damage error) (record.Record, error) {
	r, err := e.ofSpec(uid, boot)
	if err != nil {
		// A failed read must not turn its partitions into external ones.
		return record.Record{}, errors.Join(damage, err)
	}
	blocked := "the claim keeps its devices, according to its CDI spec"
	if phaseOf(r, boot) == unknown {
		blocked = "GPUs that no claim holds are unavailable until this claim is looked up or released"
	}
	aside, err := e.records.SetAside(uid)
	if err == nil {
		if phaseOf(r, boot) == unknown {
			r.Aside = filepath.Base(aside)
		}
		err = e.records.Put(r)
	}
	if err != nil {
		return r, errors.Join(damage, err)
	}
	e.o.Reports.Report(&claimerror.Error{
		Reason:  claimerror.RecordUnreadable,
		Attempt: "read the record",
		Claim:   r.Plan.Claim.String(),
		UID:     r.Plan.Claim.UID,
		Cause:   damage,
		Remedy:  "the damaged file is in " + aside + "; " + blocked,
	})
	return r, nil
}

// known returns what an unknown record stands for: the damaged record, or the plan in the claim's CDI spec, if one of
// them is readable again. A damaged record also shows whether the claim's release has begun.
func (e *Engine) known(lost record.Record, boot string) (record.Record, error) {
	if r, err := e.records.Aside(lost); err == nil {
		return r, nil
	}
	r, err := e.ofSpec(lost.Plan.Claim.UID, boot)
	if err != nil || phaseOf(r, boot) == unknown {
		return lost, err
	}
	return r, nil
}

// lostRecord returns the record of a claim whose record is gone. Steps begin after a record is written, and the spec
// ends before it. So a spec of this boot with steps proves that the claim has effects. Without one it returns the zero
// Record, and an error if the spec exists and is unreadable.
func (e *Engine) lostRecord(uid, boot string) (record.Record, error) {
	if _, err := e.o.Specs.Read(uid); errors.Is(err, fs.ErrNotExist) {
		return record.Record{}, nil
	}
	r, err := e.ofSpec(uid, boot)
	if err != nil || phaseOf(r, boot) != committed || len(r.Plan.Steps) == 0 {
		return record.Record{}, err
	}
	return r, nil
}

// restoreLost writes a lostRecord. The caller holds the claim's lock.
func (e *Engine) restoreLost(r record.Record) error {
	if err := e.records.Put(r); err != nil {
		return err
	}
	e.o.Reports.Report(&claimerror.Error{
		Reason:  claimerror.RecordUnreadable,
		Attempt: "read the record",
		Claim:   r.Plan.Claim.String(),
		UID:     r.Plan.Claim.UID,
		Cause:   errors.New("the file is gone, but the claim's CDI spec is there"),
		Remedy:  "the claim keeps its devices, according to its CDI spec; check the node's disk",
	})
	return nil
}

// Incomplete reports whether another Recover is needed. Since the last one began, a record was unreadable or an intent
// was left, or a release waits for a claim of unknown devices.
func (e *Engine) Incomplete() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pending || len(e.kept) > 0
}

// errSpecUnreadable means that a CDI spec is on a bad sector.
var errSpecUnreadable = errors.New("the CDI spec is not readable")

func unknownRecord(uid, boot string) record.Record {
	return record.Record{State: record.Unknown, BootID: boot, Plan: plan.Plan{Claim: plan.Claim{UID: uid}}}
}

// record reads a claim's record. Recover rebuilds an unreadable one.
func (e *Engine) record(uid string) (record.Record, error) {
	r, err := e.records.Get(uid)
	if errors.Is(err, record.ErrUnreadable) {
		e.mark(func() { e.pending = true })
	}
	return r, err
}

// ofSpec returns a record from the plan in the claim's CDI spec. Without that plan the record is unknown.
func (e *Engine) ofSpec(uid, boot string) (record.Record, error) {
	r := unknownRecord(uid, boot)
	spec, err := e.o.Specs.Read(uid)
	if errors.Is(err, syscall.EIO) {
		err = fmt.Errorf("%w: %w", errSpecUnreadable, err)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return record.Record{}, fmt.Errorf("read the CDI spec: %w", err)
	}
	if p, carriedOut, err := cdi.PlanOf(e.o.Driver, spec); err == nil && p.Claim.UID == uid {
		r.State, r.Plan, r.BootID = record.Committed, p, cmp.Or(carriedOut, boot)
	}
	return r, nil
}
