// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/engine"
)

func TestExecutor_SupervisorFails_ReturnsCauseAndRemedy(t *testing.T) {
	full := "the supervisor of MPS daemons: note an MPS daemon: write /var/lib/mps/gpu-0/daemon.json.tmp: "
	for name, c := range map[string]struct {
		err    error
		reason claimerror.Reason
		text   string
	}{
		"it is away":        {mpsd.ErrAway, claimerror.DeviceNotReady, "mps.enabled"},
		"its disk is full":  {errors.New(full + syscall.ENOSPC.Error()), claimerror.HostFailure, "daemon.json.tmp: no space left on device. Make room"},
		"its quota is full": {errors.New(full + syscall.EDQUOT.Error()), claimerror.HostFailure, "daemon.json.tmp: disk quota exceeded. Make room"},
		"our disk is full":  {&fs.PathError{Op: "write", Path: "/state/x", Err: syscall.ENOSPC}, claimerror.HostFailure, "/state/x: no space"},
		"another failure":   {mpsd.ErrRefused, claimerror.DeviceNotReady, "log of the node's mps-supervisor"},
	} {
		e := newEnv(t)
		e.supervisor.err = c.err
		p := e.share(t, 0, "a")
		work := plan.Work{Step: plan.Step{PCIAddress: p.Devices[0].PCIAddress}, Devices: p.Devices}
		for call, do := range map[string]func(context.Context, plan.Work) error{"apply": e.Apply, "check": e.Check} {
			if err := do(t.Context(), work); claimerror.ReasonOf(err) != c.reason || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%s, %s: %s: %v", name, call, claimerror.ReasonOf(err), err)
			}
		}
	}
}

func TestRevert_SupervisorAway_LeavesModeToItsSetting(t *testing.T) {
	e := newEnv(t)
	p := e.share(t, 0, "a")
	work := plan.Work{Step: plan.Step{PCIAddress: p.Devices[0].PCIAddress}, Devices: p.Devices}
	if err := e.Apply(t.Context(), work); err != nil {
		t.Fatal(err)
	}
	e.supervisor.err = mpsd.ErrAway
	if err := e.Revert(t.Context(), work); err != nil {
		t.Error(err) // A claim must end all the same.
	}
	d := p.Devices[0]
	if !e.Setting().NeededBy(d) {
		t.Error("a claim with MPS does not need the compute mode")
	}
	if err := e.Setting().Restore(t.Context(), gpu.GPU{PCIAddress: d.PCIAddress, UUID: d.UUID}); err != nil {
		t.Error(err)
	}
	if s, err := e.machine.State(); err != nil || s.GPUs[0].ComputeMode != 0 {
		t.Errorf("compute mode %d, %v", s.GPUs[0].ComputeMode, err)
	}
}

func TestApply_KeepMode_ModeStays(t *testing.T) {
	for keep, want := range map[bool]nvml.ComputeMode{false: nvml.ComputeExclusiveProcess, true: nvml.ComputeDefault} {
		e := newEnv(t)
		e.KeepMode = keep
		p := e.share(t, 0, "a")
		e.plans = []plan.Plan{p}
		if err := e.Apply(t.Context(), plan.Work{Step: plan.Step{PCIAddress: p.Devices[0].PCIAddress}, Devices: p.Devices}); err != nil {
			t.Fatal(err)
		}
		e.mustScan(t)
		if s, err := e.machine.State(); err != nil || s.GPUs[0].ComputeMode != int(want) {
			t.Errorf("keep %t: compute mode %d, %v, want %v", keep, s.GPUs[0].ComputeMode, err, want)
		}
		if e.Setting().NeededBy(p.Devices[0]) == keep {
			t.Errorf("keep %t: the mode is needed, or the other way round", keep)
		}
	}
}

func TestAdmit_OwnDaemonOnGPU_Succeeds(t *testing.T) {
	e := newEnv(t)
	p := e.share(t, 0, "a")
	e.procRoot = t.TempDir()
	if err := os.MkdirAll(filepath.Join(e.procRoot, "77"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(e.procRoot, "77", "comm"), []byte("nvidia-cuda-mps\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := e.machine.Update(func(s *engine.State) error { s.GPUs[0].Processes = []engine.Process{{PID: 77}}; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := e.Admit(t.Context(), plan.Work{Devices: p.Devices}); err == nil {
		t.Error("an external MPS server is not in the way")
	}
	e.supervisor.list = mpsd.List{Daemons: []mpsd.Status{{Daemon: mpsd.Daemon{Name: p.Devices[0].Name}}}}
	if err := e.Admit(t.Context(), plan.Work{Devices: p.Devices}); err != nil {
		t.Error(err)
	}
}

func TestAdmit_GPUNotFree_Refused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*engine.GPU)
		want   string
	}{
		"a process":       {func(g *engine.GPU) { g.Processes = []engine.Process{{PID: 77}} }, "process 77"},
		"prohibited":      {func(g *engine.GPU) { g.ComputeMode = int(nvml.ComputeProhibited) }, "nvidia-smi -c DEFAULT"},
		"lost":            {func(g *engine.GPU) { g.Lost = true }, "Reset the GPU"},
		"nothing at all":  {func(*engine.GPU) {}, ""},
		"exclusive found": {func(g *engine.GPU) { g.ComputeMode = int(nvml.ComputeExclusiveProcess) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			p := e.share(t, 0, "a")
			if err := e.machine.Update(func(s *engine.State) error { c.change(&s.GPUs[0]); return nil }); err != nil {
				t.Fatal(err)
			}
			err := e.Admit(t.Context(), plan.Work{Devices: p.Devices})
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q in it", err, c.want)
			}
		})
	}
}

// TestDaemon_DevicesOfOlderRecords_KeepTheirLimits reads devices as versions wrote them in which no limit was 0.
func TestDaemon_DevicesOfOlderRecords_KeepTheirLimits(t *testing.T) {
	const (
		none  = `{"name":"gpu-0000-1b-00-0","share":{"memoryBytes":1048576,"deviceMemoryBytes":9663676416},"sharing":{"strategy":"MPS"}}`
		ten   = `{"name":"gpu-0000-1b-00-0","share":{"memoryBytes":10485760,"deviceMemoryBytes":9663676416},"sharing":{"strategy":"MPS","memoryLimit":10485760,"activeThreadPercentage":30}}`
		seven = `{"name":"gpu-0000-1b-00-0","share":{"memoryBytes":7340032,"deviceMemoryBytes":9663676416},"sharing":{"strategy":"MPS","memoryLimit":7340032,"activeThreadPercentage":20}}`
	)
	for name, c := range map[string]struct {
		records []string
		limit   *uint64
		threads int
	}{
		"limits":     {[]string{ten, seven}, new(uint64(10 << 20)), 30},
		"limits too": {[]string{seven, ten}, new(uint64(10 << 20)), 30},
		"none first": {[]string{none, seven}, nil, 100},
		"none last":  {[]string{seven, none}, nil, 100},
	} {
		devices := make([]plan.Device, len(c.records))
		for i, data := range c.records {
			if err := json.Unmarshal([]byte(data), &devices[i]); err != nil {
				t.Fatal(err)
			}
		}
		d := Daemon(plan.Work{Devices: devices[:1], OnGPU: []plan.CoTenant{{Device: devices[1]}}})
		if diff := cmp.Diff(c.limit, d.MemoryLimit); diff != "" || d.Threads != c.threads {
			t.Errorf("%s: %d %% of the SMs, memory (-want +got):\n%s", name, d.Threads, diff)
		}
	}
}
