// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"time"

	"gpu-dra-driver/internal/nvml"
)

// Meter holds sums over time up to its last change of a rate. The present rate has applied since then.
type Meter struct {
	// SinceMS is Unix time. 0 is as good as any start: only differences have a meaning.
	SinceMS int64 `json:"sinceMS,omitempty"`
	// EnergyMJ is in millijoules.
	EnergyMJ uint64 `json:"energyMJ,omitempty"`
	// SoftwareThermalMS, HardwareThermalMS and PowerBrakeMS are times of slowdown.
	SoftwareThermalMS uint64 `json:"softwareThermalMS,omitempty"`
	HardwareThermalMS uint64 `json:"hardwareThermalMS,omitempty"`
	PowerBrakeMS      uint64 `json:"powerBrakeMS,omitempty"`
	// Busy is in percents of a multiprocessor times milliseconds. Linked is the part of it outside of instances.
	Busy   uint64 `json:"busy,omitempty"`
	Linked uint64 `json:"linked,omitempty"`
}

// MeterAt returns the sums at a time. They never decrease until the driver is loaded again.
func (v View) MeterAt(now time.Time) Meter { return v.State.meterAt(v.GPU, now) }

func (s *State) meterAt(g *GPU, now time.Time) Meter {
	m := g.Meter
	passed := g.since(now)
	m.SinceMS = max(now.UnixMilli(), m.SinceMS)
	m.EnergyMJ += passed * uint64(max(s.powerW(g), 0))
	m.Busy += passed * uint64(s.busy(g))
	if !g.MIGEnabled {
		m.Linked += passed * uint64(s.busy(g))
	}
	for _, part := range []struct {
		reason nvml.Slowdown
		sum    *uint64
	}{
		{nvml.SoftwareThermalSlowdown, &m.SoftwareThermalMS},
		{nvml.HardwareThermalSlowdown, &m.HardwareThermalMS},
		{nvml.PowerBrakeSlowdown, &m.PowerBrakeMS},
	} {
		if g.Slowdowns&part.reason != 0 {
			*part.sum += passed
		}
	}
	return m
}

// since returns the milliseconds since the last change of a rate.
func (g *GPU) since(now time.Time) uint64 { return uint64(max(now.UnixMilli()-g.Meter.SinceMS, 0)) }

// settle updates the meters of GPUs whose rates a change affects.
func (s *State) settle(old *State, now time.Time) {
	for i := range s.GPUs {
		if i >= len(old.GPUs) {
			return
		}
		g, was := &s.GPUs[i], &old.GPUs[i]
		if g.Meter != was.Meter || g.PowerW == was.PowerW && g.Slowdowns == was.Slowdowns && s.sameLoad(g, was) {
			continue
		}
		g.Meter = old.meterAt(was, now)
		for n := range g.Instances {
			one := &g.Instances[n]
			if before := was.Instance(one.ID); before != nil && before.ProfileID == one.ProfileID && before.Start == one.Start {
				one.Busy = old.instanceBusy(was, before, now)
			}
		}
	}
}
