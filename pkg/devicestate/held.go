// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/record"
)

// Held lists the plans of all records in any state, because their devices must stay published. If incomplete is true, a
// record's plan is unknown, and any GPU in no plan may be held too.
func (e *Engine) Held() (plans []plan.Plan, incomplete bool, err error) {
	records, unreadable, err := e.records.All()
	if err != nil {
		return nil, false, err
	}
	incomplete = len(unreadable) > 0
	for _, r := range records {
		if r.State == record.Unknown {
			incomplete = true
			continue
		}
		plans = append(plans, r.Plan)
	}
	return plans, incomplete, nil
}

// WithGPULock calls do with the lock of a GPU and the plans that hold a part of it. It does nothing while some plans
// are unknown.
func (e *Engine) WithGPULock(ctx context.Context, address string, do func([]plan.Plan) error) error {
	locks, err := e.lockGPUs(ctx, address)
	if err != nil {
		return err
	}
	defer locks.release()
	plans, incomplete, err := e.Held()
	if err != nil || incomplete {
		return err
	}
	return do(slices.DeleteFunc(plans, func(p plan.Plan) bool { return !slices.Contains(p.HeldGPUs(), address) }))
}

// WithIdleGPU calls do with the lock of a GPU that no claim holds or may hold. It reports whether it did.
func (e *Engine) WithIdleGPU(ctx context.Context, address string, do func() error) (idle bool, err error) {
	err = e.WithGPULock(ctx, address, func(plans []plan.Plan) error {
		if idle = len(plans) == 0; idle {
			return do()
		}
		return nil
	})
	return idle, err
}

func (e *Engine) Quarantined() (int, error) { return e.records.Quarantined() }

// MissingSpecs reports whether a prepared claim lacks its CDI spec, which Recover rewrites: a restarting container
// needs it without a Prepare. It lists two directories if none is missing. store.ErrUnlinked means that only a new
// process, with new mounts, can write specs.
func (e *Engine) MissingSpecs() (bool, error) {
	if err := e.o.Specs.Usable(); err != nil {
		return false, err
	}
	uids, specs, err := e.uids()
	if err != nil {
		return false, err
	}
	for _, uid := range uids {
		if slices.Contains(specs, uid) {
			continue
		}
		r, err := e.records.Get(uid)
		if errors.Is(err, fs.ErrNotExist) || err == nil && r.State != record.Committed {
			continue // Another call works on it, or released it.
		}
		if err != nil {
			return false, err
		}
		boot, err := e.o.Host.BootID()
		if err != nil || r.BootID == boot {
			return err == nil, err
		}
	}
	return false, nil
}
