// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package sampler

import (
	"errors"
	"slices"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/procfs"
	"gpu-dra-driver/pkg/gpu"
)

var clocks = map[string]nvml.ClockDomain{
	"graphics": nvml.ClockGraphics, "sm": nvml.ClockSM, "memory": nvml.ClockMemory, "video": nvml.ClockVideo,
}

// wholeGPU stands for the GPU itself among its GPU instances, as in NVML.
const wholeGPU = -1

// measure reads a GPU. window waits between two samples of the performance counters. ok is false if the GPU does not
// answer.
func (s *Sampler) measure(session nvml.Session, t Target, window func()) (g GPU, ok bool) {
	d, err := session.DeviceAt(t.PCIAddress)
	if err != nil {
		return GPU{}, false
	}
	g = GPU{Device: absent(gpu.KindGPU, gpu.NameOf(t.PCIAddress), t.UUID),
		Address:           t.PCIAddress,
		Model:             t.ProductName,
		Index:             t.Index,
		Minor:             t.Minor,
		MemoryUtilization: Absent,
		Encoder:           Absent,
		Decoder:           Absent,
		PowerW:            Absent,
		TemperatureC:      Absent,
		Clocks:            map[string]float64{}}
	// Another board may be in its slot since the scan.
	if uuid, err := d.UUID(); err != nil || uuid != t.UUID {
		return GPU{}, false
	}
	instances := map[int]bool{wholeGPU: true}
	for _, p := range t.Partitions {
		instances[p.GPUInstance] = true
	}
	ratios := performance(d, instances, window)
	if r, ok := ratios[wholeGPU]; ok {
		g.take(r)
	}
	if u, err := d.Utilization(); err == nil {
		g.Utilization, g.MemoryUtilization = float64(u.GPU)/100, float64(u.Memory)/100
	}
	if u, err := d.VideoUtilization(); err == nil {
		g.Encoder, g.Decoder = float64(u.Encoder)/100, float64(u.Decoder)/100
	}
	if m, err := d.Memory(); err == nil {
		g.memory(m)
	}
	if n, err := d.Power(); err == nil {
		g.PowerW = float64(n) / 1000
	}
	if n, err := d.Temperature(); err == nil {
		g.TemperatureC = float64(n)
	}
	for name, domain := range clocks {
		if n, err := d.Clock(domain); err == nil {
			g.Clocks[name] = float64(n) * 1e6
		}
	}
	if g.Counters, err = d.Counters(); err != nil {
		if errors.Is(err, nvml.GPUIsLost) {
			return GPU{}, false
		}
		g.Counters = noCounters
	}
	all, ofInstance, listed := s.processes(d, t)
	if listed {
		g.Processes = append([]Process{}, all...)
	}
	for _, p := range t.Partitions {
		one := absent(gpu.KindMIG, p.Name, p.UUID)
		one.Profile, one.GPUInstance = p.Profile, p.GPUInstance
		m, err := d.MIGMemory(p.UUID)
		if err != nil {
			continue // It was destroyed after the scan.
		}
		one.memory(m)
		if r, ok := ratios[p.GPUInstance]; ok {
			one.take(r)
		}
		if listed {
			one.Processes = append([]Process{}, ofInstance[instance{p.GPUInstance, p.ComputeInstance}]...)
		}
		g.Partitions = append(g.Partitions, one)
	}
	return g, true
}

func absent(kind gpu.Kind, name, uuid string) Device {
	return Device{Kind: kind, Name: name, UUID: uuid, Utilization: Absent, SM: Absent, Tensor: Absent, DRAM: Absent,
		MemoryUsed: Absent, MemoryTotal: Absent, MemoryReserved: Absent}
}

var noCounters = nvml.Counters{
	EnergyMJ:          Absent,
	MemoryTemperature: Absent,
	PCIeSent:          Absent,
	PCIeReceived:      Absent,
	PCIeReplays:       Absent,
	NVLinkSent:        Absent,
	NVLinkReceived:    Absent,
	PowerCap:          Absent,
	SyncBoost:         Absent,
	SoftwareThermal:   Absent,
	HardwareThermal:   Absent,
	PowerBrake:        Absent,
}

func (d *Device) take(p nvml.Performance) {
	d.Utilization, d.SM, d.Tensor, d.DRAM = p.Graphics, p.SM, p.Tensor, p.DRAM
}

func (d *Device) memory(m nvml.MemoryInfo) {
	d.MemoryUsed, d.MemoryTotal, d.MemoryReserved = float64(m.Used), float64(m.Total), float64(m.Reserved)
}

// performance measures GPU instances, and the GPU as wholeGPU. The result lacks those without counters.
func performance(d nvml.Device, instances map[int]bool, window func()) map[int]nvml.Performance {
	earlier, out := map[int]nvml.PerformanceSample{}, map[int]nvml.Performance{}
	defer func() {
		for _, s := range earlier {
			s.Free()
		}
	}()
	for i := range instances {
		s, err := d.Performance(i)
		if err != nil && i == wholeGPU && nvml.Unavailable(err) {
			return nil
		}
		if err == nil {
			earlier[i] = s
		}
	}
	window()
	for i, before := range earlier {
		later, err := d.Performance(i)
		if err != nil {
			continue
		}
		if p, err := later.Since(before); err == nil {
			out[i] = p
		}
		later.Free()
	}
	return out
}

// instance is a compute instance of a GPU.
type instance struct{ gpu, compute int }

// processes returns the processes of a GPU, and those of each compute instance. listed is false if they are unknown.
func (s *Sampler) processes(d nvml.Device, t Target) (all []Process, ofInstance map[instance][]Process, listed bool) {
	if s.owners == nil {
		return nil, nil, false
	}
	memory, err := d.ProcessMemory()
	if err != nil {
		return nil, nil, false
	}
	loads, err := d.ProcessUtilization(s.newestSample(t.UUID, 0))
	load := map[uint32]float64{}
	for _, l := range loads {
		load[l.PID] = float64(l.SM) / 100
		s.newestSample(t.UUID, l.Time)
	}
	shared := map[instance]bool{}
	for _, p := range t.Partitions {
		shared[instance{p.GPUInstance, p.ComputeInstance}] = p.Shared
	}
	ofInstance = map[instance][]Process{}
	var left func(pid uint32) bool
	for _, p := range memory {
		whole, at := p.GPUInstance < 0, instance{p.GPUInstance, p.ComputeInstance}
		one := Process{PID: p.PID, Memory: float64(p.Bytes), Utilization: Absent}
		if err == nil {
			one.Utilization = load[p.PID] // The driver lists only processes that ran.
		}
		if whole && t.Shared || !whole && shared[at] {
			var unknown error
			if one.Files, unknown = s.owners.files(p.PID); errors.Is(unknown, procfs.ErrEnded) {
				if left == nil {
					left = stillListed(d)
				}
				if !left(p.PID) {
					continue
				}
			}
		}
		all = append(all, one)
		if !whole {
			ofInstance[at] = append(ofInstance[at], one)
		}
	}
	return all, ofInstance, true
}

// stillListed lists the processes again. One that is listed but not in /proc has a PID of another PID namespace.
func stillListed(d nvml.Device) func(pid uint32) bool {
	again, err := d.ProcessMemory()
	return func(pid uint32) bool {
		return err != nil || slices.ContainsFunc(again, func(p nvml.ProcessMemory) bool { return p.PID == pid })
	}
}
