// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/cdi"
	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/record"
)

// ErrNoClaim says that the API server holds no claim of a UID: an answer, not a failure to get one.
var ErrNoClaim = errors.New("no such claim")

// Claims looks claims up in the API server.
type Claims interface {
	// Get returns ErrNoClaim where the claim is gone or its name is another claim's now. Without a name it searches.
	Get(ctx context.Context, claim plan.Claim) (*resourceapi.ResourceClaim, error)
}

// Finding is what Recover met and did for one claim.
type Finding struct {
	Claim plan.Claim
	// Found is the record's state, or "spec" for a CDI spec without a record.
	Found string
	// Did says what was done about it.
	Did string
	// Err is why it could not be finished; it is tried again.
	Err error
}

// Recover makes disk and effects agree again, claim by claim, so that one that cannot be mended holds up no other. It
// may run at any time beside Prepare and Unprepare: a claim in work is waited for. Nothing to do gives no findings.
func (e *Engine) Recover(ctx context.Context) ([]Finding, error) {
	boot, err := e.o.Host.BootID()
	if err != nil {
		return nil, err
	}
	uids, specs, err := e.uids()
	if err != nil {
		return nil, err
	}
	var findings []Finding
	for _, uid := range union(uids, specs) {
		if err := ctx.Err(); err != nil {
			return findings, context.Cause(ctx)
		}
		f := Finding{Claim: plan.Claim{UID: uid}}
		if f.Did, f.Err = e.recoverClaim(ctx, &f, boot); f.Did != "" || f.Err != nil {
			findings = append(findings, f)
		}
	}
	return findings, nil
}

// uids lists the claims that have a record, and those that have a spec.
func (e *Engine) uids() (records, specs []string, err error) {
	if records, err = e.records.UIDs(); err == nil {
		specs, err = e.o.Specs.UIDs()
	}
	return records, specs, err
}

// recoverClaim notes the claim and its state in the finding.
func (e *Engine) recoverClaim(ctx context.Context, f *Finding, boot string) (did string, err error) {
	uid := f.Claim.UID
	lock, err := e.lockClaim(ctx, uid)
	if err != nil {
		return "", err
	}
	defer lock.Release()
	r, err := e.current(uid)
	if err != nil {
		return "", err
	}
	if r.State == "" {
		return e.recoverOrphan(f)
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
	switch {
	case r.State == record.Intent && r.Renews != "":
		_, err = e.restoreCommit(ctx, r, boot, locks)
		return "undone, the claim keeps its devices", err
	case r.State == record.Intent || r.State == record.Releasing:
		return "undone", e.release(ctx, r, boot, locks)
	case r.State == record.Committed && r.BootID != boot:
		// The effects died with their boot. The record stays, for the claim is still allocated and the next Prepare
		// builds them again; a spec that outlived the boot would name devices by yesterday's numbers.
		if _, err := e.o.Specs.Read(uid); err == nil {
			return "spec of an earlier boot removed", e.o.Specs.Remove(uid)
		}
	case r.State == record.Committed:
		return e.repair(ctx, r)
	}
	return "", nil
}

// recoverOrphan removes a spec that was written before a crash kept its claim from being committed. There is nothing to
// report where the claim was released between being listed and being locked.
func (e *Engine) recoverOrphan(f *Finding) (did string, err error) {
	uids, specs, err := e.uids()
	if err != nil || !slices.Contains(union(uids, specs), f.Claim.UID) {
		return "", err
	}
	f.Found = "spec"
	return "removed", e.removeOrphan(f.Claim.UID)
}

// repair checks the effects of a committed record of this boot, and repairs the spec. An effect that is gone is reported
// and not made again: a container that ran on it must learn it by its pod's end, and the next Prepare, which precedes
// any new container, makes it.
func (e *Engine) repair(ctx context.Context, r record.Record) (did string, err error) {
	if err := e.checkSteps(ctx, r.Plan); err != nil {
		return "", err
	}
	if _, err := e.o.Specs.Read(r.Plan.Claim.UID); errors.Is(err, fs.ErrNotExist) {
		did = "spec written again"
	}
	return did, e.writeSpec(ctx, r.Plan, r.BootID)
}

// Verify says whether the effects of a claim are there as its record says, and changes nothing. A claim that is not
// committed in this boot has none.
func (e *Engine) Verify(ctx context.Context, claim plan.Claim) error {
	lock, err := e.lockClaim(ctx, claim.UID)
	if err != nil {
		return err
	}
	defer lock.Release()
	r, err := e.records.Get(claim.UID)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, record.ErrUnreadable) {
		return nil // Released meanwhile, or for Recover.
	}
	if err != nil {
		return err
	}
	boot, err := e.o.Host.BootID()
	if err != nil || r.State != record.Committed || r.BootID != boot {
		return err
	}
	locks, err := e.lockGPUs(ctx, r.Plan.HeldGPUs()...)
	if err != nil {
		return err
	}
	defer locks.release()
	return e.checkSteps(ctx, r.Plan)
}

// Identify looks up the claims whose records were unreadable and gives them records again.
func (e *Engine) Identify(ctx context.Context, claims Claims) ([]Finding, error) {
	uids, err := e.records.Unknown()
	if err != nil {
		return nil, err
	}
	var findings []Finding
	for _, uid := range uids {
		f := Finding{Claim: plan.Claim{UID: uid}, Found: string(record.Unknown)}
		if f.Did, f.Err = e.identify(ctx, &f, claims); f.Err != nil {
			f.Did = ""
		}
		findings = append(findings, f)
	}
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
	lock, err := e.lockClaim(ctx, uid)
	if err != nil {
		return "", err
	}
	defer lock.Release()
	locks, err := e.lockGPUs(ctx, p.HeldGPUs()...)
	if err != nil {
		return "", err
	}
	defer locks.release()
	r, err := e.records.Get(uid)
	if err != nil || r.State != record.Unknown {
		return "", nil // Another call was faster.
	}
	boot, err := e.o.Host.BootID()
	if err != nil {
		return "", err
	}
	if len(p.Devices) == 0 {
		return "found to hold no device", e.release(ctx, r, boot, locks)
	}
	_, err = e.adopt(p, boot, locks)
	return fmt.Sprintf("found to hold %d devices", len(p.Devices)), err
}

// rebuild replaces an unreadable record: the damaged file is kept aside for a person, and the plan in the CDI spec goes
// on blocking its devices. Where there is none the new record blocks every GPU that no other accounts for, until the
// claim is looked up or released. The claim's lock is held.
func (e *Engine) rebuild(uid string, damage error) (record.Record, error) {
	boot, err := e.o.Host.BootID()
	if err != nil {
		return record.Record{}, err
	}
	r := record.Record{State: record.Unknown, BootID: boot, Plan: plan.Plan{Claim: plan.Claim{UID: uid}}}
	blocked := "every GPU that no other claim holds is refused until this claim is looked up or released"
	spec, _ := e.o.Specs.Read(uid) // No spec names no plan.
	if p, carriedOut, err := cdi.PlanOf(e.o.Driver, spec); err == nil && p.Claim.UID == uid {
		r.State, r.Plan, r.BootID = record.Committed, p, cmp.Or(carriedOut, boot)
		blocked = "its devices were found in its CDI spec and stay its own"
	}
	aside, err := e.records.SetAside(uid)
	if err != nil {
		return record.Record{}, errors.Join(damage, err)
	}
	if err := e.records.Put(r); err != nil {
		return record.Record{}, errors.Join(damage, err)
	}
	e.o.Report(&claimerror.Error{
		Reason: claimerror.RecordUnreadable, Attempt: "read the record", Claim: r.Plan.Claim.String(),
		Cause: damage, Remedy: "the file is kept as " + aside + "; " + blocked,
	})
	return r, nil
}
