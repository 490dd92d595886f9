// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package timeslice sets the time slice of a GPU while a claim needs it, and restores the previous one.
//
// It uses nvidia-smi of the driver root, because NVML has no call for time slices.
package timeslice

import (
	"context"
	"fmt"
	"slices"
	"time"

	"gpu-dra-driver/pkg/claim/executor"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/gpu"
)

// Setting names the GPU records of time slices.
const Setting = "time-slice"

// callTimeout bounds one call of the tool.
const callTimeout = 10 * time.Second

// Tool reads and sets the time slice of a GPU by UUID, from 0 (default) to 3 (long).
type Tool interface {
	Get(ctx context.Context, uuid string) (int, error)
	Set(ctx context.Context, uuid string, interval int) error
}

// Executor implements devicestate.Executor. The caller holds the GPU's lock.
type Executor struct {
	tool    Tool
	records *record.GPUs
}

// New returns an Executor. records hold the time slices that this driver set.
func New(tool Tool, records *record.GPUs) *Executor { return &Executor{tool: tool, records: records} }

// Admit implements devicestate.Executor. It does nothing, because the overlap check already refuses conflicting claims.
func (x *Executor) Admit(context.Context, plan.Work) error { return nil }

// Apply implements devicestate.Executor. It trusts the record of this boot and does not read the time slice again,
// because a program start for each share would cost more than the rest of Prepare.
func (x *Executor) Apply(ctx context.Context, w plan.Work) error {
	d := *w.Target()
	return failure(ctx, "prepare", d, x.apply(ctx, d, slices.ContainsFunc(w.CoTenants(), func(t plan.CoTenant) bool {
		return t.Device.Sharing.Timed
	})))
}

// apply sets the time slice. If joins is true, a co-tenant's time slice is set already: without a record of it, the
// value to restore is the default.
func (x *Executor) apply(ctx context.Context, d plan.Device, joins bool) error {
	r, known, err := x.records.OfBoot(d.PCIAddress, d.UUID)
	if err != nil || known && r.Set == d.Sharing.Interval {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if !known && !joins {
		if r.Found, err = x.tool.Get(ctx, d.UUID); err != nil {
			return fmt.Errorf("read the time slice: %w", err)
		}
	}
	// Recorded before the change: after a crash the next call must not assume that the change happened.
	r.Set = record.SetUnknown
	if err := x.records.Put(r); err != nil {
		return err
	}
	if err := x.tool.Set(ctx, d.UUID, d.Sharing.Interval); err != nil {
		return fmt.Errorf("set the time slice: %w", err)
	}
	r.Set = d.Sharing.Interval
	return x.records.Put(r)
}

// Check implements devicestate.Executor. A changed time slice only affects speed, so Check does not compare it.
func (x *Executor) Check(context.Context, plan.Work) error { return nil }

// Revert implements devicestate.Executor. It does nothing: the time slice is a Setting.
func (x *Executor) Revert(context.Context, plan.Work) error { return nil }

// Setting is the time slice as a setting that is restored once no claim of the GPU needs one.
func (x *Executor) Setting() executor.Setting {
	return executor.Setting{Restorer: x, Records: x.records}
}

// NeededBy implements executor.Restorer.
func (x *Executor) NeededBy(d plan.Device) bool { return d.Sharing.Timed }

// Keep implements executor.Keeper: it sets the time slice again if the GPU lost it. A reset or a reload of the driver
// does that. Without persistence mode the GPU loses it when the last program closes it.
func (x *Executor) Keep(ctx context.Context, g gpu.GPU) error {
	d := plan.Device{Name: gpu.NameOf(g.PCIAddress)}
	r, known, err := x.records.OfBoot(g.PCIAddress, g.UUID)
	if err != nil || !known || r.Set == record.SetUnknown {
		return failure(ctx, "keep the time slice", d, err)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	is, err := x.tool.Get(ctx, g.UUID)
	if err == nil && is != r.Set {
		err = x.tool.Set(ctx, g.UUID, r.Set)
	}
	return failure(ctx, "keep the time slice", d, err)
}

// Restore implements executor.Restorer.
func (x *Executor) Restore(ctx context.Context, g gpu.GPU) error {
	err := x.records.Restore(g.PCIAddress, g.UUID, false, func(found int) error {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return x.tool.Set(ctx, g.UUID, found)
	})
	d := plan.Device{Name: gpu.NameOf(g.PCIAddress)}
	return failure(ctx, "restore the time slice", d, err)
}

func failure(ctx context.Context, attempt string, d plan.Device, err error) error {
	return executor.Failure(ctx, attempt, d, err,
		"the operation is retried; check that nvidia-smi compute-policy works on the node")
}
