// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
)

// Usage finds the users of a claim that was deleted from the API server.
type Usage interface {
	// ReferencedByKubelet returns a function that reports whether the kubelet's present state refers to a claim; the
	// kubelet will call Unprepare then.
	ReferencedByKubelet(ctx context.Context) (func(plan.Claim) bool, error)
	// OpenedBy returns the name of a process that has one of the devices open, or "".
	OpenedBy(ctx context.Context, devices []plan.Device) (string, error)
}

// DeletedClaims releases the records of claims that are deleted, or have no device of this node any more: after a
// force-deleted pod or the loss of the kubelet's state. A mistake would take a GPU from a running pod. So a claim must
// be gone for the whole grace period, and neither the kubelet nor a process may use it. A failed look-up restarts the
// period. The API server is asked only about claims that the kubelet does not know, and only its cache until the end of
// the period: a cluster has many nodes.
//
// A claim whose effects ended with an earlier boot is released once the API server says that it is gone. No process of
// this boot can have its devices, because Prepare precedes a container and renews the record.
type DeletedClaims struct {
	engine *Engine
	claims Claims
	usage  Usage
	grace  time.Duration
	since  map[string]time.Time
	// known are the claims of commits of this boot, which stay ones, so that a round reads new records only.
	known map[string]plan.Claim

	releasing claimWork
}

// NewDeletedClaims returns a DeletedClaims. The first Release that misses a claim starts its grace period.
func NewDeletedClaims(e *Engine, claims Claims, usage Usage, grace time.Duration) *DeletedClaims {
	return &DeletedClaims{engine: e, claims: claims, usage: usage, grace: grace}
}

// Release looks up the claims of the records that the kubelet does not know, and releases those after their grace
// period. Call it from one goroutine, at intervals shorter than the grace period.
func (d *DeletedClaims) Release(ctx context.Context) ([]Finding, error) {
	uids, err := d.engine.records.UIDs()
	if err != nil || len(uids) == 0 {
		return nil, err
	}
	referenced, unknown := d.usage.ReferencedByKubelet(ctx)
	if unknown != nil { // A deleted claim is reported then.
		referenced = func(plan.Claim) bool { return false }
	}
	boot, _ := d.engine.o.Host.BootID() // Without it no boot is an earlier one.
	var findings []Finding
	since, known, ended := map[string]time.Time{}, map[string]plan.Claim{}, map[string]bool{}
	for _, uid := range uids {
		c, ok := d.known[uid]
		if ok {
			known[uid] = c
		} else {
			r, err := d.engine.record(uid)
			if err != nil {
				continue // Recover and Identify handle unreadable records.
			}
			c, ended[uid] = r.Plan.Claim, endedWithBoot(r, boot)
			if c.Name != "" && phaseOf(r, boot) == committed {
				known[uid] = c
			}
		}
		if !ended[uid] && referenced(c) {
			continue
		}
		gone, err := d.gone(ctx, c, d.claims.GetCached)
		if errors.Is(err, context.DeadlineExceeded) && c.Name != "" {
			break // A server that does not answer would hold up the round for each claim.
		}
		if !gone {
			continue // The period restarts.
		}
		first, seen := d.since[uid]
		if !seen {
			first = d.engine.o.Host.Now()
		}
		if !ended[uid] && d.engine.o.Host.Now().Sub(first) < d.grace {
			since[uid] = first
			continue
		}
		r, err := d.engine.record(uid)
		if err != nil {
			continue
		}
		findings = append(findings, Finding{Claim: c, Found: string(r.State)})
	}
	d.known = known
	d.since = since
	d.releasing.Ordered = d.engine.o.Host.Ordered()
	return d.engine.eachClaim(ctx, &d.releasing, d.engine.o.WorkLimit, findings,
		func(ctx context.Context, f *Finding) error {
			return d.release(ctx, f, unknown, ended[f.Claim.UID])
		}), nil
}

// endedWithBoot reports whether a record's effects ended with an earlier boot. An unknown boot is not another one.
func endedWithBoot(r record.Record, boot string) bool {
	return boot != "" && r.BootID != "" && r.BootID != boot
}

// release releases a claim that is still gone and unused. It holds the claim's lock meanwhile, because a claim without
// allocation can be allocated and prepared again at any time. unknown is the error of the kubelet's answer. early means
// that the claim had no grace period, because its effects had ended with an earlier boot.
func (d *DeletedClaims) release(ctx context.Context, f *Finding, unknown error, early bool) error {
	lock, boot, err := d.engine.lockClaim(ctx, f.Claim.UID)
	if err != nil {
		return failure(ctx, "unprepare", f.Claim, err)
	}
	defer lock.Release()
	r, err := d.engine.record(f.Claim.UID)
	if err != nil {
		return nil
	}
	ended := endedWithBoot(r, boot)
	if early && !ended {
		return nil // Prepare renewed it meanwhile.
	}
	if gone, _ := d.gone(ctx, f.Claim, d.claims.Get); !gone {
		return nil
	}
	if !ended {
		if err := d.unused(ctx, r.Plan, unknown); err != nil {
			return err
		}
	}
	if err := d.engine.unprepareLocked(ctx, f.Claim, boot); err != nil {
		return failure(ctx, "unprepare", f.Claim, err)
	}
	switch r, err := d.engine.record(f.Claim.UID); {
	case err == nil && r.State == record.Unknown:
		if err := d.engine.abandon(ctx, r, boot); err != nil {
			return failure(ctx, "unprepare", f.Claim, err)
		}
	case err == nil:
		return nil // An effect is kept.
	}
	f.Did = "released, because the claim is deleted"
	return nil
}

// gone reports whether the API server has no such claim, or none with a device of this node. After an error it is not.
func (d *DeletedClaims) gone(
	ctx context.Context, c plan.Claim, get func(context.Context, plan.Claim) (*resourceapi.ResourceClaim, error),
) (bool, error) {
	claim, err := get(ctx, c)
	if errors.Is(err, ErrNoClaim) {
		return true, nil
	}
	return err == nil && !d.onThisNode(claim), err
}

// onThisNode reports whether the claim has an allocated device of this node.
func (d *DeletedClaims) onThisNode(claim *resourceapi.ResourceClaim) bool {
	return claim.Status.Allocation != nil &&
		slices.ContainsFunc(claim.Status.Allocation.Devices.Results,
			func(r resourceapi.DeviceRequestAllocationResult) bool {
				return r.Driver == d.engine.o.Driver && (r.Pool == d.engine.o.Pool || r.Pool == d.engine.o.MonitorPool)
			})
}

// unused returns an error with the user of the claim's devices, or if the usage is unknown. unknown is the kubelet's.
func (d *DeletedClaims) unused(ctx context.Context, p plan.Plan, unknown error) error {
	if unknown != nil {
		return fmt.Errorf("the claim is deleted, but its usage is unknown: ask the kubelet: %w", unknown)
	}
	holder, err := d.usage.OpenedBy(ctx, p.Devices)
	if err != nil {
		return fmt.Errorf("the claim is deleted, but its usage is unknown: list the processes on its devices: %w", err)
	}
	if holder != "" {
		return fmt.Errorf("the claim is deleted, but %s still uses its device; end that process", holder)
	}
	return nil
}
