// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package mig makes and unmakes MIG partitions, and switches a GPU's MIG mode when a partition or the whole needs it.
//
// A partition is a GPU instance and a compute instance that takes all of it. It is identified by its GPU, profile and
// first memory slice, so that it is found again after a crash at any point; once it exists, its UUID tells it from
// another that an administrator made in the same place.
//
// Traps. A GPU instance without a compute instance has no MIG device, so instances are enumerated, never devices. A
// creation that answers with an error may have been carried out: what counts is what is there afterwards. Switching the
// mode can change the GPU's minor number and invalidates its handle. The mode is never switched off while an instance
// lives, and not at once when the last one goes, for the next claim may want one again.
package mig

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/executor"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/record"
)

// Options configures an Executor; the zero value is usable.
type Options struct {
	// AllowReset has the mode switched where that resets the GPU.
	AllowReset bool
	// AdoptForeign has instances that no claim's record owns destroyed, and a mode that no record owns switched off,
	// where they are in a claim's way. Without it both belong to whoever made them.
	AdoptForeign bool
	// ScanLock is held while a mode is switched: a scan of the node would see the GPU come and go. Default: none.
	ScanLock sync.Locker
	// ProcRoot is the machine's /proc, for the names of processes. Default: /proc.
	ProcRoot string
	// Timeout is how long one call retries on a busy partition. Default: 8 s, for the kubelet repeats an unprepare within
	// seconds. A mode is retried four times as long, nearly the kubelet's 45 s: a Prepare that failed is repeated after a
	// minute or more.
	Timeout time.Duration
	// Interconnect is that of the GPU of a UUID, to be recorded while the GPU is partitioned. Nil: none is.
	Interconnect func(uuid string) gpu.Interconnect
}

// Executor implements devicestate.Executor. The caller holds the GPU's lock.
type Executor struct {
	host     *host.Host
	sessions *sessionpool.Pool
	modes    *record.GPUs
	o        Options
}

// New makes an Executor. The records are of the MIG modes that this driver switched on.
func New(h *host.Host, sessions *sessionpool.Pool, modes *record.GPUs, o Options) *Executor {
	o.ProcRoot = cmp.Or(o.ProcRoot, "/proc")
	o.Timeout = cmp.Or(o.Timeout, 8*time.Second)
	if o.ScanLock == nil {
		o.ScanLock = new(sync.RWMutex).RLocker()
	}
	return &Executor{host: h, sessions: sessions, modes: modes, o: o}
}

// Admit implements devicestate.Executor.
func (x *Executor) Admit(ctx context.Context, w plan.Work) error {
	d := w.Target()
	tenants, err := executor.CoTenants(w)
	if err != nil {
		return err
	}
	if len(tenants) > 0 {
		d.Partition = tenants[0].Device.Partition
		return nil
	}
	return x.onGPU(ctx, "prepare", *d, func(g *openGPU) error {
		on, err := g.modeOn()
		if err != nil || !on {
			return err
		}
		exact, obstacles, err := g.at(d.Partition)
		if err != nil {
			return err
		}
		switch {
		case len(obstacles) == 0, x.o.AdoptForeign:
			return nil // What is adopted goes once the intent is recorded.
		case len(obstacles) == 1 && exact != nil && exact.complete():
			d.Partition.Foreign = true
			exact.note(&d.Partition)
			return nil
		}
		return obstructed(obstacles)
	})
}

// Apply implements devicestate.Executor.
func (x *Executor) Apply(ctx context.Context, w plan.Work) error {
	d := w.Target()
	return x.onGPU(ctx, "prepare", *d, func(g *openGPU) error {
		if d.Partition.Foreign {
			return g.find(&d.Partition)
		}
		if err := x.switchOn(ctx, g, d); err != nil {
			return err
		}
		switch {
		case d.Partition.UUID != "":
			return x.verify(g, &d.Partition, w.CoTenants())
		case d.Partition.Lost:
			return x.recreate(ctx, g, &d.Partition)
		}
		return x.create(ctx, g, &d.Partition)
	})
}

// Check implements devicestate.Executor.
func (x *Executor) Check(ctx context.Context, w plan.Work) error {
	d := *w.Target()
	return x.onGPU(ctx, "check", d, func(g *openGPU) error { return g.find(&d.Partition) })
}

// Revert implements devicestate.Executor.
func (x *Executor) Revert(ctx context.Context, w plan.Work) error {
	d := *w.Target()
	if d.Partition.Foreign || slices.ContainsFunc(w.CoTenants(), uses(d.Partition)) {
		return nil
	}
	err := x.onGPU(ctx, "unprepare", d, func(g *openGPU) error { return x.destroy(ctx, g, d.Partition) })
	if sessionpool.IsGone(err) || errors.Is(err, nvml.LibraryNotFound) && !x.driverLoaded() {
		return nil
	}
	return err
}

// uses says whether another claim with a share of a partition uses the same one. A partition that was destroyed, and made
// anew for that claim, has another UUID.
func uses(p plan.Partition) func(plan.CoTenant) bool {
	return func(t plan.CoTenant) bool {
		other := t.Device.Partition
		return other.UUID == p.UUID || other.UUID == "" || p.UUID == ""
	}
}

// driverLoaded says whether the kernel has the driver, which its user space being away does not tell.
func (x *Executor) driverLoaded() bool {
	_, err := x.host.ReadFile(filepath.Join(x.o.ProcRoot, "driver/nvidia/version"))
	return !errors.Is(err, fs.ErrNotExist)
}

// onGPU opens NVML for one piece of work on a device's GPU, and explains its error.
func (x *Executor) onGPU(ctx context.Context, attempt string, d plan.Device, do func(*openGPU) error) error {
	err := x.sessions.With(func(s nvml.Session) error {
		g := &openGPU{x: x, session: s, uuid: d.UUID}
		if err := g.open(); err != nil {
			return err
		}
		return do(g)
	})
	remedy := "it is retried; if it persists, look at nvidia-smi and at the kernel log of the node"
	if errors.Is(err, errGone) {
		remedy = "delete the pod: what ran on the partition has lost it"
	}
	return executor.Failure(ctx, attempt, d, err, remedy)
}
