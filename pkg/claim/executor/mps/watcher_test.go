// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/internal/notify/notifytest"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/nvmltest"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/nvmlfake"
	"gpu-dra-driver/sim/simtest"
)

// fakeSupervisor answers with the test's list and error.
type fakeSupervisor struct {
	list mpsd.List
	err  error

	mu      sync.Mutex
	stopped []string
}

func (s *fakeSupervisor) Ensure(context.Context, mpsd.Daemon) (mpsd.Status, error) {
	return mpsd.Status{PID: 1}, s.err
}
func (s *fakeSupervisor) Stop(_ context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = append(s.stopped, name)
	slices.Sort(s.stopped)
	return s.err
}
func (s *fakeSupervisor) List(context.Context, string) (mpsd.List, error) { return s.list, s.err }

// env is a watcher and an executor on a simulated machine.
type env struct {
	*Watcher
	*Executor
	supervisor *fakeSupervisor
	machine    *engine.Engine
	plans      []plan.Plan
	incomplete bool
	// locked runs before a GPU's lock is taken.
	locked func()
	// busy is the address of a GPU whose lock is held for ever.
	busy string
	// reads counts the calls of Held.
	reads   int
	calls   nvmltest.Calls
	reports []error
}

func newEnv(t *testing.T) *env {
	t.Helper()
	e := &env{supervisor: &fakeSupervisor{}, machine: simtest.Machine(t, "hgx-h100")}
	h := host.New(host.Options{})
	t.Cleanup(h.Close)
	modes, err := record.OpenGPUs(h, filepath.Join(t.TempDir(), "gpus"), Setting)
	if err != nil {
		t.Fatal(err)
	}
	e.Executor = New(h, sessionpool.New(nvmlfake.WithHook(e.machine, e.calls.Do), func(string) bool { return true }, notifytest.Reporter(nil)), e.supervisor, modes, "/proc")
	e.Watcher = NewWatcher(e.Executor, e, notifytest.Reporter(func(err error) { e.reports = append(e.reports, err) }))
	return e
}

// Held and WithGPULock are the engine's.
func (e *env) Held() ([]plan.Plan, bool, error) {
	e.reads++
	return e.plans, e.incomplete, nil
}

func (e *env) WithGPULock(ctx context.Context, address string, do func([]plan.Plan) error) error {
	if address == e.busy {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if e.locked != nil {
		e.locked()
	}
	return do(e.plans)
}

// share is a claim's plan with a share of a GPU by MPS.
func (e *env) share(t *testing.T, n int, claim string) plan.Plan {
	t.Helper()
	s, err := e.machine.State()
	if err != nil {
		t.Fatal(err)
	}
	d := gpu.Device{Kind: gpu.KindGPU, PCIAddress: s.GPUs[n].Address}
	return plan.Plan{Claim: plan.Claim{Namespace: "ns", Name: claim, UID: claim}, Devices: []plan.Device{{
		Name: d.Name(), Kind: d.Kind, PCIAddress: d.PCIAddress, UUID: s.GPUs[n].UUID,
		Share: plan.Share{MemoryBytes: 1 << 30, DeviceMemoryBytes: 80 << 30}, Sharing: plan.Sharing{Strategy: v1beta1.StrategyMPS, MemoryLimit: new(uint64(1 << 30))},
	}}}
}

func (e *env) mustScan(t *testing.T) {
	t.Helper()
	if err := e.Scan(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestScan_NoMPS_ReadsNoRecords(t *testing.T) {
	e := newEnv(t)
	e.mustScan(t)
	if e.reads != 0 {
		t.Errorf("the records were read %d times", e.reads)
	}
	// A changed compute mode is watched while its daemon is away.
	e.plans = []plan.Plan{e.share(t, 0, "a")}
	if err := e.setExclusive(e.plans[0].Devices[0]); err != nil {
		t.Fatal(err)
	}
	e.mustScan(t)
	if e.reads != 1 {
		t.Errorf("the records were read %d times, want once", e.reads)
	}
}

func TestScan_DaemonRestarts_ReportsEachClaimOnce(t *testing.T) {
	e := newEnv(t)
	a, b, other := e.share(t, 0, "a"), e.share(t, 0, "b"), e.share(t, 1, "other")
	e.plans = []plan.Plan{a, b, other}
	status := func(p plan.Plan, restarts int) mpsd.Status {
		return mpsd.Status{Daemon: mpsd.Daemon{Name: p.Devices[0].Name, UUID: p.Devices[0].UUID}, PID: 1, Restarts: restarts, Problem: "it ended: killed"}
	}
	// The other daemon restarted before the plugin did: that was reported then.
	e.supervisor.list = mpsd.List{Daemons: []mpsd.Status{status(a, 0), status(other, 3)}}
	e.mustScan(t)
	if len(e.reports) != 0 {
		t.Fatalf("nothing happened: %v", e.reports)
	}
	e.supervisor.list.Daemons[0].Restarts = 1
	e.mustScan(t)
	e.mustScan(t)
	var reported []string
	for _, err := range e.reports {
		var reason *claimerror.Error
		if !errors.As(err, &reason) || reason.Reason != claimerror.MPSDaemonDied || !strings.Contains(err.Error(), "killed") {
			t.Errorf("%v", err)
			continue
		}
		reported = append(reported, reason.Claim)
	}
	if !slices.Equal(reported, []string{"ns/a", "ns/b"}) {
		t.Errorf("reported for %v, want a and b, once", reported)
	}
	e.reports = nil
	e.supervisor.list.Daemons[0].Faults, e.supervisor.list.Daemons[0].Problem = 1, ""
	e.mustScan(t)
	e.mustScan(t)
	if len(e.reports) != 2 || !strings.Contains(e.reports[0].Error(), "ended the work of all processes") {
		t.Errorf("a fault of one process is reported as %v, want once to each claim of its device", e.reports)
	}
}

func TestScan_UnneededDaemon_StopsIt(t *testing.T) {
	e := newEnv(t)
	p := e.share(t, 0, "a")
	d := p.Devices[0]
	// Its claim was released while the supervisor was away.
	e.supervisor.list = mpsd.List{Daemons: []mpsd.Status{{Daemon: mpsd.Daemon{Name: d.Name, UUID: d.UUID}, PID: 1}, {Daemon: mpsd.Daemon{Name: "stranger"}}}}
	e.incomplete = true // Some claim's devices are not known: it could be that one's.
	e.mustScan(t)
	if len(e.supervisor.stopped) != 0 {
		t.Fatalf("%v were ended, and a claim may need them", e.supervisor.stopped)
	}
	e.incomplete = false
	e.mustScan(t)
	if !slices.Equal(e.supervisor.stopped, []string{d.Name, "stranger"}) {
		t.Errorf("ended %v", e.supervisor.stopped)
	}
}

func TestScan_ComputeModeLost_SetsItAgainAndReports(t *testing.T) {
	e := newEnv(t)
	e.plans = []plan.Plan{e.share(t, 0, "a")}
	d := e.plans[0].Devices[0]
	if err := e.setExclusive(d); err != nil {
		t.Fatal(err)
	}
	e.mustScan(t)
	if len(e.reports) != 0 {
		t.Fatal(e.reports)
	}
	if err := e.machine.Update(func(s *engine.State) error { s.GPUs[0].ComputeMode = int(nvml.ComputeDefault); return nil }); err != nil {
		t.Fatal(err)
	}
	e.mustScan(t)
	e.mustScan(t)
	if len(e.reports) != 1 || !strings.Contains(e.reports[0].Error(), "persistence mode") {
		t.Errorf("%v", e.reports)
	}
	if s, err := e.machine.State(); err != nil || s.GPUs[0].ComputeMode != int(nvml.ComputeExclusiveProcess) {
		t.Errorf("the compute mode is %d (%v)", s.GPUs[0].ComputeMode, err)
	}
	if r, err := e.modes.Get(d.PCIAddress); err != nil || r.Found != int(nvml.ComputeDefault) {
		t.Errorf("the mode to restore is %+v (%v)", r, err)
	}
	// A mode that cannot be set is reported once.
	if err := e.machine.Update(func(s *engine.State) error {
		s.GPUs[0].ComputeMode = int(nvml.ComputeDefault)
		s.Faults = []engine.Fault{{Query: "nvmlDeviceSetComputeMode", Code: nvml.NoPermission}}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	e.mustScan(t)
	e.mustScan(t)
	if len(e.reports) != 2 || !errors.Is(e.reports[1], nvml.NoPermission) {
		t.Errorf("%v", e.reports)
	}
}

// TestScan_ClaimUnpreparedMeanwhile_ReportsNothing has a claim end between the scan's look at it and at the compute
// mode.
func TestScan_ClaimUnpreparedMeanwhile_ReportsNothing(t *testing.T) {
	e := newEnv(t)
	e.plans = []plan.Plan{e.share(t, 0, "a")}
	d := e.plans[0].Devices[0]
	if err := e.setExclusive(d); err != nil {
		t.Fatal(err)
	}
	if err := e.machine.Update(func(s *engine.State) error { s.GPUs[0].ComputeMode = int(nvml.ComputeDefault); return nil }); err != nil {
		t.Fatal(err)
	}
	// The mode was restored after the claim's end.
	e.locked = func() {
		if err := e.restore(d); err != nil {
			t.Fatal(err)
		}
		e.plans = nil
	}
	e.mustScan(t)
	if len(e.reports) != 0 {
		t.Errorf("only this driver made changes, but there are reports: %v", e.reports)
	}
}

func TestScan_OneGPUHangs_ChecksOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		e.plans = []plan.Plan{e.share(t, 0, "a"), e.share(t, 1, "b")}
		for _, p := range e.plans {
			if err := e.setExclusive(p.Devices[0]); err != nil {
				t.Fatal(err)
			}
		}
		hung := e.calls.Hang(nvmltest.On(e.plans[0].Devices[0].UUID))
		t.Cleanup(func() { e.calls.Clear() })
		for n := range 2 {
			if err := e.machine.Update(func(s *engine.State) error { s.GPUs[1].ComputeMode = int(nvml.ComputeDefault); return nil }); err != nil {
				t.Fatal(err)
			}
			e.mustScan(t)
			if len(e.reports) != n+1 {
				t.Fatalf("reports: %v", e.reports)
			}
		}
		if len(hung) != 1 {
			t.Errorf("%d checks hang on one GPU", len(hung))
		}
	})
}

// TestScan_UnneededDaemonOnHangingGPU_ChecksOthers: work that hangs on a GPU keeps the GPU's lock.
func TestScan_UnneededDaemonOnHangingGPU_ChecksOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		released := e.share(t, 0, "a").Devices[0]
		e.supervisor.list = mpsd.List{Daemons: []mpsd.Status{{Daemon: mpsd.Daemon{Name: released.Name, UUID: released.UUID}, PID: 1}}}
		e.busy = released.PCIAddress
		e.plans = []plan.Plan{e.share(t, 1, "b")}
		if err := e.setExclusive(e.plans[0].Devices[0]); err != nil {
			t.Fatal(err)
		}
		if err := e.machine.Update(func(s *engine.State) error { s.GPUs[1].ComputeMode = int(nvml.ComputeDefault); return nil }); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := e.Scan(ctx); err != nil || ctx.Err() != nil {
			t.Fatalf("%v, %v", err, ctx.Err())
		}
		if s, err := e.machine.State(); err != nil || s.GPUs[1].ComputeMode != int(nvml.ComputeExclusiveProcess) {
			t.Errorf("the compute mode is %d (%v)", s.GPUs[1].ComputeMode, err)
		}
	})
}
