// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"time"

	"gpu-dra-driver/internal/nvml"
)

// A fully loaded GPU moves this many bytes a second, and heats up by so many degrees. Tensor cores and memory are busy
// for a part of the time in which multiprocessors are.
const (
	pcieSentRate     = 4_000_000_000
	pcieReceivedRate = 8_000_000_000
	nvlinkRate       = 40_000_000_000
	loadHeatC        = 30
	tensorPercent    = 40
	dramPercent      = 50
)

// gpmArchitecture is the first architecture with GPU performance monitoring.
const gpmArchitecture = int(nvml.ArchHopper)

// multiprocessors returns the number of multiprocessors of a process's device.
func (s *State) multiprocessors(g *GPU, at *Place) int {
	b := s.Profile.Board
	if at == nil {
		return b.Multiprocessors
	}
	i := g.Instance(at.GPUInstance)
	if i == nil {
		return 0
	}
	p, _ := b.MIG.Profile(i.ProfileID)
	c := i.Compute(at.ComputeInstance)
	if c == nil || p.Slices == 0 {
		return 0
	}
	return p.Multiprocessors * c.Slices / p.Slices
}

// load keeps multiprocessors of a device busy: a process, or a workload.
type load struct {
	place   *Place
	percent int
}

func (g *GPU) loads() (list []load) {
	for _, p := range g.Processes {
		list = append(list, load{p.Place, p.Load})
	}
	for _, w := range g.Workloads {
		list = append(list, load{w.Place, w.Load})
	}
	return slices.DeleteFunc(list, func(l load) bool { return l.percent == 0 })
}

// sum returns the busy multiprocessors, in percents of one. Processes and workloads of one device share it: together they never have
// more than all of it.
func (s *State) sum(g *GPU, on func(*Place) bool) int {
	loads, counts := map[Place]int{}, map[Place]int{}
	for _, l := range g.loads() {
		if !on(l.place) {
			continue
		}
		at := Place{-1, -1}
		if l.place != nil {
			at = *l.place
		}
		loads[at] += l.percent
		counts[at] = s.multiprocessors(g, l.place)
	}
	busy := 0
	for at, load := range loads {
		busy += min(load, 100) * counts[at]
	}
	return busy
}

// busy returns the busy multiprocessors of a GPU, in percents of one.
func (s *State) busy(g *GPU) int {
	all := s.Profile.Board.Multiprocessors
	return min(g.Utilization*all+s.sum(g, func(*Place) bool { return true }), 100*all)
}

func onInstance(id int) func(*Place) bool {
	return func(p *Place) bool { return p != nil && p.GPUInstance == id }
}

func (s *State) instanceBusy(g *GPU, i *Instance, now time.Time) uint64 {
	return i.Busy + g.since(now)*uint64(s.sum(g, onInstance(i.ID)))
}

// sameLoad reports whether a GPU's load is as it was on every device.
func (s *State) sameLoad(g, was *GPU) bool {
	return g.Utilization == was.Utilization && g.MIGEnabled == was.MIGEnabled &&
		slices.EqualFunc(g.loads(), was.loads(), func(a, b load) bool {
			return a.percent == b.percent && (a.place == nil) == (b.place == nil) && (a.place == nil || *a.place == *b.place)
		})
}

// loadPercent returns the share of busy multiprocessors.
func (s *State) loadPercent(g *GPU) int { return s.busy(g) / max(s.Profile.Board.Multiprocessors, 1) }

// LoadPercent is the utilization of the board.
func (v View) LoadPercent() int { return v.State.loadPercent(v.GPU) }

// Cores returns the board's number of cores, or -1 in MIG mode, in which the driver does not count them.
func (v View) Cores() int {
	if v.MIGEnabled {
		return -1
	}
	return v.Board.Cores
}

// MemoryLoadPercent is the utilization of the board's memory.
func (v View) MemoryLoadPercent() int {
	return min(v.MemoryUtil+v.State.processLoad(v.GPU)*dramPercent/100, 100)
}

func (s *State) powerW(g *GPU) int {
	return g.PowerW + max(s.Profile.Board.Power.Default-g.PowerW, 0)*s.processLoad(g)/100
}

// processLoad is the load of processes and workloads only: `gpusim` sets power and temperature beside the utilization.
func (s *State) processLoad(g *GPU) int {
	return s.sum(g, func(*Place) bool { return true }) / max(s.Profile.Board.Multiprocessors, 1)
}

// DrawW returns the power of the board in watts.
func (v View) DrawW() int { return v.State.powerW(v.GPU) }

// HeatC returns the temperature of the board.
func (v View) HeatC() int { return v.TemperatureC + loadHeatC*v.State.processLoad(v.GPU)/100 }

// Traffic holds bytes since the driver was loaded.
type Traffic struct{ PCIeSent, PCIeReceived, NVLink uint64 }

// TrafficAt returns the traffic at a time. MIG devices use no NVLink.
func (v View) TrafficAt(now time.Time) Traffic {
	m := v.MeterAt(now)
	bytes := func(busy, rate uint64) uint64 { // busy is in percents × ms.
		return busy / uint64(max(v.Board.Multiprocessors, 1)) * (rate / 100_000)
	}
	t := Traffic{PCIeSent: bytes(m.Busy, pcieSentRate), PCIeReceived: bytes(m.Busy, pcieReceivedRate)}
	if v.Board.NVLinks > 0 {
		t.NVLink = bytes(m.Linked, nvlinkRate)
	}
	return t
}

// ProcessLoads returns the percentage of the GPU's multiprocessors that each process keeps busy, in the order of
// Processes. It is not supported in MIG mode.
func (v View) ProcessLoads() ([]int, nvml.Code) {
	if v.MIGEnabled {
		return nil, nvml.NotSupported
	}
	all := 0
	for _, p := range v.Processes {
		all += p.Load
	}
	var out []int
	for _, p := range v.Processes {
		out = append(out, p.Load*min(all, 100)/max(all, 1))
	}
	return out, 0
}

// GPMSupported reports whether the board has GPU performance monitoring.
func (v View) GPMSupported() bool { return v.Board.Architecture >= gpmArchitecture }

// GPMSample is the state of the counters of a GPU or a GPU instance.
type GPMSample struct {
	AtMS            int64
	Multiprocessors int
	Busy            uint64
	Traffic         Traffic
}

// GPMAt reads the counters of a GPU, or of a GPU instance that is not negative.
func (v View) GPMAt(instance int, now time.Time) (GPMSample, nvml.Code) {
	out := GPMSample{AtMS: now.UnixMilli(), Multiprocessors: v.Board.Multiprocessors}
	switch {
	case !v.GPMSupported() || instance >= 0 && !v.MIGEnabled:
		return out, nvml.NotSupported
	case instance < 0:
		out.Busy, out.Traffic = v.MeterAt(now).Busy, v.TrafficAt(now)
		return out, 0
	}
	i := v.GPU.Instance(instance)
	if i == nil {
		return out, nvml.InvalidArgument
	}
	p, _ := v.Board.MIG.Profile(i.ProfileID)
	out.Multiprocessors, out.Busy = p.Multiprocessors, v.State.instanceBusy(v.GPU, i, now)
	return out, 0
}

// Metrics of nvml.h.
const (
	GPMGraphics       = 1
	GPMMultiprocessor = 2
	GPMTensor         = 5
	GPMDRAM           = 10
	GPMPCIeSent       = 20
	GPMPCIeReceived   = 21
	GPMNVLinkReceived = 60
	GPMNVLinkSent     = 61
)

// Metric returns a metric between two samples: percents, or MiB/s.
func (a GPMSample) Metric(b GPMSample, id int) (float64, nvml.Code) {
	passed := float64(b.AtMS - a.AtMS)
	if passed <= 0 || a.Multiprocessors != b.Multiprocessors || b.Busy < a.Busy {
		return 0, nvml.InvalidArgument
	}
	busy := float64(b.Busy-a.Busy) / passed / float64(max(a.Multiprocessors, 1))
	rate := func(from, to uint64) float64 { return float64(to-from) / passed * 1000 / (1 << 20) }
	switch id {
	case GPMGraphics, GPMMultiprocessor:
		return busy, 0
	case GPMTensor:
		return busy * tensorPercent / 100, 0
	case GPMDRAM:
		return busy * dramPercent / 100, 0
	case GPMPCIeSent:
		return rate(a.Traffic.PCIeSent, b.Traffic.PCIeSent), 0
	case GPMPCIeReceived:
		return rate(a.Traffic.PCIeReceived, b.Traffic.PCIeReceived), 0
	case GPMNVLinkSent, GPMNVLinkReceived:
		return rate(a.Traffic.NVLink, b.Traffic.NVLink), 0
	}
	return 0, nvml.NotSupported
}
