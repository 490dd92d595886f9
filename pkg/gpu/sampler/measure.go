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

// measure reads a GPU. since is the time of the newest sample of processes, which it updates. window waits between two
// samples of the performance counters. files returns the metadata files that a process has mounted. measure returns
// false if the GPU does not answer.
func measure(session nvml.Session, t Target, since *uint64, window func(), files func(pid uint32) ([]File, error)) (GPU, bool) {
	d, err := session.DeviceAt(t.PCIAddress)
	if err != nil {
		return GPU{}, false
	}
	g := GPU{Device: absent(gpu.KindGPU, gpu.Device{Kind: gpu.KindGPU, PCIAddress: t.PCIAddress}.Name(), t.UUID), Address: t.PCIAddress,
		Model: t.ProductName, Index: t.Index, Minor: t.Minor, MemoryUtilization: Absent, Encoder: Absent, Decoder: Absent,
		PowerW: Absent, TemperatureC: Absent, Clocks: map[string]float64{}}
	// Another board may be in its slot since the scan.
	if uuid, err := d.UUID(); err != nil || uuid != t.UUID {
		return GPU{}, false
	}
	instances := map[int]*nvml.Performance{-1: nil}
	for _, p := range t.Partitions {
		instances[p.GPUInstance] = nil
	}
	performance(d, instances, window)
	if p := instances[-1]; p != nil {
		g.take(*p)
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
	held, listed := map[int][]Process(nil), false
	if files != nil {
		held, listed = processes(d, t, since, files)
	}
	if listed {
		g.Processes = append([]Process{}, held[-1]...)
	}
	for _, p := range t.Partitions {
		one := absent(gpu.KindMIG, p.Name, p.UUID)
		one.Profile, one.GPUInstance = p.Profile, p.GPUInstance
		m, err := d.MIGMemory(p.UUID)
		if err != nil {
			continue // It was destroyed after the scan.
		}
		one.memory(m)
		if ratios := instances[p.GPUInstance]; ratios != nil {
			one.take(*ratios)
		}
		if listed {
			one.Processes = append([]Process{}, held[key(p.GPUInstance, p.ComputeInstance)]...)
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
	EnergyMJ: Absent, MemoryTemperature: Absent, PCIeSent: Absent, PCIeReceived: Absent, PCIeReplays: Absent, NVLinkSent: Absent,
	NVLinkReceived: Absent, PowerCap: Absent, SyncBoost: Absent, SoftwareThermal: Absent, HardwareThermal: Absent, PowerBrake: Absent,
}

func (d *Device) take(p nvml.Performance) {
	d.Utilization, d.SM, d.Tensor, d.DRAM = p.Graphics, p.SM, p.Tensor, p.DRAM
}

func (d *Device) memory(m nvml.MemoryInfo) {
	d.MemoryUsed, d.MemoryTotal, d.MemoryReserved = float64(m.Used), float64(m.Total), float64(m.Reserved)
}

// performance measures the GPU, which is instance -1, and its GPU instances. It leaves those nil that have no counters.
func performance(d nvml.Device, instances map[int]*nvml.Performance, window func()) {
	earlier := map[int]nvml.PerformanceSample{}
	defer func() {
		for _, s := range earlier {
			s.Free()
		}
	}()
	for i := range instances {
		s, err := d.Performance(i)
		if err != nil && i < 0 && nvml.Unavailable(err) {
			return
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
			instances[i] = &p
		}
		later.Free()
	}
}

// key identifies a compute instance of a GPU.
func key(gpuInstance, computeInstance int) int { return gpuInstance<<16 | computeInstance }

// processes returns the processes of the GPU by their compute instances, and all of them by -1.
func processes(d nvml.Device, t Target, since *uint64, files func(pid uint32) ([]File, error)) (held map[int][]Process, listed bool) {
	all, err := d.ProcessMemory()
	if err != nil {
		return nil, false
	}
	loads, err := d.ProcessUtilization(*since)
	load := map[uint32]float64{}
	for _, l := range loads {
		load[l.PID] = float64(l.SM) / 100
		*since = max(*since, l.Time)
	}
	shared := map[int]bool{-1: t.Shared}
	for _, p := range t.Partitions {
		shared[key(p.GPUInstance, p.ComputeInstance)] = p.Shared
	}
	held = map[int][]Process{-1: {}}
	var left func(pid uint32) bool
	for _, p := range all {
		at := -1
		if p.GPUInstance >= 0 {
			at = key(p.GPUInstance, p.ComputeInstance)
		}
		one := Process{PID: p.PID, Memory: float64(p.Bytes), Utilization: Absent}
		if err == nil {
			one.Utilization = load[p.PID] // The driver lists only processes that ran.
		}
		if shared[at] {
			var unknown error
			if one.Files, unknown = files(p.PID); errors.Is(unknown, procfs.ErrEnded) {
				if left == nil {
					left = stillListed(d)
				}
				if !left(p.PID) {
					continue
				}
			}
		}
		held[-1] = append(held[-1], one)
		if at >= 0 {
			held[at] = append(held[at], one)
		}
	}
	return held, true
}

// stillListed lists the processes again. One that is listed but not in /proc has a PID of another PID namespace.
func stillListed(d nvml.Device) func(pid uint32) bool {
	again, err := d.ProcessMemory()
	return func(pid uint32) bool {
		return err != nil || slices.ContainsFunc(again, func(p nvml.ProcessMemory) bool { return p.PID == pid })
	}
}
