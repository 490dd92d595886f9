// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"gpu-dra-driver/pkg/cdi"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/record"
)

// Held lists the plans of all records, whatever their state: their devices must stay published. blind says that some
// record's plan is not known, so that any GPU which no plan names may be held too.
func (e *Engine) Held() (plans []plan.Plan, blind bool, err error) {
	records, unreadable, err := e.records.All()
	if err != nil {
		return nil, false, err
	}
	blind = len(unreadable) > 0
	for _, r := range records {
		if r.State == record.Unknown {
			blind = true
			continue
		}
		plans = append(plans, r.Plan)
	}
	return plans, blind, nil
}

// Alone calls do with the lock of a GPU, and the plans that have a part of it, if it is known who has.
func (e *Engine) Alone(ctx context.Context, address string, do func([]plan.Plan) error) error {
	locks, err := e.lockGPUs(ctx, []string{address})
	if err != nil {
		return err
	}
	defer locks.release()
	plans, blind, err := e.Held()
	if err != nil || blind {
		return err
	}
	return do(slices.DeleteFunc(plans, func(p plan.Plan) bool { return !slices.Contains(p.Exclusive(), address) }))
}

// Unheld calls do with the lock of a GPU that no claim holds any part of, or may hold; it says whether it did.
func (e *Engine) Unheld(ctx context.Context, address string, do func() error) (bool, error) {
	locks, err := e.lockGPUs(ctx, []string{address})
	if err != nil {
		return false, err
	}
	defer locks.release()
	plans, blind, err := e.Held()
	if err != nil || blind {
		return false, err
	}
	for _, p := range plans {
		if slices.Contains(p.Exclusive(), address) {
			return false, nil
		}
	}
	return true, do()
}

// Quarantined counts the record files that were set aside.
func (e *Engine) Quarantined() (int, error) { return e.records.Quarantined() }

// Check looks for what must never be, between calls: nothing leaked, nothing lost, no device held twice. It reads only.
func (e *Engine) Check() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	boot, err := e.Host.BootID()
	if err != nil {
		return err
	}
	records, unreadable, err := e.records.All()
	if err != nil {
		return err
	}
	for _, uid := range unreadable {
		fault("the record of claim UID %s is unreadable", uid)
	}
	known := map[string]bool{}
	for i, r := range records {
		c := r.Plan.Claim
		known[c.UID] = true
		if r.State != record.Committed {
			fault("claim %s is %s", claimText(c), r.State)
			continue
		}
		if r.BootID == boot {
			errs = append(errs, e.checkSpec(r))
		}
		for _, address := range r.Plan.Exclusive() {
			sharers := sharers{plan: r.Plan, address: address}
			for _, other := range records {
				if other.Plan.Claim.UID == c.UID || other.State == record.Unknown {
					continue
				}
				if d, why := sharers.join(other.Plan); why != "" {
					fault("%s on GPU %s: %s", d, address, why)
				}
			}
		}
		for _, other := range records[:i] {
			for _, address := range r.Plan.Exclusive() {
				if d, taken := r.Plan.Conflict(other.Plan, address); taken {
					fault("%s on GPU %s is held by claim %s and claim %s", d.Name, address, claimText(other.Plan.Claim), claimText(c))
				}
			}
		}
	}
	specs, err := e.Specs.UIDs()
	if err != nil {
		return err
	}
	for _, uid := range specs {
		if !known[uid] {
			fault("claim UID %s has a CDI spec and no record", uid)
		}
	}
	uids, err := e.records.UIDs()
	if err != nil {
		return err
	}
	for _, uid := range uids {
		if !known[uid] {
			fault("claim UID %s has an unfinished record", uid)
		}
	}
	return errors.Join(errs...)
}

func (e *Engine) checkSpec(r record.Record) error {
	c := r.Plan.Claim
	data, err := e.Specs.Read(c.UID)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("claim %s is committed and has no CDI spec", claimText(c))
	}
	if err != nil {
		return err
	}
	for i, d := range r.Plan.Devices {
		if d.Told.NCCLTopology != "" {
			switch file, err := e.Specs.ReadTopology(c.UID); {
			case errors.Is(err, fs.ErrNotExist):
				return fmt.Errorf("claim %s is committed and has no topology file for NCCL", claimText(c))
			case err != nil:
				return err
			case string(file) != d.Told.NCCLTopology:
				return fmt.Errorf("the topology file for NCCL of claim %s is not what its record says", claimText(c))
			}
		}
		if !strings.Contains(string(data), cdi.DeviceName(r.Plan, i)) {
			return fmt.Errorf("the CDI spec of claim %s lacks device %s", claimText(c), r.Plan.Devices[i].Name)
		}
	}
	return nil
}
