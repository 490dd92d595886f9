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

	mu sync.Mutex
	// plans are the list of stamp, if it is kept.
	stamp record.Stamp
	plans []plan.Plan
	kept  bool
	// records has the records of the last list, by UID, from filled on: while claims come and go, only new ones are
	// read.
	records map[string]seenRecord
	filled  time.Time
}

type seenRecord struct {
	stamp record.FileStamp
	record.Record
}

// readAgain is the age at which all records are read again without a change.
const readAgain = 10 * time.Minute

// Held is Engine.Held, whose plans it shares: do not change them.
func (v *View) Held() (plans []plan.Plan, incomplete bool, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := v.o.Host.Now()
	stamp, err := v.Engine.records.Stamp() // Before the records, so that a change meanwhile has another stamp.
	if err != nil {
		return nil, false, err
	}
	fresh := now.Sub(v.filled) < readAgain
	if fresh && v.kept && stamp == v.stamp {
		return slices.Clone(v.plans), false, nil
	}
	last := v.records
	if !fresh {
		last, v.filled = nil, now
	}
	v.kept, v.records = false, map[string]seenRecord{}
	plans, incomplete, recorded, err := v.held(func(uid string) (record.Record, error) {
		return v.get(uid, last[uid], now)
	})
	if err == nil && recorded && stamp.Settled(now) {
		v.stamp, v.kept, v.plans = stamp, true, slices.Clone(plans)
	}
	return plans, incomplete, err
}

// get returns the record as it was seen, or reads it if its file is another one now.
func (v *View) get(uid string, seen seenRecord, now time.Time) (record.Record, error) {
	stamp, err := v.Engine.records.FileStamp(uid)
	known := err == nil && stamp == seen.stamp
	if !known {
		var readErr error
		if seen.Record, readErr = v.Engine.records.Get(uid); readErr != nil {
			return seen.Record, readErr
		}
	}
	if err == nil && stamp.Settled(now) {
		v.records[uid] = seenRecord{stamp, seen.Record}
	}
	return seen.Record, nil
}
