// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/record"
)

// Daemons runs MPS daemons; *mpsd.Client is the one.
type Daemons interface {
	Ensure(ctx context.Context, d mpsd.Daemon) (mpsd.Status, error)
	Stop(ctx context.Context, name string) error
	List(ctx context.Context, after string) (mpsd.List, error)
}

// Options are an Executor's.
type Options struct {
	Host     *host.Host
	Sessions *sessionpool.Pool
	Daemons  Daemons
	// Modes are the records of compute modes that this driver set.
	Modes *record.GPUs
	// ProcRoot is the machine's /proc, for the names of processes. Default: /proc.
	ProcRoot string
	// Patience is how long one call waits for a daemon. Default: 20 s, well within the kubelet's 45.
	Patience time.Duration
}

// Executor implements devicestate.Executor. The caller holds the GPU's lock.
type Executor struct {
	Options
}

// New makes an Executor.
func New(o Options) *Executor {
	if o.ProcRoot == "" {
		o.ProcRoot = "/proc"
	}
	if o.Patience == 0 {
		o.Patience = 20 * time.Second
	}
	return &Executor{Options: o}
}

// Admit implements devicestate.Executor. Whoever computes on the GPU outside of the daemon would be kept from it by the
// compute mode, or keep the daemon from it.
func (x *Executor) Admit(ctx context.Context, w plan.Work) error {
	d := w.Target()
	for _, s := range w.Sharers() {
		if !s.Committed {
			return x.refuse(ctx, "prepare", *d, &claimerror.Error{
				Reason: claimerror.DeviceInUse, Attempt: "prepare", Device: d.Name,
				Cause:  fmt.Errorf("claim %s, which has a share of it, is being prepared or undone", s.Claim),
				Remedy: "it is retried; the plugin's log says what holds that claim up if it persists",
			})
		}
	}
	if d.Kind != gpu.KindGPU || len(w.Sharers()) > 0 {
		return nil
	}
	return x.refuse(ctx, "prepare", *d, x.Sessions.With(func(s nvml.Session) error { return x.free(ctx, s, *d) }))
}

// free says what stands in the way of a daemon that is to have the GPU.
func (x *Executor) free(ctx context.Context, s nvml.Session, d plan.Device) error {
	g, err := sessionpool.Device(s, d.UUID)
	if err != nil {
		return err
	}
	mode, err := g.ComputeMode()
	switch {
	case nvml.Unavailable(err):
		return nil
	case err != nil:
		return fmt.Errorf("read the compute mode: %w", err)
	case mode == nvml.ComputeProhibited:
		return &obstacle{"its compute mode is PROHIBITED, which this driver did not set", "it is retried; set it back with nvidia-smi -c DEFAULT"}
	}
	processes, err := g.Processes()
	if err != nil && !nvml.Unavailable(err) {
		return fmt.Errorf("list its processes: %w", err)
	}
	var names []string
	for _, p := range processes {
		if name := x.named(p.PID); !strings.Contains(name, "("+serverComm) || !x.runs(ctx, d.Name) {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		return &obstacle{"it is held by " + strings.Join(names, ", ") + ", outside of this driver", "it is retried; end those processes"}
	}
	return nil
}

// serverComm is how the kernel calls MPS's programs: by fifteen characters of their names.
const serverComm = "nvidia-cuda-mps"

// runs says that the supervisor has a daemon for the device: one of a claim that was released while it was away.
func (x *Executor) runs(ctx context.Context, device string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	list, err := x.Daemons.List(ctx, "")
	return err == nil && slices.ContainsFunc(list.Daemons, func(s mpsd.Status) bool { return s.Name == device })
}

func (x *Executor) named(pid uint32) string {
	name := fmt.Sprintf("process %d", pid)
	if comm, err := x.Host.ReadFile(filepath.Join(x.ProcRoot, fmt.Sprint(pid), "comm")); err == nil {
		name += " (" + strings.TrimSpace(string(comm)) + ")"
	}
	return name
}

// Apply implements devicestate.Executor.
func (x *Executor) Apply(ctx context.Context, w plan.Work) error {
	d := *w.Target()
	if d.Kind == gpu.KindGPU {
		if err := x.exclusive(d); err != nil {
			return x.refuse(ctx, "prepare", d, err)
		}
	}
	patient, cancel := context.WithTimeout(ctx, x.Patience)
	defer cancel()
	_, err := x.Daemons.Ensure(patient, Daemon(w))
	return x.refuse(ctx, "prepare", d, err)
}

// Daemon is the one that a device's sharers need: its limits are those of the largest share, for they bind each client.
func Daemon(w plan.Work) mpsd.Daemon {
	d := *w.Target()
	out := daemonOf(d)
	for _, s := range w.Sharers() {
		if s.Device.MPS() {
			out.MemoryLimit = loosest(out.MemoryLimit, s.Device.Sharing.MemoryLimit)
			out.Threads = loosest(out.Threads, s.Device.Sharing.Threads)
		}
	}
	return out
}

func daemonOf(d plan.Device) mpsd.Daemon {
	uuid := d.UUID
	if d.Kind == gpu.KindMIG {
		uuid = d.Partition.UUID
	}
	return mpsd.Daemon{
		Name: d.Name, UUID: uuid, MemoryLimit: d.Sharing.MemoryLimit, Threads: d.Sharing.Threads, Users: string(d.Sharing.Users),
	}
}

// loosest is the larger of two limits, of which 0 is none.
func loosest[N uint64 | int](a, b N) N {
	if a == 0 || b == 0 {
		return 0
	}
	return max(a, b)
}

// Check implements devicestate.Executor. A daemon that died is started again by its supervisor, and whoever asks meanwhile
// is to ask again.
func (x *Executor) Check(ctx context.Context, w plan.Work) error {
	d := *w.Target()
	// Claims are checked one after the other when the plugin starts: one that hangs must not hold up all.
	patient, cancel := context.WithTimeout(ctx, min(x.Patience, time.Second))
	defer cancel()
	list, err := x.Daemons.List(patient, "")
	if err == nil {
		err = errors.New("no MPS daemon runs for it")
		for _, s := range list.Daemons {
			switch {
			case s.Name != d.Name:
			case s.PID == 0:
				err = fmt.Errorf("its MPS daemon does not run: %s", s.Problem)
			default:
				err = nil
			}
		}
	}
	return x.refuse(ctx, "check", d, err)
}

// Revert implements devicestate.Executor.
func (x *Executor) Revert(ctx context.Context, w plan.Work) error {
	d := *w.Target()
	patient, cancel := context.WithTimeout(ctx, x.Patience)
	defer cancel()
	for _, s := range w.Sharers() {
		if s.Device.MPS() {
			return nil // Its limits stay as they are: a client that runs keeps its own anyway.
		}
	}
	err := x.Daemons.Stop(patient, d.Name)
	if errors.Is(err, mpsd.ErrAway) {
		// It ended with its supervisor, and the next one ends what no claim needs.
		err = nil
	}
	if err == nil && d.Kind == gpu.KindGPU {
		err = x.restore(d)
	}
	return x.refuse(ctx, "unprepare", d, err)
}

// obstacle is what stands in a daemon's way.
type obstacle struct{ what, remedy string }

func (o *obstacle) Error() string { return o.what }

// refuse says of an error where it was and what to do.
func (x *Executor) refuse(ctx context.Context, attempt string, d plan.Device, err error) error {
	var said *claimerror.Error
	if err == nil || errors.As(err, &said) {
		return err
	}
	e := &claimerror.Error{
		Reason: claimerror.DeviceNotReady, Attempt: attempt, Device: d.Name, Cause: err,
		Remedy: "it is retried; if it persists, look at the log of the node's mps-supervisor pod",
	}
	var o *obstacle
	switch {
	case errors.Is(err, mpsd.ErrAway):
		e.Remedy = "it is retried; see that the node has a running mps-supervisor pod (chart value mps.enabled)"
	case errors.As(err, &o):
		e.Reason, e.Remedy = claimerror.DeviceInUse, o.remedy
	case sessionpool.IsGone(err) && !errors.Is(err, nvml.DriverNotLoaded):
		e.Reason, e.Remedy = claimerror.DeviceLost, "reset the GPU or reboot the node, or delete the pod so that it is scheduled elsewhere"
	case errors.Is(err, nvml.DriverNotLoaded), errors.Is(err, nvml.LibraryNotFound):
		e.Reason, e.Remedy = claimerror.DriverNotReady, "it is retried; load the driver on the node (nvidia-smi must work there)"
	case ctx.Err() != nil:
		e.Reason = claimerror.Interrupted
	}
	return e
}
