// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/sim/engine"
)

// TestClaim_BareInstanceInItsPlace_IsTheAdministrators has an administrator destroy a claim's partition, and make GPU
// instances without compute instances, one of them in its place.
func TestClaim_BareInstanceInItsPlace_IsTheAdministrators(t *testing.T) {
	replaced := func(t *testing.T) (*env, *process) {
		e := devicestatetest.NewSimulated(t, "hgx-h100")
		p := e.Start()
		given(one, "a")(e, p)
		e.Sim.Change(func(s *engine.State) { s.Vanish(&s.GPUs[0], 4) })
		e.Sim.Administrator(0, 19, 5, true) // It gets the number of the claim's instance.
		e.Sim.Administrator(0, 19, 4, true)
		return e, p
	}
	for name, c := range map[string]struct {
		start bool
		do    func(e *env, p *process)
	}{
		"prepare again": {false, func(e *env, p *process) {
			e.CheckRefused(p, "a", claimerror.Transient, claimerror.DeviceInUse, "created outside of this driver")
		}},
		"recover":   {true, func(_ *env, p *process) { _ = p.RecoverAll() }}, // It reports the lost partition.
		"unprepare": {false, func(*env, *process) {}},
	} {
		t.Run(name, func(t *testing.T) {
			e, p := replaced(t)
			before := e.Sim.State().GPUs[0].Instances
			if c.start {
				p.Crash()
				p = e.Start()
			}
			c.do(e, p)
			e.Unprepare(p, "a")
			if d := cmp.Diff(before, e.Sim.State().GPUs[0].Instances); d != "" {
				t.Errorf("the administrator's instances (-before +after):\n%s", d)
			}
			e.CheckClean(p)
		})
	}
}

// swap replaces the board in the slot of GPU 0. On the new one an administrator set a compute mode, and made a partition in
// the place that claim a has on the earlier one.
func swap(e *env, mode nvml.ComputeMode) {
	const uuid = "GPU-00000000-0000-4000-8000-000000000000"
	e.Sim.Change(func(s *engine.State) {
		g := &s.GPUs[0]
		*g = engine.GPU{Address: g.Address, UUID: uuid, Serial: "1600000000000", Minor: g.Minor, Persistence: true, ComputeMode: int(mode)}
	})
	e.Sim.Administrator(0, 19, 4, false)
}

// TestClaim_AnotherBoardInItsSlot_NewBoardStaysAsItIs swaps the board of a partition whose claim is prepared, or whose Prepare
// was interrupted at each of its operations, and ends the claim.
func TestClaim_AnotherBoardInItsSlot_NewBoardStaysAsItIs(t *testing.T) {
	intents := 0
	for n := 0; ; n++ {
		e := devicestatetest.NewSimulated(t, "hgx-h100")
		e.Claim("a", one["a"]...)
		f := hosttest.At(n, hosttest.CrashAfter)
		p, err := e.StartWith(f.Do)
		e.Must(err)
		f.Arm()
		crashed, err := hosttest.Run(func() error { return prepares("a")(e, p) })
		p.Crash()
		if !crashed {
			e.Must(err)
		}
		if len(e.Sim.State().GPUs[0].Instances) > 0 {
			intents++
		}
		swap(e, nvml.ComputeDefault)
		before := e.Sim.State().GPUs[0]
		p = e.Start()
		_ = p.RecoverAll() // It reports the partition as lost.
		e.Unprepare(p, "a")
		if d := cmp.Diff(before, e.Sim.State().GPUs[0]); d != "" {
			t.Fatalf("crashed after operation %d, the new board changed (-before +after):\n%s", n, d)
		}
		p.Crash()
		if !crashed {
			break
		}
	}
	if intents < 2 {
		t.Errorf("the earlier board had the partition in %d cases", intents)
	}
}

// TestSettings_AnotherBoardInSlot_KeepsItsOwn swaps the board of a claim that changed settings.
func TestSettings_AnotherBoardInSlot_KeepsItsOwn(t *testing.T) {
	for name, parameters := range map[string]string{"compute mode": byMPS, "time slice": byLong} {
		t.Run(name, func(t *testing.T) {
			e := devicestatetest.NewSimulated(t, "hgx-h100")
			p := e.Start()
			shares(parameters, "0", []string{"a"}, "a")(e, p)
			p.Crash()
			swap(e, nvml.ComputeExclusiveProcess)
			e.Sim.Change(func(s *engine.State) { s.GPUs[0].TimeSlice = 3 })
			before := e.Sim.State().GPUs[0]
			p = e.Start()
			_ = p.RecoverAll() // It reports the GPU as lost.
			e.Unprepare(p, "a")
			e.Must(errors.Join(p.Settings.Reconcile(context.Background())...))
			if d := cmp.Diff(before, e.Sim.State().GPUs[0]); d != "" {
				t.Errorf("the new board changed (-before +after):\n%s", d)
			}
		})
	}
}

// TestPrepare_AdoptedModeNeedsReset_SwitchedOnlyIfAllowed has a claim of a whole GPU whose MIG mode an administrator switched on.
func TestPrepare_AdoptedModeNeedsReset_SwitchedOnlyIfAllowed(t *testing.T) {
	for _, c := range []struct {
		board          string
		allowed, wants bool
	}{{"dgx-a100-80", false, false}, {"dgx-a100-80", true, true}, {"a30", false, false}, {"hgx-h100", false, true}} {
		e := devicestatetest.NewSimulated(t, c.board)
		e.Sim.MIG.AdoptExternal, e.Sim.MIG.AllowReset = true, c.allowed
		e.Sim.Change(func(s *engine.State) {
			p := s.Profile.Board.MIG.GPUInstances[0]
			s.SetMIGMode(&s.GPUs[0], true)
			s.CreateInstance(&s.GPUs[0], p.ID, p.Starts[0])
		})
		e.Sim.ExternalModes[e.Sim.State().GPUs[0].Address] = true
		before := e.Sim.State().GPUs[0]
		p := e.Start()
		e.Claim("a", "0")
		if c.wants {
			e.Prepare(p, "a")
			continue
		}
		e.CheckRefused(p, "a", claimerror.Transient, claimerror.DeviceInUse, "resets the GPU", "--allow-gpu-reset")
		if d := cmp.Diff(before, e.Sim.State().GPUs[0]); d != "" {
			t.Errorf("%s changed (-before +after):\n%s", c.board, d)
		}
	}
}
