// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/claim/executor"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/engine"
)

// idle restores the MIG mode of a machine's first GPU, as the inventory sees it.
func idle(e *env, p *process, after time.Duration) *executor.Settings {
	return executor.NewSettings(p.Host, p, devicestatetest.Scans(func() gpu.Snapshot {
		g, seen := e.Sim.State().GPUs[0], e.Sim.GPU(0)
		seen.MIG = gpu.MIG{Capable: true, Enabled: g.MIGEnabled, Pending: g.MIGPending}
		return gpu.Snapshot{GPUs: []gpu.GPU{seen}}
	}), p.MIG.Setting(after))
}

func switched(e *env, p *process) bool {
	e.T.Helper()
	s, err := p.MIG.Switched()
	e.Must(err)
	return s[e.Address(0)]
}

func TestReconcile_GPUUnused_RestoresMode(t *testing.T) {
	e := devicestatetest.NewSimulated(t, "hgx-h100")
	e.Sim.MIG.Timeout = time.Hour
	p := e.Start()
	given(one, "a")(e, p)
	i := idle(e, p, time.Nanosecond)
	for range 3 {
		if errs := i.Reconcile(context.Background()); len(errs) > 0 || !e.Sim.State().GPUs[0].MIGEnabled {
			t.Fatalf("with a claim on the GPU: %v, mode on %v", errs, e.Sim.State().GPUs[0].MIGEnabled)
		}
	}
	e.Unprepare(p, "a")
	i.Reconcile(context.Background()) // The first call starts the period.
	if !e.Sim.State().GPUs[0].MIGEnabled {
		t.Error("restored at the first call")
	}
	e.Sim.Change(func(s *engine.State) { s.GPUs[0].Monitors = []string{"dcgm"} })
	if errs := i.Reconcile(context.Background()); len(errs) != 1 || !strings.Contains(errs[0].Error(), "monitoring agent") || !switched(e, p) {
		t.Errorf("while a monitoring agent holds the GPU: %v", errs)
	}
	// It made one attempt, although the executor retries for hours, and the next one is not due yet.
	if errs := i.Reconcile(context.Background()); len(errs) != 0 || !switched(e, p) {
		t.Errorf("immediately after a failure: %v", errs)
	}
	e.Now = e.Now.Add(time.Minute)
	if errs := i.Reconcile(context.Background()); len(errs) != 1 {
		t.Errorf("after the first pause: %v", errs)
	}
	e.Now = e.Now.Add(2 * time.Minute)
	e.Sim.Change(func(s *engine.State) { s.GPUs[0].Monitors = nil })
	if errs := i.Reconcile(context.Background()); len(errs) > 0 || e.Sim.State().GPUs[0].MIGEnabled || switched(e, p) {
		t.Errorf("unused: %v, mode on %v, record %v", errs, e.Sim.State().GPUs[0].MIGEnabled, switched(e, p))
	}
}

func TestReconcile_Reboot_KeepsRecordOnlyOfModeThatStays(t *testing.T) {
	for profile, kept := range map[string]bool{"hgx-h100": false, "dgx-a100-80": true} {
		e := devicestatetest.NewSimulated(t, profile)
		e.Sim.MIG.AllowReset = true
		p := e.Start()
		given(one, "a")(e, p)
		e.Unprepare(p, "a")
		e.Reboot(false)
		i := idle(e, p, 0)
		for range 3 {
			if errs := i.Reconcile(context.Background()); len(errs) > 0 {
				t.Fatal(errs)
			}
		}
		if switched(e, p) != kept || e.Sim.State().GPUs[0].MIGEnabled != kept {
			t.Errorf("%s: record %v, mode on %v; want %v", profile, switched(e, p), e.Sim.State().GPUs[0].MIGEnabled, kept)
		}
	}
}

func TestRestore_OtherGPUInSlot_LeavesMode(t *testing.T) {
	e := devicestatetest.NewSimulated(t, "hgx-h100")
	p := e.Start()
	given(one, "a")(e, p)
	e.Unprepare(p, "a")
	g := e.Sim.GPU(0)
	g.UUID = "GPU-00000000-0000-4000-8000-000000000000"
	if err := p.MIG.Restore(context.Background(), g); err != nil || switched(e, p) || !e.Sim.State().GPUs[0].MIGEnabled {
		t.Errorf("%v, record %v, mode on %v", err, switched(e, p), e.Sim.State().GPUs[0].MIGEnabled)
	}
}

func TestSwitchOn_LinkedGPU_RecordsInterconnect(t *testing.T) {
	e := devicestatetest.NewSimulated(t, "hgx-h100")
	noted := gpu.Interconnect{Links: []gpu.Link{{Index: 3, Version: 4, Peer: gpu.PeerSwitch}}, Fabric: gpu.Fabric{State: gpu.FabricReady}}
	e.Sim.MIG.Scans = devicestatetest.Scans(func() gpu.Snapshot {
		g := e.Sim.GPU(0)
		g.Interconnect = noted
		return gpu.Snapshot{GPUs: []gpu.GPU{g}}
	})
	p := e.Start()
	given(one, "a")(e, p)
	p.Crash()
	p = e.Start() // another run of the plugin
	g := e.Sim.GPU(0)
	if diff := cmp.Diff(noted, p.MIG.RecordedInterconnect(g)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	other := g
	other.UUID = "GPU-other"
	if diff := cmp.Diff(gpu.Interconnect{}, p.MIG.RecordedInterconnect(other)); diff != "" {
		t.Errorf("of another board (-want +got):\n%s", diff)
	}
	e.Unprepare(p, "a")
	i := idle(e, p, time.Nanosecond)
	i.Reconcile(context.Background())
	i.Reconcile(context.Background())
	if diff := cmp.Diff(gpu.Interconnect{}, p.MIG.RecordedInterconnect(g)); diff != "" {
		t.Errorf("of a GPU that is whole (-want +got):\n%s", diff)
	}
}
