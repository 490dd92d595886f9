// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package reset resets idle GPUs whose driver asks for it.
//
// A GPU is reset only if no claim has a part of it and it has no partitions. No device plugin may serve it, and no
// process may have it open. The caller holds the GPU's lock, so Prepare waits, and refuses the GPU while it has the
// fault. Polls of the health end the fault.
//
// Traps. The attempt is recorded before it begins, so that a plugin that crashes does not reset the GPU again and
// again. A program that hangs in the kernel driver keeps the GPU's lock, because the reset can still happen. On some
// boards GPUs that NVLink connects cannot be reset alone: nvidia-smi says so, and the next attempt comes after a pause.
package reset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"

	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/executor"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
)

// Setting is the name of the records of attempts.
const Setting = "reset"

const (
	// limit limits a run of nvidia-smi, and lateLimit the time after which it is reported that it does not end.
	limit, lateLimit = time.Minute, 5 * time.Second
	// openLimit limits the wait for processes that still have the GPU open, such as a scan of this plugin.
	openLimit, openPause = 10 * time.Second, 100 * time.Millisecond
	// attemptInterval is the shortest time between two attempts, across restarts of the plugin. Settings makes it
	// longer after failures.
	attemptInterval = 10 * time.Minute
)

// Options configures an Executor. All fields but Limit and OpenLimit are required.
type Options struct {
	// Faults are the records of faulty GPUs, Attempts those of this package.
	Faults, Attempts *record.GPUs
	// SMI resets the GPU at a PCI address.
	SMI interface {
		Reset(ctx context.Context, address string) error
	}
	// Health has the last answer about a GPU's health.
	Health interface {
		Last(address string) (uuid string, r health.Reading, ok bool)
	}
	DevicePlugins plan.DevicePlugins
	// Usage returns a process that has a GPU open, or "".
	Usage interface {
		Client(ctx context.Context, g gpu.GPU) (string, error)
	}
	// Switches is held meanwhile: this plugin must not have the GPU open.
	Switches interface {
		Lock(address string)
		Unlock(address string)
	}
	// ProcRoot is the machine's /proc.
	ProcRoot string
	// Clock has the time since the boot.
	Clock interface {
		Uptime() (time.Duration, error)
	}
	Reports notify.Reporter
	// Limit and OpenLimit are for tests. Default: a minute and ten seconds.
	Limit, OpenLimit time.Duration
}

// Executor resets GPUs.
type Executor struct{ o Options }

func New(o Options) *Executor {
	o.Limit, o.OpenLimit = cmp.Or(o.Limit, limit), cmp.Or(o.OpenLimit, openLimit)
	return &Executor{o}
}

// Setting makes a fault of a GPU a setting that is restored, by a reset, once no claim has a part of the GPU. Polls
// remove its record.
func (x *Executor) Setting() executor.Setting {
	return executor.Setting{Restorer: x, Records: x.o.Faults, Limit: x.o.OpenLimit + 2*x.o.Limit}
}

// NeededBy implements executor.Restorer. A GPU is not reset while a claim has a part of it.
func (x *Executor) NeededBy(plan.Device) bool { return true }

// Restore implements executor.Restorer.
func (x *Executor) Restore(ctx context.Context, g gpu.GPU) error {
	if due, err := x.due(g); err != nil || !due {
		return x.failed(g, err)
	}
	if err := x.obstacle(g); err != nil {
		return x.failed(g, err)
	}
	x.o.Switches.Lock(g.PCIAddress)
	defer x.o.Switches.Unlock(g.PCIAddress)
	if err := x.waitUnopened(ctx, g); err != nil {
		return x.failed(g, err)
	}
	at, err := x.o.Clock.Uptime()
	if err != nil {
		return x.failed(g, err)
	}
	r, _, err := x.o.Attempts.OfBoot(g.PCIAddress, g.UUID)
	if err != nil {
		return x.failed(g, err)
	}
	r.Attempted = at
	if err := x.o.Attempts.Put(r); err != nil {
		return x.failed(g, err)
	}
	return x.reset(ctx, g)
}

// due reports whether the driver asks for a reset, and the last attempt is long enough ago.
func (x *Executor) due(g gpu.GPU) (bool, error) {
	// The worst fault decides: a lost GPU or one that needs a reboot is not reset.
	if len(g.Faults) == 0 || g.Faults[0].State != health.Reset && g.Faults[0].State != health.DrainReset {
		return false, nil
	}
	uuid, last, ok := x.o.Health.Last(g.PCIAddress)
	if !ok || uuid != g.UUID || !last.AsksReset() {
		return false, nil
	}
	r, known, err := x.o.Attempts.OfBoot(g.PCIAddress, g.UUID)
	if err != nil || !known {
		return err == nil, err
	}
	now, err := x.o.Clock.Uptime()
	return err == nil && now-r.Attempted >= attemptInterval, err
}

// obstacle returns what a reset would destroy or disturb, as an error.
func (x *Executor) obstacle(g gpu.GPU) error {
	served, known := x.o.DevicePlugins.GPUs()
	if !known {
		return &executor.Busy{
			Obstacle: "the kubelet has not said whether a device plugin serves it",
			Remedy:   "check the kubelet; an Event of the node names the socket that does not answer",
		}
	}
	if resource := served[g.PCIAddress]; resource != "" {
		return &executor.Busy{
			Obstacle: "a device plugin serves it as " + resource,
			Remedy:   "reset the GPU by nvidia-smi -r when no pod uses it",
		}
	}
	// The kernel's list is newer than the last scan.
	instances, err := filepath.Glob(filepath.Join(x.o.ProcRoot, "driver/nvidia/capabilities",
		fmt.Sprintf("gpu%d", g.Minor), "mig/gi*"))
	if err != nil {
		return err
	}
	if g.MIG.Fault != "" || len(g.MIG.Partitions) > 0 || len(instances) > 0 {
		return &executor.Busy{
			Obstacle: "it has, or can have, MIG partitions of an administrator, which a reset destroys",
			Remedy:   "destroy them (nvidia-smi mig -dci, -dgi), or reset the GPU by nvidia-smi -r",
		}
	}
	return nil
}

// waitUnopened waits until no process has the GPU open.
func (x *Executor) waitUnopened(ctx context.Context, g gpu.GPU) error {
	ctx, cancel := context.WithTimeout(ctx, x.o.OpenLimit)
	defer cancel()
	for {
		process, err := x.o.Usage.Client(ctx, g)
		if err != nil || process == "" {
			return err
		}
		select {
		case <-ctx.Done():
			return &executor.Busy{
				Obstacle: "it is in use by " + process,
				Remedy:   "stop the process; a monitoring agent must be stopped for the time of the reset",
			}
		case <-time.After(openPause):
		}
	}
}

// reset returns once nvidia-smi has ended, also if that is after the limit.
func (x *Executor) reset(ctx context.Context, g gpu.GPU) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), x.o.Limit)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- x.o.SMI.Reset(ctx, g.PCIAddress) }()
	late := time.NewTimer(x.o.Limit + lateLimit)
	defer late.Stop()
	select {
	case err := <-ended:
		if err == nil {
			klog.FromContext(ctx).Info("GPU reset", "gpu", g.PCIAddress, "fault", g.Faults[0].Cause)
		}
		return x.failed(g, err)
	case <-late.C:
		_ = x.failed(g, fmt.Errorf("nvidia-smi -r -i %s was killed after %s, and does not end: the driver hangs",
			g.PCIAddress, x.o.Limit))
		return <-ended
	}
}

// failed reports an error, and returns it. Settings does not: a reset takes longer than one of its rounds.
func (x *Executor) failed(g gpu.GPU, err error) error {
	if err == nil {
		return nil
	}
	remedy := "drain the node and reset its GPUs together by nvidia-smi -r, or reboot it. The driver tries again " +
		"after 10 minutes or more"
	var busy *executor.Busy
	if errors.As(err, &busy) {
		remedy = busy.Remedy + ". The driver tries again"
	}
	x.o.Reports.Report(&claimerror.Error{
		Reason:  claimerror.DeviceNotReady,
		Attempt: "reset",
		Device:  gpu.NameOf(g.PCIAddress),
		Cause:   err,
		Remedy:  remedy,
	})
	return err
}
