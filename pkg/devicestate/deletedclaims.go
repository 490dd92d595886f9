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

	"gpu-dra-driver/pkg/plan"
)

// Usage finds the users of a claim that was deleted from the API server.
type Usage interface {
	// ReferencedByKubelet reports whether the kubelet's state refers to the claim; the kubelet will call Unprepare then.
	ReferencedByKubelet(ctx context.Context, claim plan.Claim) (bool, error)
	// OpenedBy returns the name of a process that has one of the devices open, or "".
	OpenedBy(ctx context.Context, devices []plan.Device) (string, error)
}

// DeletedClaims releases the records of claims that are deleted, or have no device of this node any more: after a
// force-deleted pod or the loss of the kubelet's state. A mistake would take a GPU from a running pod. So a claim must
// be gone for the whole grace period, and neither the kubelet nor a process may use it. A failed look-up restarts the
// period.
type DeletedClaims struct {
	engine *Engine
	claims Claims
	usage  Usage
	grace  time.Duration
	since  map[string]time.Time
}

// NewDeletedClaims returns a DeletedClaims. The first Release that misses a claim starts its grace period.
func NewDeletedClaims(e *Engine, claims Claims, usage Usage, grace time.Duration) *DeletedClaims {
	return &DeletedClaims{engine: e, claims: claims, usage: usage, grace: grace}
}

// Release looks up the claim of every record, and releases those after their grace period. Call it from one goroutine,
// at intervals shorter than the grace period.
func (d *DeletedClaims) Release(ctx context.Context) ([]Finding, error) {
	records, _, err := d.engine.records.All()
	if err != nil {
		return nil, err
	}
	var findings []Finding
	since := map[string]time.Time{}
	for _, r := range records {
		c := r.Plan.Claim
		claim, err := d.claims.Get(ctx, c)
		if err == nil && !d.onThisNode(claim) {
			err = ErrNoClaim
		}
		if !errors.Is(err, ErrNoClaim) {
			continue // It exists, or the API server did not answer: the period restarts.
		}
		first, seen := d.since[c.UID]
		if !seen {
			first = d.engine.o.Host.Now()
		}
		if d.engine.o.Host.Now().Sub(first) < d.grace {
			since[c.UID] = first
			continue
		}
		f := Finding{Claim: c, Found: string(r.State)}
		if f.Err = d.unused(ctx, r.Plan); f.Err == nil {
			if f.Err = d.engine.Unprepare(ctx, c); f.Err == nil {
				f.Did = "released, because the claim is deleted"
			}
		}
		findings = append(findings, f)
	}
	d.since = since
	return findings, nil
}

// onThisNode reports whether the claim has an allocated device of this node.
func (d *DeletedClaims) onThisNode(claim *resourceapi.ResourceClaim) bool {
	return claim.Status.Allocation != nil &&
		slices.ContainsFunc(claim.Status.Allocation.Devices.Results, func(r resourceapi.DeviceRequestAllocationResult) bool {
			return r.Driver == d.engine.o.Driver && r.Pool == d.engine.o.Pool
		})
}

// unused returns an error with the user of the claim's devices, or if the usage is unknown.
func (d *DeletedClaims) unused(ctx context.Context, p plan.Plan) error {
	named, err := d.usage.ReferencedByKubelet(ctx, p.Claim)
	if err != nil {
		return fmt.Errorf("the claim is deleted, but its usage is unknown: ask the kubelet: %w", err)
	}
	if named {
		return errors.New("the claim is deleted, but the kubelet still refers to it; delete its pod")
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
