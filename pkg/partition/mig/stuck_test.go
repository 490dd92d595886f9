// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/nvmltest"
	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/partition/mig"
	"gpu-dra-driver/sim/engine"
)

// stuckFaults keep NVML from destroying a partition that no process uses.
var stuckFaults = map[string]func(e *env){
	"in use": func(e *env) {
		e.Sim.Change(func(s *engine.State) { s.GPUs[0].Destroys = engine.DestroyRefused })
	},
	"success, but it stays": func(e *env) {
		e.Sim.Change(func(s *engine.State) { s.GPUs[0].Destroys = engine.DestroyIgnored })
	},
	"GPU instance in use": func(e *env) { e.Sim.NVML.Answer(nvml.InUse, nvmltest.Of("nvmlGpuInstanceDestroy", "")) },
}

// unstuck ends the faults.
func unstuck(e *env) {
	e.Sim.NVML.Clear()
	e.Sim.Change(func(s *engine.State) { s.GPUs[0].Destroys = "" })
}

// endsAfterThree unprepares claim "a" until it succeeds, at the third attempt.
func endsAfterThree(e *env, p *process) {
	e.T.Helper()
	for n := range 3 {
		err := p.Unprepare(context.Background(), devicestatetest.ClaimID("a"))
		if n < 2 {
			devicestatetest.CheckError(e.T, err, claimerror.Transient, claimerror.DeviceInUse)
			continue
		}
		e.Must(err)
	}
}

func TestUnprepare_DestructionFailsWithoutProcess_ClaimEndsAndItsPlaceIsBlocked(t *testing.T) {
	for name, fault := range stuckFaults {
		t.Run(name, func(t *testing.T) {
			e := devicestatetest.NewSimulated(t, "hgx-h100")
			p := e.Start()
			given(one, "a")(e, p)
			fault(e)
			endsAfterThree(e, p)
			e.CheckClean(p)
			for range 2 { // The second time after a restart.
				for _, device := range []string{"0 1g.10gb 4", "0 2g.20gb 4", "0 7g.80gb 0", "0"} {
					e.Claim("b", device)
					e.CheckRefused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "a partition of an ended claim is in its place (1g.10gb at slice 4)")
				}
				e.Claim("c", "0 1g.10gb 6")
				e.Prepare(p, "c")
				e.CheckClean(p, "c")
				unprepareBeside(e, p, "c", fault)
				if errs := p.Settings.Reconcile(context.Background()); len(errs) != 1 {
					t.Errorf("an attempt in the background: %v", errs)
				}
				if errs := p.Settings.Reconcile(context.Background()); len(errs) != 0 {
					t.Errorf("the next attempt is not due: %v", errs)
				}
				p.Crash()
				p = e.Start()
				e.Must(p.RecoverAll())
			}
			for range 10 { // Hours later the pauses are no longer than at first.
				e.Now = e.Now.Add(time.Hour)
				if errs := p.Settings.Reconcile(context.Background()); len(errs) != 1 {
					t.Errorf("an attempt after an hour: %v", errs)
				}
			}
			unstuck(e)
			e.Now = e.Now.Add(5 * time.Minute)
			e.Must(joined(p.Settings.Reconcile(context.Background())))
			e.CheckClean(p)
			if left, err := p.MIG.Stuck(); err != nil || len(left) > 0 || len(e.Sim.State().GPUs[0].Instances) > 0 {
				t.Errorf("after it was destroyed: %v, %v", left, err)
			}
			e.Claim("b", "0 1g.10gb 4")
			e.Prepare(p, "b")
		})
	}
}

// unprepareBeside ends a claim of another place without the fault.
func unprepareBeside(e *env, p *process, uid string, fault func(*env)) {
	e.T.Helper()
	unstuck(e)
	e.Unprepare(p, uid)
	fault(e)
}

func joined(errs []error) error {
	for _, err := range errs {
		return err
	}
	return nil
}

// TestUnprepare_CrashWhilePartitionIsLeft_KeepsOneOwner crashes the last attempt after each of its operations. The partition
// belongs to the claim or to the record at any time.
func TestUnprepare_CrashWhilePartitionIsLeft_KeepsOneOwner(t *testing.T) {
	for n := 0; ; n++ {
		e := devicestatetest.NewSimulated(t, "hgx-h100")
		f := hosttest.At(n, hosttest.CrashAfter)
		p, err := e.StartWith(f.Do)
		e.Must(err)
		given(one, "a")(e, p)
		stuckFaults["in use"](e)
		end := func() error { return p.Unprepare(context.Background(), devicestatetest.ClaimID("a")) }
		for range 2 {
			devicestatetest.CheckError(t, end(), claimerror.Transient, claimerror.DeviceInUse)
		}
		f.Arm()
		crashed, err := hosttest.Run(end)
		p.Crash()
		if !crashed {
			e.Must(err)
		}
		p = e.Start()
		for attempt := 0; ; attempt++ {
			if err = end(); err == nil || attempt > 3 {
				break
			}
		}
		e.Must(err)
		e.CheckClean(p)
		if left, err := p.MIG.Stuck(); err != nil || len(left[e.Address(0)]) != 1 {
			t.Errorf("crashed after operation %d: %v, %v", n, left, err)
		}
		p.Crash()
		if !crashed {
			if n < 5 {
				t.Errorf("only %d operations", n)
			}
			return
		}
	}
}

func TestUnprepare_ProcessOnPartition_NeverLeavesIt(t *testing.T) {
	e := devicestatetest.NewSimulated(t, "hgx-h100")
	p := e.Start()
	given(one, "a")(e, p)
	e.Sim.Change(func(s *engine.State) {
		g := &s.GPUs[0]
		g.Processes = []engine.Process{{PID: 7, Place: &engine.Place{GPUInstance: g.Instances[0].ID}}}
	})
	for range 5 {
		err := p.Unprepare(context.Background(), devicestatetest.ClaimID("a"))
		devicestatetest.CheckError(t, err, claimerror.Transient, claimerror.DeviceInUse, "it is in use by process 7")
	}
	e.Sim.Change(func(s *engine.State) { s.GPUs[0].Processes = nil })
	e.Unprepare(p, "a")
	e.CheckClean(p)
}

func TestStuck_RebootOrOtherBoard_EndsTheBlock(t *testing.T) {
	for name, end := range map[string]func(e *env){
		"reboot":      func(e *env) { e.Reboot(false) },
		"other board": func(e *env) { swap(e, nvml.ComputeDefault) },
		"reset": func(e *env) {
			e.Sim.Change(func(s *engine.State) { s.ResetGPU(&s.GPUs[0]) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := devicestatetest.NewSimulated(t, "hgx-h100")
			p := e.Start()
			given(one, "a")(e, p)
			stuckFaults["in use"](e)
			endsAfterThree(e, p)
			p.Crash()
			end(e)
			p = e.Start()
			before := len(e.Sim.State().GPUs[0].Instances)
			e.Must(joined(p.Settings.Reconcile(context.Background())))
			if left, err := p.MIG.Stuck(); err != nil || len(left) > 0 || len(e.Sim.State().GPUs[0].Instances) != before {
				t.Errorf("%v, %v, %d of %d instances", left, err, len(e.Sim.State().GPUs[0].Instances), before)
			}
		})
	}
}

// TestStuck_GoneMeanwhile_PlaceIsFreeWithoutAnAttempt has a pause of up to an hour between attempts.
func TestStuck_GoneMeanwhile_PlaceIsFreeWithoutAnAttempt(t *testing.T) {
	e := devicestatetest.NewSimulated(t, "hgx-h100")
	p := e.Start()
	given(one, "a")(e, p)
	stuckFaults["in use"](e)
	endsAfterThree(e, p)
	if errs := p.Settings.Reconcile(context.Background()); len(errs) != 1 { // After it there is a pause.
		t.Fatal(errs)
	}
	e.Sim.Change(func(s *engine.State) { s.Vanish(&s.GPUs[0], 4) })
	e.Must(joined(p.Settings.Reconcile(context.Background())))
	e.Claim("b", "0 1g.10gb 4")
	e.Prepare(p, "b")
}

// TestStuck_WithoutUUID_AnothersPartitionStays has the record of a partition that never had a device, and an administrator
// who made one in its place.
func TestStuck_WithoutUUID_AnothersPartitionStays(t *testing.T) {
	e := devicestatetest.NewSimulated(t, "hgx-h100")
	p := e.Start()
	given(one, "a")(e, p)
	stuckFaults["in use"](e)
	endsAfterThree(e, p)
	records, err := record.OpenGPUs(p.Host, filepath.Join(e.StateDir, "gpus"), mig.StuckSetting)
	e.Must(err)
	r, err := records.Get(e.Address(0))
	e.Must(err)
	r.Stuck[0].UUID = ""
	e.Must(records.Put(r))
	unstuck(e)
	if errs := p.Settings.Reconcile(context.Background()); len(errs) != 1 || len(e.Sim.State().GPUs[0].Instances) != 1 {
		t.Errorf("%v, %d instances", errs, len(e.Sim.State().GPUs[0].Instances))
	}
}

// TestStuck_ClaimOfEarlierReleaseHasIt_Stays: an earlier release takes a stuck partition for an administrator's.
func TestStuck_ClaimOfEarlierReleaseHasIt_Stays(t *testing.T) {
	e := devicestatetest.NewSimulated(t, "hgx-h100")
	p := e.Start()
	given(one, "a")(e, p)
	stuckFaults["in use"](e)
	endsAfterThree(e, p)
	file := filepath.Join(e.StateDir, "gpus", mig.StuckSetting, e.Address(0)+".json")
	left, err := os.ReadFile(file)
	e.Must(err)
	e.Must(os.Remove(file))
	e.Claim("b", "0 1g.10gb 4")
	e.Prepare(p, "b")
	e.Must(os.WriteFile(file, left, 0o600))
	unstuck(e)
	e.Must(joined(p.Settings.Reconcile(context.Background())))
	if n := len(e.Sim.State().GPUs[0].Instances); n != 1 {
		t.Errorf("%d instances, and a claim has one", n)
	}
}

// TestStuck_RecordDamaged_BlocksTheGPUUntilItIsEmpty checks that no partition of unknown origin is destroyed or handed out.
func TestStuck_RecordDamaged_BlocksTheGPUUntilItIsEmpty(t *testing.T) {
	e := devicestatetest.NewSimulated(t, "hgx-h100")
	p := e.Start()
	given(one, "a")(e, p)
	stuckFaults["in use"](e)
	endsAfterThree(e, p)
	e.Must(os.WriteFile(filepath.Join(e.StateDir, "gpus", mig.StuckSetting, e.Address(0)+".json"), []byte("x"), 0o600))
	e.Claim("b", "0 1g.10gb 6")
	e.CheckRefused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "in its place (unknown profile at slice 0)")
	unstuck(e)
	if errs := p.Settings.Reconcile(context.Background()); len(errs) != 1 || len(e.Sim.State().GPUs[0].Instances) != 1 {
		t.Errorf("%v, %d instances", errs, len(e.Sim.State().GPUs[0].Instances))
	}
	e.Sim.Change(func(s *engine.State) { s.Vanish(&s.GPUs[0], 4) })
	e.Now = e.Now.Add(time.Hour)
	e.Must(joined(p.Settings.Reconcile(context.Background())))
	e.Prepare(p, "b")
}
