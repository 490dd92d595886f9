// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package timeslice sets the time slice with which a GPU turns from one process to the next, for as long as a claim wants
// it, and sets back what it found.
//
// NVML has no call for it: the driver root's nvidia-smi does it.
package timeslice

import (
	"context"
	"fmt"
	"slices"
	"time"

	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/executor"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/record"
)

// Setting is the word for time slices among GPU records.
const Setting = "time-slice"

// timeout bounds one use of the tool.
const timeout = 10 * time.Second

// Tool reads and sets time slices, 0 (default) to 3 (long), of a GPU by its UUID.
type Tool interface {
	Get(ctx context.Context, uuid string) (int, error)
	Set(ctx context.Context, uuid string, interval int) error
}

// Executor implements devicestate.Executor. The caller holds the GPU's lock.
type Executor struct {
	tool    Tool
	records *record.GPUs
	listed  func(uuid string) bool
}

// New makes an Executor. The records are of the time slices that this driver set; listed says whether the driver lists
// the GPU of a UUID, for there is no time slice to restore on one that is gone.
func New(tool Tool, records *record.GPUs, listed func(uuid string) bool) *Executor {
	return &Executor{tool: tool, records: records, listed: listed}
}

// Admit implements devicestate.Executor: claims that disagree are refused before.
func (x *Executor) Admit(context.Context, plan.Work) error { return nil }

// Apply implements devicestate.Executor. What this driver set in this boot is not asked for again: starting a program for
// each share of a GPU would cost more than all the rest.
func (x *Executor) Apply(ctx context.Context, w plan.Work) error {
	d := *w.Target()
	return failure(ctx, "prepare", d, x.apply(ctx, d))
}

func (x *Executor) apply(ctx context.Context, d plan.Device) error {
	r, known, err := x.records.OfBoot(d.PCIAddress, d.UUID)
	if err != nil || known && r.Set == d.Sharing.Interval {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if !known {
		if r.Found, err = x.tool.Get(ctx, d.UUID); err != nil {
			return fmt.Errorf("read the time slice: %w", err)
		}
	}
	// Not what is to be, so that a crash before the change does not make the next call believe it was made.
	r.Set = unknown
	if err := x.records.Put(r); err != nil {
		return err
	}
	if err := x.tool.Set(ctx, d.UUID, d.Sharing.Interval); err != nil {
		return fmt.Errorf("set the time slice: %w", err)
	}
	r.Set = d.Sharing.Interval
	return x.records.Put(r)
}

// unknown is the value of a time slice that is being changed.
const unknown = -1

// Check implements devicestate.Executor. The time slice is how fast processes take turns: one that somebody changed is no
// reason to end anything.
func (x *Executor) Check(context.Context, plan.Work) error { return nil }

// Revert implements devicestate.Executor.
func (x *Executor) Revert(ctx context.Context, w plan.Work) error {
	d := *w.Target()
	if slices.ContainsFunc(w.CoTenants(), func(t plan.CoTenant) bool { return t.Device.Sharing.Timed }) {
		return nil
	}
	err := x.records.Restore(d.PCIAddress, d.UUID, false, func(found int) error {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		err := x.tool.Set(ctx, d.UUID, found)
		switch {
		case err == nil:
			return nil
		case !x.listed(d.UUID):
			return sessionpool.ErrNoGPU
		}
		return fmt.Errorf("set the time slice back: %w", err)
	})
	if sessionpool.IsGone(err) {
		return nil // The record stays: the GPU may come back.
	}
	return failure(ctx, "unprepare", d, err)
}

func failure(ctx context.Context, attempt string, d plan.Device, err error) error {
	return executor.Failure(ctx, attempt, d, err, "it is retried; see that nvidia-smi compute-policy works on the node")
}
