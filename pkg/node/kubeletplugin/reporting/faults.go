// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package reporting

import (
	"context"
	"errors"
	"maps"

	"k8s.io/klog/v2"

	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/devicestate"
)

// Fault is a fault of a GPU, for the claims that have a device of it.
type Fault struct{ Cause, Remedy string }

// Faulty is a prepared claim and its devices with faults, by name.
type Faulty struct {
	Plan    plan.Plan
	Devices map[string]Fault
}

// Faults reports faults of GPUs to the claims that have them: in the claim's status while a fault lasts, and once in
// Events on the claim and its pods.
type Faults struct {
	Claims
	scans    *notify.Newest[[]Faulty]
	reported map[string]Faulty // By claim UID.
}

// NewFaults returns a Faults; Run starts it.
func NewFaults(c Claims, scans *notify.Newest[[]Faulty]) *Faults {
	return &Faults{Claims: c, scans: scans, reported: map[string]Faulty{}}
}

// Run reports the claims with faults of each scan until the context ends.
func (f *Faults) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.scans.Changed:
			if all, ok := f.scans.Take(); ok {
				Protect(f.metrics, func() { f.report(ctx, all) })
			}
		}
	}
}

func (f *Faults) report(ctx context.Context, all []Faulty) {
	f.status.setFaults(all)
	ended := f.reported
	f.reported = map[string]Faulty{}
	for _, now := range all {
		uid := now.Plan.Claim.UID
		was := ended[uid]
		delete(ended, uid)
		if maps.Equal(was.Devices, now.Devices) || f.update(ctx, now, was.Devices) {
			f.reported[uid] = now
		}
	}
	for _, was := range ended {
		if !f.update(ctx, Faulty{Plan: was.Plan}, was.Devices) {
			f.reported[was.Plan.Claim.UID] = was
		}
	}
}

// update returns false if it must be called again, because the claim could not be read.
func (f *Faults) update(ctx context.Context, now Faulty, was map[string]Fault) bool {
	claim, err := f.claims.Get(ctx, now.Plan.Claim)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot read a claim to report the health of its devices",
			"claim", now.Plan.Claim.String())
		return errors.Is(err, devicestate.ErrNoClaim)
	}
	for name, fault := range now.Devices {
		if was[name] != fault {
			f.events.ClaimFailed(claim, &claimerror.Error{
				Reason:  claimerror.DeviceUnhealthy,
				Attempt: "health check",
				Claim:   now.Plan.Claim.String(),
				UID:     now.Plan.Claim.UID,
				Device:  name,
				Cause:   errors.New(fault.Cause),
				Remedy:  "delete the pod to run it on another GPU. On the node: " + fault.Remedy,
			})
		}
	}
	f.status.update(claim, f.engine.Devices(now.Plan))
	return true
}
