// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package timeslice sets the time slice with which a GPU turns from one process to the next, for as long as a claim wants
// it, and sets back what it found.
//
// NVML has no call for it: the driver root's nvidia-smi does it.
package timeslice

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/record"
)

// Setting is the word for time slices among GPU records.
const Setting = "time-slice"

// Tool reads and sets time slices, 0 (default) to 3 (long), of a GPU by its UUID. An error that is ErrNoGPU says that the
// GPU is not there.
type Tool interface {
	Get(ctx context.Context, uuid string) (int, error)
	Set(ctx context.Context, uuid string, interval int) error
}

// Options are an Executor's.
type Options struct {
	Host *host.Host
	Tool Tool
	// Records are those of time slices that this driver set.
	Records *record.GPUs
	// There says whether the driver lists the GPU of a UUID: the time slice of one that is gone is nobody's any more.
	There func(uuid string) bool
	// Patience bounds one call of the tool. Default: 10 s.
	Patience time.Duration
}

// Executor implements devicestate.Executor. The caller holds the GPU's lock.
type Executor struct {
	Options
}

// New makes an Executor.
func New(o Options) *Executor {
	if o.Patience == 0 {
		o.Patience = 10 * time.Second
	}
	return &Executor{Options: o}
}

// Admit implements devicestate.Executor: claims that disagree are refused before.
func (x *Executor) Admit(context.Context, plan.Work) error { return nil }

// Apply implements devicestate.Executor. What this driver set in this boot is not asked for again: starting a program for
// each share of a GPU would cost more than all the rest.
func (x *Executor) Apply(ctx context.Context, w plan.Work) error {
	d := *w.Target()
	return x.explain(ctx, "prepare", d, x.apply(ctx, d))
}

func (x *Executor) apply(ctx context.Context, d plan.Device) error {
	boot, err := x.Host.BootID()
	if err != nil {
		return err
	}
	r, err := x.Records.Get(d.PCIAddress)
	known := err == nil && r.BootID == boot && r.UUID == d.UUID
	if known && r.Set == d.Sharing.Interval {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, x.Patience)
	defer cancel()
	if !known {
		found, err := x.Tool.Get(ctx, d.UUID)
		if err != nil {
			return fmt.Errorf("read the time slice: %w", err)
		}
		r = record.GPU{BootID: boot, PCIAddress: d.PCIAddress, UUID: d.UUID, Found: found}
	}
	// Not what is to be, so that a crash before the change does not make the next call believe it was made.
	r.Set = unknown
	if err := x.Records.Put(r); err != nil {
		return err
	}
	if err := x.Tool.Set(ctx, d.UUID, d.Sharing.Interval); err != nil {
		return fmt.Errorf("set the time slice: %w", err)
	}
	r.Set = d.Sharing.Interval
	return x.Records.Put(r)
}

// unknown is the value of a time slice that is being changed.
const unknown = -1

// Check implements devicestate.Executor. The time slice is how fast processes take turns: one that somebody changed is no
// reason to end anything.
func (x *Executor) Check(context.Context, plan.Work) error { return nil }

// Revert implements devicestate.Executor.
func (x *Executor) Revert(ctx context.Context, w plan.Work) error {
	d := *w.Target()
	for _, s := range w.Sharers() {
		if s.Device.Sharing.Timed {
			return nil
		}
	}
	return x.explain(ctx, "unprepare", d, x.restore(ctx, d))
}

func (x *Executor) restore(ctx context.Context, d plan.Device) error {
	r, err := x.Records.Get(d.PCIAddress)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, record.ErrUnreadable):
		r = record.GPU{UUID: d.UUID} // What every GPU starts with.
	case err != nil:
		return err
	default:
		boot, err := x.Host.BootID()
		if err != nil {
			return err
		}
		if r.BootID != boot || r.UUID != d.UUID {
			return x.Records.Remove(d.PCIAddress)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, x.Patience)
	defer cancel()
	if err := x.Tool.Set(ctx, d.UUID, r.Found); err != nil {
		if !x.There(d.UUID) {
			return nil // The record stays: the GPU may come back.
		}
		return fmt.Errorf("set the time slice back: %w", err)
	}
	return x.Records.Remove(d.PCIAddress)
}

func (x *Executor) explain(ctx context.Context, attempt string, d plan.Device, err error) error {
	if err == nil {
		return nil
	}
	e := &claimerror.Error{
		Reason: claimerror.DeviceNotReady, Attempt: attempt, Device: d.Name, Cause: err,
		Remedy: "it is retried; see that nvidia-smi compute-policy works on the node",
	}
	if ctx.Err() != nil {
		e.Reason = claimerror.Interrupted
	}
	return e
}
