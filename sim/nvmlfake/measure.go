// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nvmlfake

import (
	"cmp"
	"slices"
	"time"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/engine"
)

func (d *device) Utilization() (nvml.Utilization, error) {
	return ask(d, "nvmlDeviceGetUtilizationRates", func(v engine.View) (nvml.Utilization, nvml.Code) {
		if v.MIGEnabled {
			return nvml.Utilization{}, nvml.NotSupported
		}
		return nvml.Utilization{GPU: v.LoadPercent(), Memory: v.MemoryLoadPercent()}, 0
	})
}

// VideoUtilization is 0: simulated processes use no video engines.
func (d *device) VideoUtilization() (out nvml.VideoUtilization, err error) {
	for _, query := range []string{"nvmlDeviceGetEncoderUtilization", "nvmlDeviceGetDecoderUtilization"} {
		if _, err := ask(d, query, func(v engine.View) (int, nvml.Code) {
			if v.MIGEnabled {
				return 0, nvml.NotSupported
			}
			return 0, 0
		}); err != nil {
			return out, err
		}
	}
	return out, nil
}

func (d *device) Power() (int, error) {
	return get(d, "nvmlDeviceGetPowerUsage", func(v engine.View) int { return v.DrawW() * 1000 })
}

func (d *device) Temperature() (int, error) {
	return get(d, "nvmlDeviceGetTemperature", engine.View.HeatC)
}

func (d *device) Clock(c nvml.ClockDomain) (int, error) {
	return ask(d, "nvmlDeviceGetClockInfo", func(v engine.View) (int, nvml.Code) {
		b, idle := v.Board.Clocks, v.LoadPercent() == 0
		switch {
		case c == nvml.ClockVideo:
			return b.MaxVideo, 0
		case c == nvml.ClockMemory && idle:
			return b.IdleMemory, 0
		case c == nvml.ClockMemory:
			return b.MaxMemory, 0
		case c != nvml.ClockGraphics && c != nvml.ClockSM:
			return 0, nvml.InvalidArgument
		case idle:
			return b.IdleGraphics, 0
		}
		return b.MaxGraphics, 0
	})
}

func (d *device) Counters() (nvml.Counters, error) {
	return get(d, "nvmlDeviceGetFieldValues", func(v engine.View) nvml.Counters {
		const nanoseconds = 1_000_000
		now := time.Now()
		m, t := v.MeterAt(now), v.TrafficAt(now)
		c := nvml.Counters{
			EnergyMJ: int64(m.EnergyMJ), MemoryTemperature: nvml.NotReported,
			PCIeSent: int64(t.PCIeSent), PCIeReceived: int64(t.PCIeReceived), NVLinkSent: nvml.NotReported, NVLinkReceived: nvml.NotReported,
			PowerCap: nvml.NotReported, SyncBoost: nvml.NotReported,
			SoftwareThermal: int64(m.SoftwareThermalMS) * nanoseconds, HardwareThermal: int64(m.HardwareThermalMS) * nanoseconds,
			PowerBrake: int64(m.PowerBrakeMS) * nanoseconds,
		}
		if v.Board.MemoryIdleTemp > 0 {
			c.MemoryTemperature = int64(v.Board.MemoryIdleTemp)
		}
		if v.Board.NVLinks > 0 {
			c.NVLinkSent, c.NVLinkReceived = int64(t.NVLink)>>10<<10, int64(t.NVLink)>>10<<10 // NVML counts KiB.
		}
		return c
	})
}

func (d *device) ProcessMemory() ([]nvml.ProcessMemory, error) {
	var all []nvml.ProcessMemory
	for _, query := range []string{
		"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3",
	} {
		found, err := get(d, query, func(v engine.View) (out []nvml.ProcessMemory) {
			for _, p := range v.Processes {
				if p.Graphics != (query == "nvmlDeviceGetGraphicsRunningProcesses_v3") || query == "nvmlDeviceGetMPSComputeRunningProcesses_v3" {
					continue
				}
				one := nvml.ProcessMemory{Process: nvml.Process{PID: p.PID, GPUInstance: -1, ComputeInstance: -1}, Bytes: int64(p.MemoryMiB) << 20}
				if p.Place != nil {
					one.GPUInstance, one.ComputeInstance = p.Place.GPUInstance, p.Place.ComputeInstance
				}
				out = append(out, one)
			}
			return out
		})
		if err != nil && (query == "nvmlDeviceGetComputeRunningProcesses_v3" || !nvml.Unavailable(err)) {
			return nil, err
		}
		all = append(all, found...)
	}
	slices.SortFunc(all, func(a, b nvml.ProcessMemory) int { return cmp.Compare(a.PID, b.PID) })
	return all, nil
}

func (d *device) ProcessUtilization(uint64) ([]nvml.ProcessUtilization, error) {
	return ask(d, "nvmlDeviceGetProcessUtilization", func(v engine.View) (out []nvml.ProcessUtilization, code nvml.Code) {
		loads, code := v.ProcessLoads()
		for i, load := range loads {
			out = append(out, nvml.ProcessUtilization{PID: v.Processes[i].PID, Time: uint64(time.Now().UnixMicro()), SM: load})
		}
		return out, code
	})
}

func (d *device) MIGMemory(uuid string) (nvml.MemoryInfo, error) {
	find := func(v engine.View) (*engine.Instance, nvml.Code) {
		for n := range v.Instances {
			if slices.ContainsFunc(v.Instances[n].Computes, func(c engine.Compute) bool { return c.UUID == uuid }) {
				return &v.Instances[n], 0
			}
		}
		return nil, nvml.NotFound
	}
	if _, err := ask(d, "nvmlDeviceGetHandleByUUID", find); err != nil {
		return nvml.MemoryInfo{}, err
	}
	return ask(d, "nvmlDeviceGetMemoryInfo_v2", func(v engine.View) (m nvml.MemoryInfo, code nvml.Code) {
		i, code := find(v)
		if code == 0 {
			m = v.InstanceMemory(i)
		}
		return m, code
	})
}

// performance is a sample of the counters of a GPU or a GPU instance.
type performance struct {
	device   *device
	instance int
	engine.GPMSample
}

func (d *device) Performance(gpuInstance int) (nvml.PerformanceSample, error) {
	for _, query := range []string{"nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc"} {
		if _, err := ask(d, query, func(v engine.View) (bool, nvml.Code) {
			if !v.GPMSupported() {
				return false, nvml.NotSupported
			}
			return true, 0
		}); err != nil {
			return nil, err
		}
	}
	query := "nvmlGpmSampleGet"
	if gpuInstance >= 0 {
		query = "nvmlGpmMigSampleGet"
	}
	s, err := ask(d, query, func(v engine.View) (engine.GPMSample, nvml.Code) { return v.GPMAt(gpuInstance, time.Now()) })
	if err != nil {
		return nil, err
	}
	return &performance{device: d, instance: gpuInstance, GPMSample: s}, nil
}

func (p *performance) Free() {}

func (p *performance) Since(earlier nvml.PerformanceSample) (nvml.Performance, error) {
	const query = "nvmlGpmMetricsGet"
	before, ok := earlier.(*performance)
	if !ok || before.device.session != p.device.session || before.device.slot != p.device.slot || before.instance != p.instance {
		return nvml.Performance{}, failed(query, nvml.InvalidArgument)
	}
	if _, err := p.device.session.ask(query); err != nil {
		return nvml.Performance{}, err
	}
	ratio := func(id int) float64 {
		percent, code := before.Metric(p.GPMSample, id)
		if code != 0 {
			return nvml.NotReported
		}
		return min(percent/100, 1)
	}
	return nvml.Performance{
		Graphics: ratio(engine.GPMGraphics), SM: ratio(engine.GPMMultiprocessor), Tensor: ratio(engine.GPMTensor), DRAM: ratio(engine.GPMDRAM),
	}, nil
}
