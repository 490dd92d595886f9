// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestatetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/internal/notify/notifytest"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/nvmltest"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/claim/executor/mps"
	"gpu-dra-driver/pkg/claim/executor/timeslice"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/partition/mig"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/nvmlfake"
	"gpu-dra-driver/sim/simtest"
)

// Simulator holds the GPUs and MPS daemons of a simulated machine.
type Simulator struct {
	env     *Env
	machine *engine.Engine
	// MIG configures the MIG executor of processes that start later.
	MIG mig.Options
	// NVML makes calls of the executors fail or hang. The inventory's scans, which run in the background, pass.
	NVML nvmltest.Calls
	// Wrap changes the NVML of processes that start later; it may be nil.
	Wrap func(nvml.Library) nvml.Library
	// External are the UUIDs of external partitions, ExternalModes the GPUs whose MIG mode an administrator set.
	External, ExternalModes map[string]bool

	daemons map[string]mpsd.Daemon
}

// simulatedGPUs is enough for what claims do to each other, and one more. Each scan reads all of them.
const simulatedGPUs = 4

func NewSimulated(t testing.TB, profile string) *Env {
	t.Helper()
	return NewSimulatedGPUs(t, profile, simulatedGPUs)
}

// NewSimulatedGPUs returns a machine with the profile's first n GPUs.
func NewSimulatedGPUs(t testing.TB, profile string, n int) *Env {
	t.Helper()
	e := New(t)
	e.Sim = &Simulator{
		env: e, machine: simtest.MachineInMemory(t, profile, n),
		External: map[string]bool{}, ExternalModes: map[string]bool{}, daemons: map[string]mpsd.Daemon{},
	}
	return e
}

// configure creates the executors of a process.
func (s *Simulator) configure(o *devicestate.Options, p *Process, hook host.FaultHook) error {
	if hook == nil {
		hook = func(_ host.Operation, do func() error) error { return do() }
	}
	settings := filepath.Join(s.env.StateDir, "gpus")
	migModes, err := record.OpenGPUs(o.Host, settings, mig.Setting)
	if err != nil {
		return err
	}
	stuck, err := record.OpenGPUs(o.Host, settings, mig.StuckSetting)
	if err != nil {
		return err
	}
	computeModes, err := record.OpenGPUs(o.Host, settings, mps.Setting)
	if err != nil {
		return err
	}
	timeSlices, err := record.OpenGPUs(o.Host, settings, timeslice.Setting)
	if err != nil {
		return err
	}
	library := nvmltest.WithFaults(nvmlfake.WithHook(s.machine, s.NVML.Do), hook)
	if s.Wrap != nil {
		library = s.Wrap(library)
	}
	p.Library = library
	sessions := sessionpool.New(library, s.listed, notifytest.Reporter(nil))
	sessions.After = s.NVML.After
	m := s.MIG
	m.ProcRoot, m.Timeout = s.env.Dir, cmp.Or(m.Timeout, time.Nanosecond)
	if m.Switches == nil {
		m.Switches = new(inventory.Switches)
	}
	if m.Scans == nil {
		m.Scans = Scans(func() gpu.Snapshot { return o.Scans.Snapshot() })
	}
	p.MIG = mig.New(o.Host, sessions, migModes, stuck, m)
	o.Executors[plan.MIGExecutor] = p.MIG
	p.shares = mps.New(o.Host, sessions, daemons{s, hook}, computeModes, s.env.Dir)
	// Below the ten seconds of InTime, and long for a machine under load.
	p.shares.StartLimit, p.shares.StopLimit = 4*time.Second, 4*time.Second
	p.slices = timeslice.New(nvidiaSMI{s, hook}, timeSlices)
	o.Executors[sharing.MPSExecutor], o.Executors[sharing.TimeSliceExecutor] = p.shares, p.slices
	o.Settle, o.MPSDir = []func(context.Context, *plan.Device) error{p.MIG.Settle, p.shares.Settle}, "/mps"
	o.LimitHook, o.LimitRequests = "/memory-limit-hook", "/memory-limits"
	root := s.env.Dir
	scanner := inventory.New(inventory.Options{
		Library:  nvmlfake.New(s.machine),
		ProcRoot: root,
		SysRoot:  root,
		DevRoot:  root,
		Cgroups:  root,
	})
	var scanning sync.Mutex // GPUs are prepared concurrently, and scanned one at a time.
	o.Scans = Scans(func() gpu.Snapshot {
		scanning.Lock()
		defer scanning.Unlock()
		snapshot, err := scanner.Scan(context.Background())
		if err != nil && !errors.Is(err, inventory.ErrNoDriver) {
			s.env.T.Error(err)
		}
		return snapshot
	})
	return nil
}

func (s *Simulator) reboot() {
	s.Change(func(now *engine.State) { now.Reboot() })
	clear(s.External)
	clear(s.daemons)
	for _, g := range s.State().GPUs {
		s.ExternalModes[g.Address] = s.ExternalModes[g.Address] && g.MIGEnabled
	}
}

// Daemon returns the MPS daemon of a device; false if none runs.
func (s *Simulator) Daemon(device string) (mpsd.Daemon, bool) {
	d, ok := s.daemons[device]
	return d, ok
}

// State returns the simulator's state. Callers must not change it.
func (s *Simulator) State() *engine.State {
	now, err := s.machine.State()
	s.env.Must(err)
	return now
}

func (s *Simulator) Change(do func(*engine.State)) {
	s.env.T.Helper()
	s.env.Must(s.machine.Update(func(now *engine.State) error { do(now); return nil }))
}

// reset resets a GPU, or all without a UUID. It ends with the settings of its boot.
func (s *Simulator) reset(uuid string) {
	s.Change(func(now *engine.State) {
		for i := range now.GPUs {
			if g := &now.GPUs[i]; uuid == "" || g.UUID == uuid {
				_ = now.ResetGPU(g) // No process of these tests uses it.
				g.ComputeMode, g.TimeSlice = 0, 0
			}
		}
	})
}

// GPU returns a GPU like the inventory.
func (s *Simulator) GPU(n int) gpu.GPU {
	g := s.State().GPUs[n]
	return gpu.GPU{PCIAddress: g.Address, UUID: g.UUID, Minor: g.Minor}
}

// listed reports whether the kernel driver has a GPU.
func (s *Simulator) listed(address string) bool {
	now := s.State()
	return now.DriverLoaded && slices.ContainsFunc(now.GPUs, func(g engine.GPU) bool {
		return g.Address == address && !g.OffBus
	})
}

// present returns the GPU with a UUID, or nil if it is lost.
func (s *Simulator) present(uuid string) *engine.GPU {
	now := s.State()
	for i := range now.GPUs {
		if g := &now.GPUs[i]; g.UUID == uuid && !g.Lost {
			return g
		}
	}
	return nil
}

// Administrator creates an external partition; a bare one has no compute instance.
func (s *Simulator) Administrator(n int, profile, start int, bare bool) {
	must := func(code nvml.Code) {
		if code != 0 {
			s.env.T.Fatal(code)
		}
	}
	s.Change(func(now *engine.State) {
		g := &now.GPUs[n]
		if !g.MIGEnabled {
			code := now.SetMIGMode(g, true)
			must(code)
			s.ExternalModes[g.Address] = true
		}
		i, code := now.CreateInstance(g, profile, start)
		must(code)
		uuid := bareName(g.Address, i.Start)
		if !bare {
			p, _ := now.Profile.Board.MIG.Profile(profile)
			all := p.ComputeInstances()
			c, code := now.CreateCompute(g, i.ID, all[len(all)-1].ID)
			must(code)
			uuid = c.UUID
		}
		s.External[uuid] = true
	})
}

// bareName replaces the UUID of a GPU instance without a compute instance.
func bareName(address string, start int) string { return fmt.Sprintf("bare %s %d", address, start) }

// daemons is the supervisor of MPS daemons.
type daemons struct {
	s    *Simulator
	hook host.FaultHook
}

// SupervisorCall begins the name of each call of the supervisor's socket.
const SupervisorCall = "mps-supervisor "

// call sends a request, makes its change, and receives the answer. Calls of NVML stand for both ways.
func (d daemons) call(ctx context.Context, request, device string, change func() error) error {
	send := func(answered bool) error {
		code := make(chan nvml.Code, 1)
		go func() { code <- d.s.NVML.Do(SupervisorCall+request, device, answered) }()
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case c := <-code:
			return map[nvml.Code]error{nvml.DriverNotLoaded: mpsd.ErrAway, nvml.Unknown: mpsd.ErrRefused}[c]
		}
	}
	if err := send(false); err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	return send(true)
}

func (d daemons) Ensure(ctx context.Context, want mpsd.Daemon) (mpsd.Status, error) {
	if err := want.Validate(); err != nil {
		d.s.env.T.Error(err)
	}
	return mpsd.Status{Daemon: want, PID: 1}, d.call(ctx, "ensure", want.Name, func() error {
		return d.hook(host.Operation{Label: "mpsd", Call: "ensure"}, func() error {
			d.s.daemons[want.Name] = want
			return nil
		})
	})
}

func (d daemons) Stop(ctx context.Context, name string) error {
	return d.call(ctx, "stop", name, func() error {
		return d.hook(host.Operation{Label: "mpsd", Call: "stop"}, func() error {
			delete(d.s.daemons, name)
			return nil
		})
	})
}

func (d daemons) List(ctx context.Context, _ string) (l mpsd.List, err error) {
	return l, d.call(ctx, "list", "all", func() error {
		for _, one := range d.s.daemons {
			l.Daemons = append(l.Daemons, mpsd.Status{Daemon: one, PID: 1})
		}
		return nil
	})
}

// SMI is the call of NVML that stands for a run of nvidia-smi.
const SMI = "nvidia-smi"

// nvidiaSMI sets time slices.
type nvidiaSMI struct {
	s    *Simulator
	hook host.FaultHook
}

var errLost = errors.New("GPU is lost")

func (t nvidiaSMI) Get(_ context.Context, uuid string) (int, error) {
	if g := t.s.present(uuid); g != nil && t.s.NVML.Do(SMI, uuid, false) == 0 {
		return g.TimeSlice, nil
	}
	return 0, errLost
}

func (t nvidiaSMI) Set(_ context.Context, uuid string, interval int) error {
	return t.hook(host.Operation{Label: "nvidia-smi", Call: "set-time-slice"}, func() error {
		if t.s.present(uuid) == nil || t.s.NVML.Do(SMI, uuid, false) != 0 {
			return errLost
		}
		t.s.Change(func(now *engine.State) {
			for i := range now.GPUs {
				if now.GPUs[i].UUID == uuid {
					now.GPUs[i].TimeSlice = interval
				}
			}
		})
		return nil
	})
}
