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
}

// MeterAt returns the sums at a time. They never decrease until the driver is loaded again.
func (g *GPU) MeterAt(now time.Time) Meter {
	m := g.Meter
	passed := uint64(max(now.UnixMilli()-m.SinceMS, 0))
	m.SinceMS = max(now.UnixMilli(), m.SinceMS)
	m.EnergyMJ += passed * uint64(max(g.PowerW, 0))
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

// settle updates the meters of GPUs whose rates a change affects.
func (s *State) settle(old *State, now time.Time) {
	for i := range s.GPUs {
		if g := &s.GPUs[i]; i < len(old.GPUs) && g.Meter == old.GPUs[i].Meter &&
			(g.PowerW != old.GPUs[i].PowerW || g.Slowdowns != old.GPUs[i].Slowdowns) {
			g.Meter = old.GPUs[i].MeterAt(now)
		}
	}
}
