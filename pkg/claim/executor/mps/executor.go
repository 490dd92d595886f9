// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/claim/executor"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/gpu"
)

// Daemons runs MPS daemons. *mpsd.Client implements it.
type Daemons interface {
	Ensure(ctx context.Context, d mpsd.Daemon) (mpsd.Status, error)
	Stop(ctx context.Context, name string) error
	List(ctx context.Context, after string) (mpsd.List, error)
}

// Executor implements devicestate.Executor. The caller holds the GPU's lock.
type Executor struct {
	// StartLimit and StopLimit limit a claim's wait for the supervisor to start and end a daemon. Both are well below
	// the kubelet's 45 s.
	StartLimit, StopLimit time.Duration
	// KeepMode leaves the compute modes as they are. Then a process can use a shared GPU without the daemon.
	KeepMode bool

	host     *host.Host
	sessions *sessionpool.Pool
	daemons  Daemons
	modes    *record.GPUs
	procRoot string
}

// New returns an Executor. modes are the records of the compute modes that this driver set; procRoot is the machine's
// /proc, for the names of processes.
func New(h *host.Host, sessions *sessionpool.Pool, daemons Daemons, modes *record.GPUs, procRoot string) *Executor {
	return &Executor{
		StartLimit: 20 * time.Second, StopLimit: 5 * time.Second,
		host: h, sessions: sessions, daemons: daemons, modes: modes, procRoot: procRoot,
	}
}

// Admit implements devicestate.Executor. It refuses a GPU that other processes use: the compute mode would exclude
// them, or they would keep the daemon from the GPU.
func (x *Executor) Admit(ctx context.Context, w plan.Work) error {
	d := w.Target()
	tenants, err := executor.CoTenants(w)
	if err == nil && len(tenants) == 0 && d.Kind == gpu.KindGPU {
		err = x.withMode(*d, func(g nvml.Device, mode nvml.ComputeMode) error { return x.free(ctx, g, mode, d.Name) })
	}
	return failure(ctx, "prepare", *d, err)
}

// free returns an error if no daemon could use the GPU.
func (x *Executor) free(ctx context.Context, g nvml.Device, mode nvml.ComputeMode, device string) error {
	if mode == nvml.ComputeProhibited {
		return &executor.Busy{
			Obstacle: "its compute mode is PROHIBITED, which this driver did not set",
			Remedy:   "the kubelet retries; restore it with nvidia-smi -c DEFAULT",
		}
	}
	processes, err := g.Processes()
	if err != nil && !nvml.Unavailable(err) {
		return fmt.Errorf("list its processes: %w", err)
	}
	var names []string
	for _, p := range processes {
		name := executor.ProcessName(x.host, x.procRoot, p.PID)
		if !strings.Contains(name, "("+serverComm) || !x.runs(ctx, device) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return &executor.Busy{
		Obstacle: "processes outside of this driver use it: " + strings.Join(names, ", "),
		Remedy:   "the kubelet retries; end those processes",
	}
}

// serverComm is the kernel's name of MPS's programs, which is limited to fifteen characters.
const serverComm = "nvidia-cuda-mps"

// runs reports whether the supervisor has a daemon for the device, as for a claim that was released while it was away.
func (x *Executor) runs(ctx context.Context, device string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	list, err := x.daemons.List(ctx, "")
	return err == nil && slices.ContainsFunc(list.Daemons, func(s mpsd.Status) bool { return s.Name == device })
}

func (x *Executor) Apply(ctx context.Context, w plan.Work) error {
	d := *w.Target()
	var err error
	if x.exclusive(d) {
		err = x.setExclusive(d)
	} else if x.exclusivePartition(d) {
		err = x.setPartitionExclusive(d)
	}
	if err == nil {
		limited, cancel := context.WithTimeout(ctx, x.StartLimit)
		defer cancel()
		want := Daemon(w)
		if w.MayBeShared() {
			want, err = x.loosened(limited, want)
		}
		if err == nil {
			_, err = x.daemons.Ensure(limited, want)
		}
	}
	return failure(ctx, "prepare", d, err)
}

// Daemon returns the daemon of a device's shares. Its limits are the largest share's, because they apply to every
// client.
func Daemon(w plan.Work) mpsd.Daemon {
	d := *w.Target()
	out := mpsd.Daemon{
		Name: d.Name, UUID: d.UUID, MemoryLimit: d.Sharing.MemoryLimit, Threads: d.Sharing.ActiveThreadPercentage,
	}
	if many := d.Sharing.MultiUser; many != nil {
		out.Users = map[bool]string{true: "many", false: "one"}[*many]
	}
	if d.Kind == gpu.KindMIG {
		out.UUID = d.Partition.UUID
	}
	for _, s := range w.Sharers() {
		if uses(s) {
			out.MemoryLimit = loosest(out.MemoryLimit, s.Sharing.MemoryLimit)
			out.Threads = max(cmp.Or(out.Threads, 100), cmp.Or(s.Sharing.ActiveThreadPercentage, 100))
		}
	}
	return out
}

// loosened returns a daemon with no tighter limits than the running one, which may serve an unknown share.
func (x *Executor) loosened(ctx context.Context, want mpsd.Daemon) (mpsd.Daemon, error) {
	list, err := x.daemons.List(ctx, "")
	for _, s := range list.Daemons {
		if s.Name == want.Name && s.UUID == want.UUID {
			want.MemoryLimit = loosest(want.MemoryLimit, s.MemoryLimit)
			want.Threads = max(cmp.Or(want.Threads, 100), cmp.Or(s.Threads, 100))
		}
	}
	return want, err
}

// loosest returns the larger of two limits; nil means no limit.
func loosest(a, b *uint64) *uint64 {
	if a == nil || b != nil && *a >= *b {
		return a
	}
	return b
}

// Check implements devicestate.Executor. It fails until the supervisor has restarted an ended daemon.
func (x *Executor) Check(ctx context.Context, w plan.Work) error {
	d := *w.Target()
	// The plugin checks claims one after the other at start, so one must not block for long.
	limited, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	list, err := x.daemons.List(limited, "")
	i := slices.IndexFunc(list.Daemons, func(s mpsd.Status) bool { return s.Name == d.Name })
	switch {
	case err != nil:
	case i < 0:
		err = errors.New("no MPS daemon runs for it")
	case list.Daemons[i].PID == 0:
		err = fmt.Errorf("its MPS daemon does not run: %s", list.Daemons[i].Problem)
	}
	return failure(ctx, "check", d, err)
}

func (x *Executor) Revert(ctx context.Context, w plan.Work) error {
	d := *w.Target()
	for _, t := range w.CoTenants() {
		if uses(t.Device) {
			return nil // The daemon keeps its limits, because running clients keep theirs.
		}
	}
	if w.MayBeShared() {
		return nil // The last share's Revert ends the daemon, or the Watcher once every share is known.
	}
	err := x.stop(ctx, d.Name)
	if errors.Is(err, mpsd.ErrAway) || errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		// The supervisor is away or hangs. The Watcher ends the unneeded daemon once it answers.
		err = nil
	}
	return failure(ctx, "unprepare", d, err)
}

func (x *Executor) stop(ctx context.Context, device string) error {
	limited, cancel := context.WithTimeout(ctx, x.StopLimit)
	defer cancel()
	return x.daemons.Stop(limited, device)
}

// Settle implements devicestate.Options.Settle: it restores the compute mode of a GPU that gets a claim without MPS.
// Without a record of the mode it only reads one file.
func (x *Executor) Settle(ctx context.Context, d *plan.Device) error {
	if x.exclusive(*d) {
		return nil
	}
	return failure(ctx, "prepare", *d, x.restore(*d))
}

// Setting is the compute mode as a setting that is restored once no claim of the GPU has MPS.
func (x *Executor) Setting() executor.Setting {
	return executor.Setting{Restorer: x, Records: x.modes}
}

// NeededBy implements executor.Restorer.
func (x *Executor) NeededBy(d plan.Device) bool { return x.exclusive(d) }

// Restore implements executor.Restorer.
func (x *Executor) Restore(ctx context.Context, g gpu.GPU) error {
	d := plan.Device{Kind: gpu.KindGPU, PCIAddress: g.PCIAddress, UUID: g.UUID}
	d.Name = gpu.NameOf(g.PCIAddress)
	return failure(ctx, "restore the compute mode", d, x.restore(d))
}

// uses reports whether a claim's processes use the device through a daemon.
func uses(d plan.Device) bool { return d.Sharing.Strategy == v1beta1.StrategyMPS }

// exclusive reports whether a claim's device needs a GPU that only the daemon reaches.
func (x *Executor) exclusive(d plan.Device) bool {
	return !x.KeepMode && d.Kind == gpu.KindGPU && uses(d)
}

func failure(ctx context.Context, attempt string, d plan.Device, err error) error {
	remedy := "the operation is retried; if it persists, see the log of the node's mps-supervisor pod"
	if errors.Is(err, mpsd.ErrAway) {
		remedy = "the operation is retried; check that the node has a running mps-supervisor pod (chart value " +
			"mps.enabled)"
	}
	return executor.Failure(ctx, attempt, d, err, remedy)
}

// Setting names the GPU records of compute modes.
const Setting = "compute-mode"

// withMode calls do with a GPU and its compute mode. It does nothing on a device without compute mode.
func (x *Executor) withMode(d plan.Device, do func(nvml.Device, nvml.ComputeMode) error) error {
	return x.sessions.With(d.PCIAddress, d.UUID, func(g *sessionpool.GPU) error {
		mode, err := twice(g.ComputeMode)
		switch {
		case nvml.Unavailable(err):
			return nil
		case err != nil:
			return fmt.Errorf("read the compute mode: %w", err)
		}
		return do(g, mode)
	})
}

// setExclusive sets the compute mode in which only the daemon reaches the GPU. It records the previous mode first.
func (x *Executor) setExclusive(d plan.Device) error {
	return x.withMode(d, func(g nvml.Device, mode nvml.ComputeMode) error {
		if mode == nvml.ComputeExclusiveProcess {
			return nil // This driver or an administrator set it.
		}
		// A record of this boot holds the mode from before the driver's first change, which was undone meanwhile.
		r, known, err := x.modes.OfBoot(d.PCIAddress, d.UUID)
		if err != nil {
			return err
		}
		if !known {
			r.Found, r.Set = int(mode), int(nvml.ComputeExclusiveProcess)
			if err := x.modes.Put(r); err != nil {
				return err
			}
		}
		_, err = twice(func() (any, error) { return nil, set(g, nvml.ComputeExclusiveProcess) })
		if nvml.Unavailable(err) {
			return nil // The limits hold for processes that use the daemon.
		}
		return err
	})
}

// twice asks again if the answer is that the GPU lacks the setting, because without it a share is not a limit.
func twice[T any](ask func() (T, error)) (T, error) {
	value, err := ask()
	if nvml.Unavailable(err) {
		return ask()
	}
	return value, err
}

// moded is a GPU or a partition with a compute mode.
type moded interface {
	ComputeMode() (nvml.ComputeMode, error)
	SetComputeMode(nvml.ComputeMode) error
}

// set sets the mode and reads it back, because the answer may be lost.
func set(g moded, want nvml.ComputeMode) error {
	setErr := g.SetComputeMode(want)
	now, err := g.ComputeMode()
	switch {
	case err != nil:
		return errors.Join(setErr, fmt.Errorf("read the compute mode: %w", err))
	case now == want:
		return nil
	case setErr == nil:
		setErr = errors.New("the driver accepted the change but the mode did not change")
	}
	return fmt.Errorf("set the compute mode %s: %w", want, setErr)
}

// restore restores the recorded mode.
func (x *Executor) restore(d plan.Device) error {
	err := x.modes.Restore(d.PCIAddress, d.UUID, false, func(found int) error {
		return x.sessions.Undo(d.PCIAddress, d.UUID, func(g *sessionpool.GPU) (known bool, err error) {
			mode, err := g.ComputeMode()
			switch {
			case nvml.Unavailable(err):
				return false, nil
			case err != nil:
				return false, fmt.Errorf("read the compute mode: %w", err)
			case mode != nvml.ComputeExclusiveProcess:
				return true, nil // Another program changed the mode since, so it stays.
			}
			err = set(g, nvml.ComputeMode(found))
			return err == nil, err
		})
	})
	if sessionpool.IsGone(err) {
		return nil // The record stays, because the GPU may return.
	}
	return err
}
