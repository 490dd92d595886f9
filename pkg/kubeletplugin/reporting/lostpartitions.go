// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package reporting

import (
	"context"
	"errors"
	"slices"

	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/metrics"
	"gpu-dra-driver/pkg/plan"
)

// LostPartitions reports destroyed partitions of prepared claims, once each: in the claim's status, and in Events on
// the claim and its pods. The next successful Prepare creates them again and updates the status.
type LostPartitions struct {
	engine   *devicestate.Engine
	claims   devicestate.Claims
	events   *Events
	status   *ClaimStatus
	metrics  *metrics.Metrics
	notified map[string][]string // device names by claim UID
}

// NewLostPartitions returns a LostPartitions; Run starts it.
func NewLostPartitions(engine *devicestate.Engine, claims devicestate.Claims, e *Events, s *ClaimStatus, m *metrics.Metrics) *LostPartitions {
	return &LostPartitions{engine: engine, claims: claims, events: e, status: s, metrics: m}
}

// Missing is a claim with partitions that a scan does not show. They may be lost.
type Missing struct {
	Plan    plan.Plan
	Devices []string
}

// Run checks the missing partitions of each scan until the context ends.
func (l *LostPartitions) Run(ctx context.Context, scans <-chan []Missing) {
	for {
		select {
		case <-ctx.Done():
			return
		case missing := <-scans:
			Protect(l.metrics, func() { l.check(ctx, missing) })
		}
	}
}

func (l *LostPartitions) check(ctx context.Context, missing []Missing) {
	notified := map[string][]string{}
	for _, m := range missing {
		uid := m.Plan.Claim.UID
		if slices.Equal(l.notified[uid], m.Devices) {
			notified[uid] = m.Devices
			continue
		}
		err := l.engine.Verify(ctx, m.Plan.Claim)
		if !errors.Is(err, plan.ErrDestroyed) {
			continue // It exists, or its state is unknown; the next scan repeats the check.
		}
		if l.notify(ctx, m, err) {
			notified[uid] = m.Devices
		}
	}
	l.notified = notified
}

// notify returns whether the claim needs no further notification.
func (l *LostPartitions) notify(ctx context.Context, m Missing, err error) bool {
	logger := klog.FromContext(ctx).WithValues("claim", klog.KRef(m.Plan.Claim.Namespace, m.Plan.Claim.Name))
	claim, getErr := l.claims.Get(ctx, m.Plan.Claim)
	if getErr != nil {
		logger.Error(err, "A partition is gone, but its claim could not be notified", "cause", getErr)
		return errors.Is(getErr, devicestate.ErrNoClaim)
	}
	logger.Error(err, "A partition is gone")
	l.events.ClaimFailed(claim, err)
	l.status.lost(claim, l.engine.Devices(m.Plan), m.Devices, err)
	return true
}
