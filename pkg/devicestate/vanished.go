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

// Witness says whether anything on the node still needs a claim that the API server no longer has.
type Witness interface {
	// KubeletNames says that the kubelet's own state still names the claim; it will call Unprepare itself then.
	KubeletNames(ctx context.Context, claim plan.Claim) (bool, error)
	// Holder names a process that holds one of the devices open, or is empty.
	Holder(ctx context.Context, devices []plan.Device) (string, error)
}

// Vanished releases records whose claim is gone, or holds no device of this node any more: force-deleted pods, a kubelet
// whose state was wiped. Since a mistake takes a GPU from a running pod, each must be gone for the whole grace period,
// then the kubelet and every process must be done with it, and a question that fails starts the period anew.
type Vanished struct {
	Engine  *Engine
	Claims  Claims
	Witness Witness
	// Grace is how long a claim must be seen gone; the first look only starts the clock.
	Grace time.Duration

	since map[string]time.Time
}

// Look asks once about every record and releases what is due. Call it from one goroutine, at intervals below Grace.
func (v *Vanished) Look(ctx context.Context) ([]Finding, error) {
	records, _, err := v.Engine.records.All()
	if err != nil {
		return nil, err
	}
	var findings []Finding
	since := map[string]time.Time{}
	for _, r := range records {
		c := r.Plan.Claim
		claim, err := v.Claims.Get(ctx, c)
		if err == nil && !v.holds(claim) {
			err = ErrNoClaim
		}
		if !errors.Is(err, ErrNoClaim) {
			continue // There, or nobody can say: the clock starts anew.
		}
		first, seen := v.since[c.UID]
		if !seen {
			first = v.Engine.Host.Now()
		}
		since[c.UID] = first
		if v.Engine.Host.Now().Sub(first) < v.Grace {
			continue
		}
		f := Finding{Claim: c, Found: string(r.State)}
		if f.Err = v.needed(ctx, r.Plan); f.Err == nil {
			if f.Err = v.Engine.Unprepare(ctx, c); f.Err == nil {
				f.Did = "released, for its claim is gone"
			}
		}
		delete(since, c.UID)
		findings = append(findings, f)
	}
	v.since = since
	return findings, nil
}

// holds says whether the claim is allocated a device of this node.
func (v *Vanished) holds(claim *resourceapi.ResourceClaim) bool {
	return claim.Status.Allocation != nil &&
		slices.ContainsFunc(claim.Status.Allocation.Devices.Results, func(r resourceapi.DeviceRequestAllocationResult) bool {
			return r.Driver == v.Engine.Driver && r.Pool == v.Engine.Pool
		})
}

// needed is an error that says who still needs the claim's devices, or that it cannot be known.
func (v *Vanished) needed(ctx context.Context, p plan.Plan) error {
	named, err := v.Witness.KubeletNames(ctx, p.Claim)
	if err != nil {
		return fmt.Errorf("the claim is gone from the API server; ask the kubelet about it: %w", err)
	}
	if named {
		return errors.New("the claim is gone from the API server and the kubelet still names it; delete its pod")
	}
	holder, err := v.Witness.Holder(ctx, p.Devices)
	if err != nil {
		return fmt.Errorf("the claim is gone from the API server; look for processes on its devices: %w", err)
	}
	if holder != "" {
		return fmt.Errorf("the claim is gone from the API server and %s still holds its device; end that process", holder)
	}
	return nil
}
