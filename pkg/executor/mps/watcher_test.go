// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/record"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/nvmlfake"
	"gpu-dra-driver/sim/simtest"
)

// supervised is a supervisor that says what it is told to.
type supervised struct {
	list    mpsd.List
	err     error
	stopped []string
}

func (s *supervised) Ensure(context.Context, mpsd.Daemon) (mpsd.Status, error) {
	return mpsd.Status{PID: 1}, s.err
}
func (s *supervised) Stop(_ context.Context, name string) error {
	s.stopped = append(s.stopped, name)
	return s.err
}
func (s *supervised) List(context.Context, string) (mpsd.List, error) { return s.list, s.err }

type watched struct {
	*Watcher
	*Executor
	supervisor *supervised
	machine    *engine.Engine
	plans      []plan.Plan
	incomplete bool
	reports    []error
}

func newWatched(t *testing.T) *watched {
	t.Helper()
	w := &watched{supervisor: &supervised{}, machine: simtest.Machine(t, "hgx-h100")}
	h := host.New(host.Options{})
	t.Cleanup(h.Close)
	modes, err := record.OpenGPUs(h, filepath.Join(t.TempDir(), "gpus"), Setting)
	if err != nil {
		t.Fatal(err)
	}
	w.Executor = New(h, sessionpool.New(nvmlfake.New(w.machine), func(error) {}), w.supervisor, modes, "/proc")
	w.Watcher = NewWatcher(w.Executor, w, func(err error) { w.reports = append(w.reports, err) })
	return w
}

// Held and WithGPULock are the engine's.
func (w *watched) Held() ([]plan.Plan, bool, error) { return w.plans, w.incomplete, nil }

func (w *watched) WithGPULock(_ context.Context, _ string, do func([]plan.Plan) error) error {
	return do(w.plans)
}

// share is a claim's plan with a share of a GPU by MPS.
func (w *watched) share(t *testing.T, n int, claim string) plan.Plan {
	t.Helper()
	s, err := w.machine.State()
	if err != nil {
		t.Fatal(err)
	}
	d := gpu.Device{Kind: gpu.KindGPU, PCIAddress: s.GPUs[n].Address}
	return plan.Plan{Claim: plan.Claim{Namespace: "ns", Name: claim, UID: claim}, Devices: []plan.Device{{
		Name: d.Name(), Kind: d.Kind, PCIAddress: d.PCIAddress, UUID: s.GPUs[n].UUID,
		Share: plan.Share{MemoryBytes: 1 << 30, TotalBytes: 80 << 30}, Sharing: plan.Sharing{Strategy: v1beta1.StrategyMPS, MemoryLimit: 1 << 30},
	}}}
}

func (w *watched) look(t *testing.T) {
	t.Helper()
	if err := w.scan(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestClaimsOfADaemonThatDiedAreTold(t *testing.T) {
	w := newWatched(t)
	a, b, other := w.share(t, 0, "a"), w.share(t, 0, "b"), w.share(t, 1, "other")
	w.plans = []plan.Plan{a, b, other}
	status := func(p plan.Plan, restarts int) mpsd.Status {
		return mpsd.Status{Daemon: mpsd.Daemon{Name: p.Devices[0].Name, UUID: p.Devices[0].UUID}, PID: 1, Restarts: restarts, Problem: "it ended: killed"}
	}
	w.supervisor.list = mpsd.List{Daemons: []mpsd.Status{status(a, 0), status(other, 0)}}
	w.look(t)
	if len(w.reports) != 0 {
		t.Fatalf("nothing happened: %v", w.reports)
	}
	w.supervisor.list.Daemons[0].Restarts = 1
	w.look(t)
	w.look(t)
	var told []string
	for _, err := range w.reports {
		var said *claimerror.Error
		if !errors.As(err, &said) || said.Reason != claimerror.MPSDaemonDied || !strings.Contains(err.Error(), "killed") {
			t.Errorf("%v", err)
			continue
		}
		told = append(told, said.Claim)
	}
	if !slices.Equal(told, []string{"ns/a", "ns/b"}) {
		t.Errorf("told %v, want a and b, once", told)
	}
}

func TestADaemonThatNoClaimNeedsIsEnded(t *testing.T) {
	w := newWatched(t)
	p := w.share(t, 0, "a")
	d := p.Devices[0]
	// Its claim was released while the supervisor was away: daemon and compute mode are left.
	if err := w.setExclusive(d); err != nil {
		t.Fatal(err)
	}
	w.supervisor.list = mpsd.List{Daemons: []mpsd.Status{{Daemon: mpsd.Daemon{Name: d.Name, UUID: d.UUID}, PID: 1}, {Daemon: mpsd.Daemon{Name: "stranger"}}}}
	w.incomplete = true // Some claim's devices are not known: it could be that one's.
	w.look(t)
	if len(w.supervisor.stopped) != 0 {
		t.Fatalf("%v were ended, and a claim may need them", w.supervisor.stopped)
	}
	w.incomplete = false
	w.look(t)
	if !slices.Equal(w.supervisor.stopped, []string{d.Name, "stranger"}) {
		t.Errorf("ended %v", w.supervisor.stopped)
	}
	s, err := w.machine.State()
	if err != nil || s.GPUs[0].ComputeMode != 0 {
		t.Errorf("the compute mode is %d (%v)", s.GPUs[0].ComputeMode, err)
	}
	if _, err := w.modes.Get(d.PCIAddress); err == nil {
		t.Error("the record of the compute mode is left")
	}
}

func TestAComputeModeThatSomebodyChangedIsReportedOnce(t *testing.T) {
	w := newWatched(t)
	w.plans = []plan.Plan{w.share(t, 0, "a")}
	d := w.plans[0].Devices[0]
	if err := w.setExclusive(d); err != nil {
		t.Fatal(err)
	}
	w.look(t)
	if len(w.reports) != 0 {
		t.Fatal(w.reports)
	}
	if err := w.machine.Update(func(s *engine.State) error { s.GPUs[0].ComputeMode = int(nvml.ComputeDefault); return nil }); err != nil {
		t.Fatal(err)
	}
	w.look(t)
	w.look(t)
	if len(w.reports) != 1 || !strings.Contains(w.reports[0].Error(), "EXCLUSIVE_PROCESS") {
		t.Errorf("%v", w.reports)
	}
}

func TestASupervisorThatIsAwayIsSaid(t *testing.T) {
	w := newWatched(t)
	w.supervisor.err = mpsd.ErrAway
	p := w.share(t, 0, "a")
	p.Steps = []plan.Step{{Executor: plan.MPSExecutor, PCIAddress: p.Devices[0].PCIAddress}}
	work := plan.Work{Step: p.Steps[0], Devices: p.Devices}
	for name, do := range map[string]func(context.Context, plan.Work) error{"apply": w.Apply, "check": w.Check} {
		if err := do(t.Context(), work); err == nil || !strings.Contains(err.Error(), "mps.enabled") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A claim must end all the same, and with it the compute mode.
	if err := w.Revert(t.Context(), work); err != nil {
		t.Error(err)
	}
	if s, err := w.machine.State(); err != nil || s.GPUs[0].ComputeMode != 0 {
		t.Errorf("compute mode %d, %v", s.GPUs[0].ComputeMode, err)
	}
}

func TestADaemonOfOursIsNotInTheWayOfTheNextShare(t *testing.T) {
	w := newWatched(t)
	p := w.share(t, 0, "a")
	w.procRoot = t.TempDir()
	if err := os.MkdirAll(filepath.Join(w.procRoot, "77"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.procRoot, "77", "comm"), []byte("nvidia-cuda-mps\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := w.machine.Update(func(s *engine.State) error { s.GPUs[0].Processes = []engine.Process{{PID: 77}}; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := w.Admit(t.Context(), plan.Work{Devices: p.Devices}); err == nil {
		t.Error("a stranger's MPS server is not in the way")
	}
	w.supervisor.list = mpsd.List{Daemons: []mpsd.Status{{Daemon: mpsd.Daemon{Name: p.Devices[0].Name}}}}
	if err := w.Admit(t.Context(), plan.Work{Devices: p.Devices}); err != nil {
		t.Error(err)
	}
}

func TestAGPUThatIsNotFreeIsNotShared(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*engine.GPU)
		want   string
	}{
		"a process":       {func(g *engine.GPU) { g.Processes = []engine.Process{{PID: 77}} }, "process 77"},
		"prohibited":      {func(g *engine.GPU) { g.ComputeMode = int(nvml.ComputeProhibited) }, "nvidia-smi -c DEFAULT"},
		"lost":            {func(g *engine.GPU) { g.Lost = true }, "reset the GPU"},
		"nothing at all":  {func(*engine.GPU) {}, ""},
		"exclusive found": {func(g *engine.GPU) { g.ComputeMode = int(nvml.ComputeExclusiveProcess) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWatched(t)
			p := w.share(t, 0, "a")
			if err := w.machine.Update(func(s *engine.State) error { c.change(&s.GPUs[0]); return nil }); err != nil {
				t.Fatal(err)
			}
			err := w.Admit(t.Context(), plan.Work{Devices: p.Devices})
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q in it", err, c.want)
			}
		})
	}
}
