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

// Usage says whether anything on the node still uses a claim that the API server no longer has.
type Usage interface {
	// ReferencedByKubelet says that the kubelet's own state still names the claim; it will call Unprepare itself then.
	ReferencedByKubelet(ctx context.Context, claim plan.Claim) (bool, error)
	// OpenedBy names a process that holds one of the devices open, or is empty.
	OpenedBy(ctx context.Context, devices []plan.Device) (string, error)
}

// DeletedClaims releases records whose claim is deleted, or holds no device of this node any more: force-deleted pods, a
// kubelet whose state was wiped. A mistake takes a GPU from a running pod. So a claim must be gone for the whole grace
// period, then neither the kubelet nor a process may use it, and a lookup that fails starts the period anew.
type DeletedClaims struct {
	engine *Engine
	claims Claims
	usage  Usage
	grace  time.Duration
	since  map[string]time.Time
}

// NewDeletedClaims makes DeletedClaims. The first Release that misses a claim only starts its grace period.
func NewDeletedClaims(e *Engine, claims Claims, usage Usage, grace time.Duration) *DeletedClaims {
	return &DeletedClaims{engine: e, claims: claims, usage: usage, grace: grace}
}

// Release looks up the claim of every record and releases those whose grace period is over. Call it from one goroutine,
// at intervals below the grace period.
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
			continue // It exists, or the lookup failed: the period starts anew.
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
				f.Did = "released, for its claim is gone"
			}
		}
		findings = append(findings, f)
	}
	d.since = since
	return findings, nil
}

// onThisNode says whether the claim is allocated a device of this node.
func (d *DeletedClaims) onThisNode(claim *resourceapi.ResourceClaim) bool {
	return claim.Status.Allocation != nil &&
		slices.ContainsFunc(claim.Status.Allocation.Devices.Results, func(r resourceapi.DeviceRequestAllocationResult) bool {
			return r.Driver == d.engine.o.Driver && r.Pool == d.engine.o.Pool
		})
}

// unused returns an error that names the user of the claim's devices, or says that it cannot be known.
func (d *DeletedClaims) unused(ctx context.Context, p plan.Plan) error {
	named, err := d.usage.ReferencedByKubelet(ctx, p.Claim)
	if err != nil {
		return fmt.Errorf("the claim is gone from the API server; ask the kubelet about it: %w", err)
	}
	if named {
		return errors.New("the claim is gone from the API server and the kubelet still names it; delete its pod")
	}
	holder, err := d.usage.OpenedBy(ctx, p.Devices)
	if err != nil {
		return fmt.Errorf("the claim is gone from the API server; look for processes on its devices: %w", err)
	}
	if holder != "" {
		return fmt.Errorf("the claim is gone from the API server and %s still holds its device; end that process", holder)
	}
	return nil
}
