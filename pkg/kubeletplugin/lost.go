// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"slices"

	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/metrics"
	"gpu-dra-driver/pkg/plan"
)

// losses tells of partitions that vanished under prepared claims, once each: in the claim's status, and in Events on the
// claim and its pods. The next Prepare that succeeds makes them again and says so in the status.
type losses struct {
	engine  *devicestate.Engine
	claims  devicestate.Claims
	events  *events
	status  *statusWriter
	metrics *metrics.Metrics
	heard   chan []suspicion
	told    map[string][]string // by claim UID
}

func newLosses(engine *devicestate.Engine, claims devicestate.Claims, e *events, s *statusWriter, m *metrics.Metrics) *losses {
	return &losses{engine: engine, claims: claims, events: e, status: s, metrics: m, heard: make(chan []suspicion, 1), told: map[string][]string{}}
}

// hear takes the newest suspicions in place of older ones. It does not block.
func (l *losses) hear(suspected []suspicion) {
	select {
	case <-l.heard:
	default:
	}
	select {
	case l.heard <- suspected:
	default:
	}
}

func (l *losses) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case suspected := <-l.heard:
			protect(l.metrics, func() { l.look(ctx, suspected) })
		}
	}
}

func (l *losses) look(ctx context.Context, suspected []suspicion) {
	told := map[string][]string{}
	for _, m := range suspected {
		uid := m.plan.Claim.UID
		if slices.Equal(l.told[uid], m.devices) {
			told[uid] = m.devices
			continue
		}
		err := l.engine.Verify(ctx, m.plan.Claim)
		if !errors.Is(err, plan.ErrDestroyed) {
			continue // It is there, or nobody can say now; the next build asks again.
		}
		if l.tell(ctx, m, err) {
			told[uid] = m.devices
		}
	}
	l.told = told
}

func (l *losses) tell(ctx context.Context, m suspicion, err error) bool {
	logger := klog.FromContext(ctx).WithValues("claim", klog.KRef(m.plan.Claim.Namespace, m.plan.Claim.Name))
	claim, getErr := l.claims.Get(ctx, m.plan.Claim)
	if getErr != nil {
		logger.Error(err, "A partition is gone; its claim cannot be told", "cause", getErr)
		return errors.Is(getErr, devicestate.ErrNoClaim)
	}
	logger.Error(err, "A partition is gone")
	l.events.claimFailed(claim, err)
	l.status.lost(claim, l.engine.Devices(m.plan), m.devices, err)
	return true
}
