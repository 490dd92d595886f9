// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"slices"
	"sync"
	"time"

	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
)

// View is an Engine for those that only look at claims. Its Held reads the records once until one is written, moved or
// removed, because with many claims these reads are most of what a node costs at rest. For ten minutes it can miss
// damage inside a file. So work that gives, keeps or takes a device must not use it: that reads records under the lock
// of the claim or the GPU.
type View struct {
	*Engine

	mu    sync.Mutex
	stamp record.Stamp
	read  time.Time // Zero: there is no list.
	plans []plan.Plan
}

// readAgain is the age at which a list is read again without a change.
const readAgain = 10 * time.Minute

// Held is Engine.Held, whose plans it shares: do not change them.
func (v *View) Held() (plans []plan.Plan, incomplete bool, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := v.o.Host.Now()
	stamp, err := v.records.Stamp() // Before the records, so that a change meanwhile has another stamp.
	if err != nil {
		return nil, false, err
	}
	if !v.read.IsZero() && stamp == v.stamp && now.Sub(v.read) < readAgain {
		return slices.Clone(v.plans), false, nil
	}
	v.read = time.Time{}
	plans, incomplete, recorded, err := v.held()
	if err == nil && recorded && stamp.Settled(now) {
		v.stamp, v.read, v.plans = stamp, now, slices.Clone(plans)
	}
	return plans, incomplete, err
}
