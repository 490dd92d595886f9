// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package native

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpu-dra-driver/internal/nvml"
)

func (d *device) Utilization() (nvml.Utilization, error) {
	u, err := get(d.session, "nvmlDeviceGetUtilizationRates", d.handle.GetUtilizationRates)
	return nvml.Utilization{GPU: int(u.Gpu), Memory: int(u.Memory)}, err
}

func (d *device) VideoUtilization() (nvml.VideoUtilization, error) {
	// Both have the period of their samples as well.
	percent := func(symbol string, of func() (uint32, uint32, gonvml.Return)) (int, error) {
		return number[int](d.session, symbol, func() (uint32, gonvml.Return) {
			n, _, ret := of()
			return n, ret
		})
	}
	encoder, err := percent("nvmlDeviceGetEncoderUtilization", d.handle.GetEncoderUtilization)
	if err != nil {
		return nvml.VideoUtilization{}, err
	}
	decoder, err := percent("nvmlDeviceGetDecoderUtilization", d.handle.GetDecoderUtilization)
	return nvml.VideoUtilization{Encoder: encoder, Decoder: decoder}, err
}

func (d *device) Power() (int, error) {
	return number[int](d.session, "nvmlDeviceGetPowerUsage", d.handle.GetPowerUsage)
}

func (d *device) Temperature() (int, error) {
	return number[int](d.session, "nvmlDeviceGetTemperature", with(d.handle.GetTemperature, gonvml.TEMPERATURE_GPU))
}

func (d *device) Clock(c nvml.ClockDomain) (int, error) {
	return number[int](d.session, "nvmlDeviceGetClockInfo", with(d.handle.GetClockInfo, gonvml.ClockType(c)))
}

// allLinks is the scope of a field that adds up all NVLinks.
const allLinks = 0xffffffff

func (d *device) Counters() (nvml.Counters, error) {
	const symbol = "nvmlDeviceGetFieldValues"
	var c nvml.Counters
	// scale converts to the unit of Counters: NVML counts NVLink in KiB.
	wanted := []struct {
		field, scope uint32
		to           *int64
		scale        int64
	}{
		{gonvml.FI_DEV_TOTAL_ENERGY_CONSUMPTION, 0, &c.EnergyMJ, 1},
		{gonvml.FI_DEV_MEMORY_TEMP, 0, &c.MemoryTemperature, 1},
		{gonvml.FI_DEV_PCIE_COUNT_TX_BYTES, 0, &c.PCIeSent, 1},
		{gonvml.FI_DEV_PCIE_COUNT_RX_BYTES, 0, &c.PCIeReceived, 1},
		{gonvml.FI_DEV_PCIE_REPLAY_COUNTER, 0, &c.PCIeReplays, 1},
		{gonvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, allLinks, &c.NVLinkSent, 1 << 10},
		{gonvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, allLinks, &c.NVLinkReceived, 1 << 10},
		{gonvml.FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP, 0, &c.PowerCap, 1},
		{gonvml.FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST, 0, &c.SyncBoost, 1},
		{gonvml.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, 0, &c.SoftwareThermal, 1},
		{gonvml.FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, 0, &c.HardwareThermal, 1},
		{gonvml.FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, 0, &c.PowerBrake, 1},
	}
	fields := make([]gonvml.FieldValue, len(wanted))
	for i, w := range wanted {
		fields[i] = gonvml.FieldValue{FieldId: w.field, ScopeId: w.scope}
	}
	if err := d.session.query(symbol, func() gonvml.Return { return d.handle.GetFieldValues(fields) }); err != nil {
		return nvml.Counters{}, err
	}
	for i, w := range wanted {
		// A field that fails for any reason is not measured; the query itself would have failed for a lost GPU.
		value, err := fieldValue(symbol, fields[i], nvml.NotReported)
		if err != nil || value < 0 {
			*w.to = nvml.NotReported
			continue
		}
		*w.to = value * w.scale
	}
	return c, nil
}

// ProcessMemory asks for clients of MPS as well, which newer drivers list with all other processes.
func (d *device) ProcessMemory() ([]nvml.ProcessMemory, error) {
	all, err := list(d.session, "nvmlDeviceGetComputeRunningProcesses_v3", d.handle.GetComputeRunningProcesses)
	if err != nil {
		return nil, err
	}
	for symbol, call := range map[string]func() ([]gonvml.ProcessInfo, gonvml.Return){
		"nvmlDeviceGetGraphicsRunningProcesses_v3":   d.handle.GetGraphicsRunningProcesses,
		"nvmlDeviceGetMPSComputeRunningProcesses_v3": d.handle.GetMPSComputeRunningProcesses,
	} {
		more, err := list(d.session, symbol, call)
		if err != nil && !nvml.Unavailable(err) {
			return nil, err
		}
		all = append(all, more...)
	}
	held := map[nvml.Process]int64{}
	for _, i := range all {
		p := nvml.Process{PID: i.Pid, GPUInstance: int(int32(i.GpuInstanceId)),
			ComputeInstance: int(int32(i.ComputeInstanceId))}
		// The driver's "not available" has all bits set, as -1 has. It lists a process with two contexts twice, with
		// equal memory.
		bytes, listed := held[p]
		if !listed {
			bytes = nvml.NotReported
		}
		held[p] = max(bytes, int64(i.UsedGpuMemory))
	}
	out := make([]nvml.ProcessMemory, 0, len(held))
	for p, bytes := range held {
		out = append(out, nvml.ProcessMemory{Process: p, Bytes: bytes})
	}
	slices.SortFunc(out, func(a, b nvml.ProcessMemory) int { return compare(a.Process, b.Process) })
	return out, nil
}

func (d *device) ProcessUtilization(since uint64) ([]nvml.ProcessUtilization, error) {
	samples, err := list(d.session, "nvmlDeviceGetProcessUtilization", with(d.handle.GetProcessUtilization, since))
	if errors.Is(err, nvml.NotFound) {
		return nil, nil // No process ran since then.
	}
	if err != nil {
		return nil, err
	}
	newest := map[uint32]nvml.ProcessUtilization{}
	for _, s := range samples {
		// The driver fills a longer list than it has samples.
		if s.Pid != 0 && s.TimeStamp > newest[s.Pid].Time {
			newest[s.Pid] = nvml.ProcessUtilization{PID: s.Pid, Time: s.TimeStamp, SM: int(min(s.SmUtil, 100))}
		}
	}
	byPID := func(a, b nvml.ProcessUtilization) int { return cmp.Compare(a.PID, b.PID) }
	return slices.SortedFunc(maps.Values(newest), byPID), nil
}

func (d *device) MIGMemory(uuid string) (nvml.MemoryInfo, error) {
	part, err := d.part(uuid)
	if err != nil {
		return nvml.MemoryInfo{}, err
	}
	return part.Memory()
}

// performance is a sample of NVML's GPU performance monitoring.
type performance struct {
	session  *session
	sample   gonvml.GpmSample
	instance int
	free     sync.Once
}

func (d *device) Performance(gpuInstance int) (nvml.PerformanceSample, error) {
	supported, err := get(d.session, "nvmlGpmQueryDeviceSupport", d.handle.GpmQueryDeviceSupport)
	if err == nil && supported.IsSupportedDevice == 0 {
		err = &nvml.Error{Query: "nvmlGpmQueryDeviceSupport", Code: nvml.NotSupported}
	}
	if err != nil {
		return nil, err
	}
	sample, err := get(d.session, "nvmlGpmSampleAlloc", d.session.library.lib.GpmSampleAlloc)
	if err != nil {
		return nil, err
	}
	p := &performance{session: d.session, sample: sample, instance: gpuInstance}
	if gpuInstance < 0 {
		err = d.session.query("nvmlGpmSampleGet", func() gonvml.Return { return d.handle.GpmSampleGet(sample) })
	} else {
		err = d.session.query("nvmlGpmMigSampleGet", func() gonvml.Return {
			return d.handle.GpmMigSampleGet(gpuInstance, sample)
		})
	}
	if err != nil {
		p.Free()
		return nil, err
	}
	return p, nil
}

func (p *performance) Free() {
	p.free.Do(func() { _ = p.session.query("nvmlGpmSampleFree", p.sample.Free) })
}

func (p *performance) Since(earlier nvml.PerformanceSample) (nvml.Performance, error) {
	const symbol = "nvmlGpmMetricsGet"
	before, ok := earlier.(*performance)
	if !ok || before.session != p.session || before.instance != p.instance {
		return nvml.Performance{}, &nvml.Error{Query: symbol, Code: nvml.InvalidArgument}
	}
	var out nvml.Performance
	wanted := []struct {
		id gonvml.GpmMetricId
		to *float64
	}{
		{gonvml.GPM_METRIC_GRAPHICS_UTIL, &out.Graphics}, {gonvml.GPM_METRIC_SM_UTIL, &out.SM},
		{gonvml.GPM_METRIC_ANY_TENSOR_UTIL, &out.Tensor}, {gonvml.GPM_METRIC_DRAM_BW_UTIL, &out.DRAM},
	}
	ask := gonvml.GpmMetricsGetType{NumMetrics: uint32(len(wanted)), Sample1: before.sample, Sample2: p.sample}
	for i, w := range wanted {
		ask.Metrics[i].MetricId = uint32(w.id)
	}
	if err := p.session.query(symbol, func() gonvml.Return {
		return p.session.library.lib.GpmMetricsGet(&ask)
	}); err != nil {
		return nvml.Performance{}, err
	}
	for i, w := range wanted {
		*w.to = nvml.NotReported
		// A NaN is not reported either.
		if m := ask.Metrics[i]; gonvml.Return(m.NvmlReturn) == gonvml.SUCCESS && m.Value >= 0 {
			*w.to = min(m.Value/100, 1)
		}
	}
	return out, nil
}
