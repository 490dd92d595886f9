// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"

	"gpu-dra-driver/internal/nvml"
)

// TestMeter_RatesChange_NeverRunsBackwards reads the sums before and after each change of a rate.
func TestMeter_RatesChange_NeverRunsBackwards(t *testing.T) {
	e, _ := machine(t, "hgx-h100")
	var last Meter
	for n, rates := range []struct {
		power     int
		slowdowns nvml.Slowdown
	}{{700, 0}, {10, nvml.PowerBrakeSlowdown}, {0, nvml.HardwareThermalSlowdown | nvml.PowerBrakeSlowdown}, {300, nvml.SoftwareThermalSlowdown}, {300, 0}} {
		change(t, e, func(s *State) { s.GPUs[0].PowerW, s.GPUs[0].Slowdowns = rates.power, rates.slowdowns })
		s, err := e.State()
		if err != nil {
			t.Fatal(err)
		}
		now := time.UnixMilli(s.GPUs[0].Meter.SinceMS)
		if begin := s.meterAt(&s.GPUs[0], now); begin.EnergyMJ < last.EnergyMJ || begin.PowerBrakeMS < last.PowerBrakeMS {
			t.Errorf("change %d: %+v after %+v", n, begin, last)
		} else {
			last = begin
		}
		// Earlier than the change, as after a step of the clock.
		if g := &s.GPUs[0]; s.meterAt(g, now.Add(-time.Hour)) != s.meterAt(g, now) {
			t.Errorf("change %d: the sums decrease when the clock does", n)
		}
		later := s.meterAt(&s.GPUs[0], now.Add(2*time.Second))
		if got := later.EnergyMJ - last.EnergyMJ; got != uint64(rates.power)*2000 {
			t.Errorf("change %d: %d mJ in 2 s at %d W", n, got, rates.power)
		}
		for reason, got := range map[nvml.Slowdown]uint64{
			nvml.SoftwareThermalSlowdown: later.SoftwareThermalMS - last.SoftwareThermalMS,
			nvml.HardwareThermalSlowdown: later.HardwareThermalMS - last.HardwareThermalMS,
			nvml.PowerBrakeSlowdown:      later.PowerBrakeMS - last.PowerBrakeMS,
		} {
			want := uint64(0)
			if rates.slowdowns&reason != 0 {
				want = 2000
			}
			if got != want {
				t.Errorf("change %d: %d ms of slowdown %#x in 2 s, want %d", n, got, reason, want)
			}
		}
	}
}
