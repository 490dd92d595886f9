// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

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
	boot, err := e.Host.BootID()
	if err != nil {
		return nil, err
	}
	uids, err := e.records.UIDs()
	if err != nil {
		return nil, err
	}
	specs, err := e.Specs.UIDs()
	if err != nil {
		return nil, err
	}
	var findings []Finding
	for _, uid := range union(uids, specs) {
		if err := ctx.Err(); err != nil {
			return findings, context.Cause(ctx)
		}
		if f := e.recoverClaim(ctx, uid, boot); f.Did != "" || f.Err != nil {
			findings = append(findings, f)
		}
	}
	return findings, nil
}

func (e *Engine) recoverClaim(ctx context.Context, uid, boot string) Finding {
	f := Finding{Claim: plan.Claim{UID: uid}}
	lock, err := e.lockClaim(ctx, uid)
	if err != nil {
		f.Err = err
		return f
	}
	defer lock.Release()
	r, found, err := e.current(f.Claim)
	if err == nil && found {
		err = errors.Join(e.Specs.RemoveUnfinished(uid), e.records.RemoveUnfinished(uid))
	}
	if err != nil {
		f.Err = err
		return f
	}
	if !found {
		return e.recoverOrphan(f)
	}
	f.Claim, f.Found = r.Plan.Claim, string(r.State)
	locks, err := e.lockGPUs(ctx, r.Plan.Exclusive())
	if err != nil {
		f.Err = err
		return f
	}
	defer locks.release()
	switch {
	case r.State == record.Intent && r.Renews != "":
		f.Did = "undone, the claim keeps its devices"
		_, f.Err = e.giveBack(ctx, r, boot, locks)
	case r.State == record.Intent || r.State == record.Releasing:
		f.Did, f.Err = "undone", e.release(ctx, r, boot, locks)
	case r.State == record.Committed && r.BootID != boot:
		// The effects died with their boot. The record stays, for the claim is still allocated and the next Prepare
		// builds them again; a spec that outlived the boot would name devices by yesterday's numbers.
		if _, err := e.Specs.Read(uid); err == nil {
			f.Did, f.Err = "spec of an earlier boot removed", e.Specs.Remove(uid)
		}
	case r.State == record.Committed:
		f.Did, f.Err = e.mend(ctx, r)
	}
	return f
}

// recoverOrphan removes a spec that was written before a crash kept its claim from being committed. The claim may as
// well have been released, as it should, between being listed and being locked: then there is nothing to tell.
func (e *Engine) recoverOrphan(f Finding) Finding {
	specs, err := e.Specs.UIDs()
	if err != nil {
		f.Err = err
		return f
	}
	uids, err := e.records.UIDs()
	if err != nil {
		f.Err = err
		return f
	}
	if !slices.Contains(specs, f.Claim.UID) && !slices.Contains(uids, f.Claim.UID) {
		return f
	}
	f.Found = "spec"
	f.Did, f.Err = "removed", e.sweep(f.Claim.UID)
	return f
}

// mend looks whether the effects of a committed record of this boot are there, and repairs the spec. An effect that is
// gone is reported and not made again: a container that ran on it must be told by its pod's end, and the next Prepare,
// which precedes any new container, makes it.
func (e *Engine) mend(ctx context.Context, r record.Record) (string, error) {
	if err := e.check(ctx, r.Plan); err != nil {
		return "", err
	}
	tell := ""
	if _, err := e.Specs.Read(r.Plan.Claim.UID); errors.Is(err, fs.ErrNotExist) {
		tell = "spec written again"
	}
	return tell, e.writeSpec(ctx, r.Plan, r.BootID)
}

// Verify looks whether the effects of a claim are there as its record says, and changes nothing. A claim that is not
// committed in this boot has none to look for.
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
	boot, err := e.Host.BootID()
	if err != nil || r.State != record.Committed || r.BootID != boot {
		return err
	}
	locks, err := e.lockGPUs(ctx, r.Plan.Exclusive())
	if err != nil {
		return err
	}
	defer locks.release()
	return e.check(ctx, r.Plan)
}

// Identify looks up the claims whose records were unreadable and gives them records again.
func (e *Engine) Identify(ctx context.Context, claims Claims) ([]Finding, error) {
	uids, err := e.records.Unknown()
	if err != nil {
		return nil, err
	}
	var findings []Finding
	for _, uid := range uids {
		findings = append(findings, e.identify(ctx, plan.Claim{UID: uid}, claims))
	}
	return findings, nil
}

func (e *Engine) identify(ctx context.Context, c plan.Claim, claims Claims) Finding {
	f := Finding{Claim: c, Found: string(record.Unknown)}
	claim, err := claims.Get(ctx, c)
	if err != nil {
		// A claim that is gone is released as every vanished claim is, not here.
		if !errors.Is(err, ErrNoClaim) {
			f.Err = err
		}
		return f
	}
	p, err := e.Planner(claim, e.node())
	if err != nil {
		f.Err = err
		return f
	}
	f.Claim = p.Claim
	lock, err := e.lockClaim(ctx, c.UID)
	if err != nil {
		f.Err = err
		return f
	}
	defer lock.Release()
	locks, err := e.lockGPUs(ctx, p.Exclusive())
	if err != nil {
		f.Err = err
		return f
	}
	defer locks.release()
	r, err := e.records.Get(c.UID)
	if err != nil || r.State != record.Unknown {
		return f // Someone was faster.
	}
	boot, err := e.Host.BootID()
	switch {
	case err != nil:
	case len(p.Devices) == 0:
		f.Did, err = "found to hold no device", e.release(ctx, r, boot, locks)
	default:
		f.Did = fmt.Sprintf("found to hold %d devices", len(p.Devices))
		_, err = e.adopt(p, boot, locks)
	}
	if f.Err = err; err != nil {
		f.Did = ""
	}
	return f
}
