// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/claim/executor"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/gpu"
)

// Options configures an Executor. Switches, ProcRoot and Scans are required.
type Options struct {
	// AllowReset allows switches of the mode that reset the GPU, in either direction.
	AllowReset bool
	// AdoptExternal allows the driver to destroy instances, and to switch off modes, that no record owns if they block
	// a claim. Without it they belong to their creator.
	AdoptExternal bool
	// Switches is held during a switch of a mode, because the GPU disappears for a moment.
	Switches Switches
	// ProcRoot is the machine's /proc, for the names of processes.
	ProcRoot string
	// Timeout limits the retries on a busy partition. Default: 8 s, because the kubelet repeats an unprepare within
	// seconds. A switch of the mode gets four times as long, nearly the kubelet's timeout of 45 s, because the kubelet
	// repeats a failed prepare only after a minute or more.
	Timeout time.Duration
	Scans   gpu.Scans
	// Changed is fired after a partition became stuck, or was destroyed at last. Default: it is not.
	Changed notify.Trigger
}

// Switches are notified of a switch of a GPU's mode, by the GPU's PCI address.
type Switches interface {
	Lock(address string)
	Unlock(address string)
}

// Executor implements devicestate.Executor. The caller holds the GPU's lock.
type Executor struct {
	host     *host.Host
	sessions *sessionpool.Pool
	modes    *record.GPUs
	stuck    *stuck
	o        Options
}

// New returns an Executor. modes are the records of the MIG modes that this driver switched on, stuck those of
// partitions that it could not destroy.
func New(h *host.Host, sessions *sessionpool.Pool, modes, stuck *record.GPUs, o Options) *Executor {
	o.Timeout = cmp.Or(o.Timeout, 8*time.Second)
	return &Executor{host: h, sessions: sessions, modes: modes, stuck: newStuck(stuck), o: o}
}

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
	stuck, err := x.stuckOn(d.PCIAddress, d.UUID)
	if err != nil {
		return err
	}
	return x.onGPU(ctx, "prepare", *d, func(g *openGPU) error {
		on, _, err := g.mode()
		if err != nil || !on {
			return err
		}
		if slices.ContainsFunc(stuck, func(p plan.Partition) bool {
			return p.Placement().Overlaps(d.Partition.Placement())
		}) {
			return inPlace(stuck)
		}
		exact, obstacles, err := g.at(d.Partition)
		if err != nil {
			return err
		}
		switch {
		case len(obstacles) > 0 && len(w.Unknown) > 0:
			return unknownOwner(obstacles, w.Unknown)
		case len(obstacles) == 0, x.o.AdoptExternal:
			return nil // create destroys them after the intent is recorded.
		case len(obstacles) == 1 && exact != nil && exact.complete():
			d.Partition.External = true
			exact.note(&d.Partition)
			return nil
		}
		return obstructed(obstacles)
	})
}

func (x *Executor) Apply(ctx context.Context, w plan.Work) error {
	d := w.Target()
	return x.onGPU(ctx, "prepare", *d, func(g *openGPU) error {
		if d.Partition.External {
			return g.find(&d.Partition)
		}
		if err := x.switchOn(ctx, g, d); err != nil {
			return unchanged(err)
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

func (x *Executor) Check(ctx context.Context, w plan.Work) error {
	d := *w.Target()
	return x.onGPU(ctx, "check", d, func(g *openGPU) error { return g.find(&d.Partition) })
}

func (x *Executor) Revert(ctx context.Context, w plan.Work) error {
	d := *w.Target()
	switch {
	case d.Partition.External, slices.ContainsFunc(w.CoTenants(), uses(d.Partition)):
		return nil
	case w.MayBeShared():
		return plan.ErrKept // Without its record the partition would be external.
	}
	err := x.end(ctx, d)
	if errors.Is(err, errStuck) {
		err = x.leave(d, err)
	}
	if err == nil {
		x.stuck.ended(d)
	}
	return explain(ctx, "unprepare", d, err)
}

// end destroys a partition. It succeeds if the GPU is gone.
func (x *Executor) end(ctx context.Context, d plan.Device) error {
	err := x.current(d.PCIAddress, func() error {
		return x.sessions.Undo(d.PCIAddress, d.UUID, func(g *sessionpool.GPU) (bool, error) {
			return x.destroy(ctx, &openGPU{GPU: g, x: x}, d.Partition)
		})
	})
	if sessionpool.IsGone(err) {
		return nil
	}
	return err
}

// uses returns whether a co-tenant uses the same instance of a partition. An instance that was created again for the
// co-tenant has another UUID.
func uses(p plan.Partition) func(plan.CoTenant) bool {
	return func(t plan.CoTenant) bool {
		other := t.Device.Partition
		return other.UUID == p.UUID || other.UUID == "" || p.UUID == ""
	}
}

// onGPU opens NVML and the GPU for one operation, and explains its error.
func (x *Executor) onGPU(ctx context.Context, attempt string, d plan.Device, do func(*openGPU) error) error {
	err := x.current(d.PCIAddress, func() error {
		return x.sessions.With(d.PCIAddress, d.UUID, func(g *sessionpool.GPU) error {
			return do(&openGPU{GPU: g, x: x})
		})
	})
	return explain(ctx, attempt, d, err)
}

// current runs an operation, and again in a new session if NVML's list of MIG devices is out of date. All sessions of
// the process are one to NVML, so the other parts close theirs first, also those for other GPUs.
func (x *Executor) current(address string, do func() error) error {
	err := do()
	if !errors.Is(err, errStale) {
		return err
	}
	locked := map[string]bool{address: true}
	for _, g := range x.o.Scans.Snapshot().GPUs {
		locked[g.PCIAddress] = true
	}
	var closed sync.WaitGroup
	for address := range locked { // At once, because each can wait for a call of NVML.
		closed.Go(func() { x.o.Switches.Lock(address) })
		defer x.o.Switches.Unlock(address)
	}
	closed.Wait()
	x.sessions.CloseUnused()
	return do()
}

func explain(ctx context.Context, attempt string, d plan.Device, err error) error {
	remedy := "the operation is retried; if it persists, run nvidia-smi and read the kernel log on the node"
	if errors.Is(err, errGone) {
		remedy = "delete the pod, because its processes lost the partition"
	}
	return executor.Failure(ctx, attempt, d, err, remedy)
}
