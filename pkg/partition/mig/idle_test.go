// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/partition/mig"
	"gpu-dra-driver/sim/engine"
)

// idle is an Idle over the first GPU of a rig, as the inventory would see it.
func (r *rig) idle(p process, after time.Duration) *mig.Idle {
	return &mig.Idle{Executor: p.mig, Unheld: p.Unheld, After: after, Snapshot: func() gpu.Snapshot {
		g := r.state().GPUs[0]
		seen := whole(g)
		seen.MIG = gpu.MIG{Capable: true, Enabled: g.MIGEnabled, Pending: g.MIGPending}
		return gpu.Snapshot{GPUs: []gpu.GPU{seen}}
	}}
}

func (r *rig) switched(p process) bool {
	r.t.Helper()
	s, err := p.mig.Switched()
	r.must(err)
	return s[r.address(0)]
}

func TestAModeIsPutBackOnceItsGPUIsUnused(t *testing.T) {
	r := newRig(t, "hgx-h100")
	p := r.run()
	given(one, "a")(r, p)
	i := r.idle(p, time.Nanosecond)
	for range 3 {
		if errs := i.Look(context.Background()); len(errs) > 0 || !r.state().GPUs[0].MIGEnabled {
			t.Fatalf("with a claim on the GPU: %v, mode on %v", errs, r.state().GPUs[0].MIGEnabled)
		}
	}
	r.must(p.Unprepare(context.Background(), claimOf("a")))
	i.Look(context.Background()) // The first look starts the clock.
	if !r.state().GPUs[0].MIGEnabled {
		t.Error("put back at the first look")
	}
	r.change(func(s *engine.State) { s.GPUs[0].Monitors = []string{"dcgm"} })
	if errs := i.Look(context.Background()); len(errs) != 1 || !strings.Contains(errs[0].Error(), "monitoring agent") || !r.switched(p) {
		t.Errorf("while a monitoring agent holds the GPU: %v", errs)
	}
	r.change(func(s *engine.State) { s.GPUs[0].Monitors = nil })
	if errs := i.Look(context.Background()); len(errs) > 0 || r.state().GPUs[0].MIGEnabled || r.switched(p) {
		t.Errorf("unused: %v, mode on %v, record %v", errs, r.state().GPUs[0].MIGEnabled, r.switched(p))
	}
}

func TestAModeThatDiedWithItsBootIsNoLongerOurs(t *testing.T) {
	for profile, kept := range map[string]bool{"hgx-h100": false, "dgx-a100-80": true} {
		r := newRig(t, profile)
		r.options.AllowReset = true
		p := r.run()
		given(one, "a")(r, p)
		r.must(p.Unprepare(context.Background(), claimOf("a")))
		r.reboot()
		i := r.idle(p, 0)
		for range 3 {
			if errs := i.Look(context.Background()); len(errs) > 0 {
				t.Fatal(errs)
			}
		}
		if r.switched(p) != kept || r.state().GPUs[0].MIGEnabled != kept {
			t.Errorf("%s: record %v, mode on %v; want %v", profile, r.switched(p), r.state().GPUs[0].MIGEnabled, kept)
		}
	}
}

func TestAnotherBoardInTheSlotIsLeftAsItIs(t *testing.T) {
	r := newRig(t, "hgx-h100")
	p := r.run()
	given(one, "a")(r, p)
	r.must(p.Unprepare(context.Background(), claimOf("a")))
	g := whole(r.state().GPUs[0])
	g.UUID = "GPU-00000000-0000-4000-8000-000000000000"
	if err := p.mig.Restore(context.Background(), g); err != nil || r.switched(p) || !r.state().GPUs[0].MIGEnabled {
		t.Errorf("%v, record %v, mode on %v", err, r.switched(p), r.state().GPUs[0].MIGEnabled)
	}
}

func TestSwitchOn_LinkedGPU_RecordsInterconnect(t *testing.T) {
	r := newRig(t, "hgx-h100")
	noted := gpu.Interconnect{Links: []gpu.Link{{Index: 3, Version: 4, Peer: gpu.PeerSwitch}}, Fabric: gpu.Fabric{State: gpu.FabricReady}}
	r.options.Interconnect = func(uuid string) gpu.Interconnect {
		if uuid != r.state().GPUs[0].UUID {
			t.Errorf("asked of %s", uuid)
		}
		return noted
	}
	p := r.run()
	given(one, "a")(r, p)
	p.host.Close()
	p = r.run() // another run of the plugin
	g := whole(r.state().GPUs[0])
	if diff := cmp.Diff(noted, p.mig.RecordedInterconnect(g)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	other := g
	other.UUID = "GPU-other"
	if diff := cmp.Diff(gpu.Interconnect{}, p.mig.RecordedInterconnect(other)); diff != "" {
		t.Errorf("of another board (-want +got):\n%s", diff)
	}
	r.must(p.Unprepare(context.Background(), claimOf("a")))
	i := r.idle(p, time.Nanosecond)
	i.Look(context.Background())
	i.Look(context.Background())
	if diff := cmp.Diff(gpu.Interconnect{}, p.mig.RecordedInterconnect(g)); diff != "" {
		t.Errorf("of a GPU that is whole (-want +got):\n%s", diff)
	}
}
