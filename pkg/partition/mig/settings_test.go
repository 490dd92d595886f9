// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig_test

import (
	"context"
	"testing"
	"time"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/sim/engine"
)

// TestUnprepare_SettingCannotBeRestored_Succeeds checks that a setting which can be read but not set holds no claim.
func TestUnprepare_SettingCannotBeRestored_Succeeds(t *testing.T) {
	for name, c := range map[string]struct{ parameters, operation string }{
		"time slice":   {byLong, "nvidia-smi/set-time-slice"},
		"compute mode": {byMPS, "nvml/set-compute-mode"},
	} {
		t.Run(name, func(t *testing.T) {
			e := devicestatetest.NewSimulated(t, "hgx-h100")
			f := hosttest.FailAll(func(o host.Operation) bool { return o.String() == c.operation }, hosttest.ErrInjected)
			p, err := e.StartWith(f.Do)
			e.Must(err)
			defer p.Crash()
			shares(c.parameters, "0", []string{"a"}, "a")(e, p)
			f.Arm()
			e.Unprepare(p, "a")
			e.CheckClean(p)
			f.Arm()
			for range 3 {
				p.Settings.Reconcile(context.Background())
			}
			tried := 0
			for _, o := range f.Seen() {
				if o.String() == c.operation {
					tried++
				}
			}
			if tried != 1 {
				t.Errorf("%d attempts in three rounds at once", tried)
			}
			f.Disarm()
			q := e.Start()
			e.CheckRestored(q)
			// A claim of the whole GPU never gets a compute mode that this driver set.
			e.SharedClaim("a", 3, c.parameters, "0")
			e.Prepare(p, "a")
			e.Unprepare(p, "a")
			e.Claim("b", "0")
			e.Prepare(p, "b")
			if mode := e.Sim.State().GPUs[0].ComputeMode; mode != 0 {
				t.Errorf("a claim of the whole GPU has the compute mode %d", mode)
			}
			e.Unprepare(p, "b")
			e.Now = e.Now.Add(time.Hour)
			e.CheckRestored(p)
		})
	}
}

func TestReconcile_TimeSliceLost_SetsItAgain(t *testing.T) {
	e := devicestatetest.NewSimulated(t, "hgx-h100")
	p := e.Start()
	defer p.Crash()
	shares(byLong, "0", []string{"a"}, "a")(e, p)
	for _, c := range []struct {
		pause time.Duration
		want  int
	}{{0, 3}, {time.Minute, 0}, {time.Hour, 3}} { // A program start a minute would be too much.
		e.Sim.Change(func(s *engine.State) { s.GPUs[0].TimeSlice = 0 })
		e.Now = e.Now.Add(c.pause)
		for _, err := range p.Settings.Reconcile(context.Background()) {
			t.Error(err)
		}
		if is := e.Sim.State().GPUs[0].TimeSlice; is != c.want {
			t.Errorf("after %s the time slice is %d, want %d", c.pause, is, c.want)
		}
	}
	e.Unprepare(p, "a")
	e.CheckRestored(p)
}
