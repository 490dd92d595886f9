// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/record"
)

// Options are an Executor's.
type Options struct {
	Host    *host.Host
	Library nvml.Library
	// Sessions, if set, are those of the library that others use too.
	Sessions *sessionpool.Pool
	// Modes are the records of MIG modes that this driver switched on.
	Modes *record.GPUs
	// AllowReset has the mode switched where that resets the GPU.
	AllowReset bool
	// AdoptForeign has instances that no claim's record owns destroyed, and a mode that no record owns switched off,
	// where they are in a claim's way. Without it both belong to whoever made them.
	AdoptForeign bool
	// ScanLock is held while a mode is switched, because a scan would see the GPU come and go. Default: none.
	ScanLock sync.Locker
	// ProcRoot is the machine's /proc, for the names of processes. Default: /proc.
	ProcRoot string
	// Patience is how long a busy partition is tried again within one call. Default: 8 s, for the kubelet tries an undoing
	// again within seconds. A mode that cannot be switched is tried four times as long, nearly the kubelet's 45 s: a Prepare
	// that failed is repeated after a minute or more.
	Patience time.Duration
	// Report hears of what a person should know and no caller is told. It must not block.
	Report func(error)
	// Interconnect is how the GPU of a UUID is connected, to be remembered while it is cut. Nil: nothing is.
	Interconnect func(uuid string) gpu.Interconnect
}

// Executor implements devicestate.Executor. The caller holds the GPU's lock.
type Executor struct {
	Options
	nvml *sessionpool.Pool
}

// New makes an Executor.
func New(o Options) *Executor {
	if o.ProcRoot == "" {
		o.ProcRoot = "/proc"
	}
	if o.ScanLock == nil {
		o.ScanLock = new(sync.RWMutex).RLocker()
	}
	if o.Patience == 0 {
		o.Patience = 8 * time.Second
	}
	if o.Report == nil {
		o.Report = func(error) {}
	}
	if o.Sessions == nil {
		o.Sessions = sessionpool.New(o.Library, o.Report)
	}
	return &Executor{Options: o, nvml: o.Sessions}
}

// Admit implements devicestate.Executor.
func (x *Executor) Admit(ctx context.Context, w plan.Work) error {
	d := w.Target()
	if sharers := w.Sharers(); len(sharers) > 0 {
		for _, s := range sharers {
			if !s.Committed {
				return between("prepare", *d, s)
			}
		}
		d.Partition = sharers[0].Device.Partition
		return nil
	}
	return x.onGPU(ctx, "prepare", *d, func(g *board) error {
		on, err := g.modeOn()
		if err != nil || !on {
			return err
		}
		there, err := g.instances()
		if err != nil {
			return err
		}
		exact, obstacles, err := g.sort(there, d.Partition)
		if err != nil {
			return err
		}
		switch {
		case len(obstacles) == 0, x.AdoptForeign:
			return nil // What is adopted goes once the intent is recorded.
		case len(obstacles) == 1 && exact != nil && exact.whole():
			d.Partition.Foreign = true
			exact.describe(&d.Partition)
			return nil
		}
		return inTheWay(obstacles)
	})
}

// Apply implements devicestate.Executor.
func (x *Executor) Apply(ctx context.Context, w plan.Work) error {
	d := w.Target()
	return x.onGPU(ctx, "prepare", *d, func(g *board) error {
		if d.Partition.Foreign {
			return g.find(&d.Partition)
		}
		if err := x.switchOn(ctx, g, d); err != nil {
			return err
		}
		switch {
		case d.Partition.UUID != "":
			return x.renew(g, &d.Partition, w.Sharers())
		case d.Partition.Lost:
			return x.again(ctx, g, &d.Partition)
		}
		return x.create(ctx, g, &d.Partition)
	})
}

// Check implements devicestate.Executor.
func (x *Executor) Check(ctx context.Context, w plan.Work) error {
	d := *w.Target()
	return x.onGPU(ctx, "check", d, func(g *board) error { return g.find(&d.Partition) })
}

// Revert implements devicestate.Executor.
func (x *Executor) Revert(ctx context.Context, w plan.Work) error {
	d := *w.Target()
	if d.Partition.Foreign || slices.ContainsFunc(w.Sharers(), keeps(d.Partition)) {
		return nil
	}
	err := x.onGPU(ctx, "unprepare", d, func(g *board) error { return x.destroy(ctx, g, d.Partition) })
	if sessionpool.IsGone(err) || errors.Is(err, nvml.LibraryNotFound) && !x.driverLoaded() {
		return nil
	}
	return err
}

// keeps says of a claim with a share of a partition that the partition is its own, too. One that vanished and was made
// anew for another claim since has another UUID.
func keeps(p plan.Partition) func(plan.Sharer) bool {
	return func(s plan.Sharer) bool {
		other := s.Device.Partition
		return other.UUID == p.UUID || other.UUID == "" || p.UUID == ""
	}
}

// between refuses to join a claim whose effects may be half there.
func between(attempt string, d plan.Device, s plan.Sharer) error {
	return &claimerror.Error{
		Reason: claimerror.DeviceInUse, Attempt: attempt, Device: d.Name,
		Cause:  fmt.Errorf("claim %s, which has a share of it, is being prepared or undone", s.Claim),
		Remedy: "it is retried; the plugin's log says what holds that claim up if it persists",
	}
}

// driverLoaded says whether the kernel has the driver, which its user space being away does not tell.
func (x *Executor) driverLoaded() bool {
	_, err := x.Host.ReadFile(filepath.Join(x.ProcRoot, "driver/nvidia/version"))
	return !errors.Is(err, fs.ErrNotExist)
}

// onGPU opens NVML for one piece of work on a device's GPU, and says of an error where and what it was.
func (x *Executor) onGPU(ctx context.Context, attempt string, d plan.Device, do func(*board) error) error {
	err := x.nvml.With(func(s nvml.Session) error {
		g, err := x.board(s, d.UUID)
		if err != nil {
			return err
		}
		return do(g)
	})
	if err == nil {
		return nil
	}
	var said *claimerror.Error
	if errors.As(err, &said) {
		return err
	}
	e := &claimerror.Error{
		Reason: claimerror.DeviceNotReady, Attempt: attempt, Device: d.Name, Cause: err,
		Remedy: "it is retried; if it persists, look at nvidia-smi and at the kernel log of the node",
	}
	var busy *busyError
	switch {
	case ctx.Err() != nil:
		e.Reason = claimerror.Interrupted
	case sessionpool.IsGone(err) && !errors.Is(err, nvml.DriverNotLoaded):
		e.Reason, e.Remedy = claimerror.DeviceLost, "reset the GPU or reboot the node, or delete the pod so that it is scheduled elsewhere"
	case errors.Is(err, nvml.DriverNotLoaded), errors.Is(err, nvml.LibraryNotFound):
		e.Reason, e.Remedy = claimerror.DriverNotReady, "it is retried; load the driver on the node (nvidia-smi must work there)"
	case errors.As(err, &busy):
		e.Reason, e.Remedy = claimerror.DeviceInUse, busy.remedy
	case errors.Is(err, errVanished):
		e.Remedy = "delete the pod: what ran on the partition has lost it"
	}
	return e
}

func (x *Executor) board(s nvml.Session, uuid string) (*board, error) {
	g := &board{x: x, session: s, uuid: uuid}
	return g, g.open()
}
