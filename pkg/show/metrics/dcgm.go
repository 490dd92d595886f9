// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/sampler"
)

// DCGM lists the metrics that have the names, labels and units of NVIDIA's dcgm-exporter, for its dashboards. It is the
// exporter's lists without those that this driver does not measure, see testdata/dcgm-exporter.tsv and docs/metrics.md.
func DCGM() []Entry {
	var out []Entry
	for _, m := range dcgmMetrics {
		out = append(out, m.Entry)
	}
	return out
}

// dcgmLabels are the exporter's. UUID is the GPU's, also for a MIG device.
var dcgmLabels = []string{
	"gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "GPU_I_PROFILE", "GPU_I_ID", "container", "namespace", "pod",
}

const mebibyte, percent = 1 << 20, 100

var dcgmMetrics = []struct {
	Entry
	// part is the value of a board or a partition, board that of a board only.
	part  func(sampler.Device) float64
	board func(sampler.GPU) float64
}{
	{dcgm("DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz)."), nil, func(g sampler.GPU) float64 { return clockMHz(g, "sm") }},
	{dcgm("DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz)."), nil, func(g sampler.GPU) float64 { return clockMHz(g, "memory") }},
	{dcgm("DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C)."), nil, func(g sampler.GPU) float64 { return scaled(g.Counters.MemoryTemperature, 1) }},
	{dcgm("DEV_GPU_TEMP", "gauge", "GPU temperature (in C)."), nil, func(g sampler.GPU) float64 { return g.TemperatureC }},
	{dcgm("DEV_POWER_USAGE", "gauge", "Power draw (in W)."), nil, func(g sampler.GPU) float64 { return g.PowerW }},
	{dcgm("DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Total energy consumption since boot (in mJ)."), nil,
		func(g sampler.GPU) float64 { return scaled(g.Counters.EnergyMJ, 1) }},
	{dcgm("DEV_PCIE_REPLAY_COUNTER", "counter", "Total number of PCIe retries."), nil,
		func(g sampler.GPU) float64 { return scaled(g.Counters.PCIeReplays, 1) }},
	{dcgm("DEV_GPU_UTIL", "gauge", "GPU utilization (in %)."), nil, func(g sampler.GPU) float64 {
		if len(g.Partitions) > 0 {
			return sampler.Absent
		}
		return times(g.Utilization, percent)
	}},
	{dcgm("DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %)."), nil, func(g sampler.GPU) float64 { return times(g.MemoryUtilization, percent) }},
	{dcgm("DEV_ENC_UTIL", "gauge", "Encoder utilization (in %)."), nil, func(g sampler.GPU) float64 { return times(g.Encoder, percent) }},
	{dcgm("DEV_DEC_UTIL", "gauge", "Decoder utilization (in %)."), nil, func(g sampler.GPU) float64 { return times(g.Decoder, percent) }},
	{dcgm("DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB)."), func(d sampler.Device) float64 {
		if d.MemoryTotal < 0 {
			return sampler.Absent
		}
		return max(d.MemoryTotal-d.MemoryReserved-d.MemoryUsed, 0) / mebibyte
	}, nil},
	{dcgm("DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB)."), func(d sampler.Device) float64 { return times(d.MemoryUsed, 1./mebibyte) }, nil},
	{dcgm("DEV_FB_RESERVED", "gauge", "Framebuffer memory reserved (in MiB)."),
		func(d sampler.Device) float64 { return times(d.MemoryReserved, 1./mebibyte) }, nil},
	{dcgm("DEV_NVLINK_BANDWIDTH_TOTAL", "counter", "Total number of NVLink bandwidth counters for all lanes."), nil, func(g sampler.GPU) float64 {
		if g.Counters.NVLinkSent < 0 || g.Counters.NVLinkReceived < 0 {
			return sampler.Absent
		}
		return float64(g.Counters.NVLinkSent+g.Counters.NVLinkReceived) / mebibyte
	}},
	{dcgm("PROF_GR_ENGINE_ACTIVE", "gauge", "Ratio of time the graphics engine is active."), func(d sampler.Device) float64 {
		if d.SM < 0 {
			return sampler.Absent // Without performance counters, the exporter does not have it either.
		}
		return d.Utilization
	}, nil},
	{dcgm("PROF_PIPE_TENSOR_ACTIVE", "gauge", "Ratio of cycles the tensor (HMMA) pipe is active."), func(d sampler.Device) float64 { return d.Tensor }, nil},
	{dcgm("PROF_DRAM_ACTIVE", "gauge", "Ratio of cycles the device memory interface is active sending or receiving data."),
		func(d sampler.Device) float64 { return d.DRAM }, nil},
}

func dcgm(name, kind, help string) Entry { return Entry{"DCGM_FI_" + name, kind, dcgmLabels, help} }

func times(v, factor float64) float64 {
	if v < 0 {
		return sampler.Absent
	}
	return v * factor
}

func clockMHz(g sampler.GPU, name string) float64 {
	if hertz, ok := g.Clocks[name]; ok {
		return hertz / 1e6
	}
	return sampler.Absent
}

// holder is a container with a device.
type holder struct{ namespace, pod, container string }

// only returns the holder of a device. Its container is empty if several containers have the device. All is empty if several
// pods have it, because sums over devices would be too large with a sample for each pod.
func only(with []holder) holder {
	if len(with) == 0 {
		return holder{}
	}
	one := with[0]
	for _, h := range with {
		if h.namespace != one.namespace || h.pod != one.pod {
			return holder{}
		}
		if h.container != one.container {
			one.container = ""
		}
	}
	return one
}

// sendDCGM writes the samples of each board, or of its partitions, with the container that has it.
func sendDCGM(out chan<- prometheus.Metric, s sampler.Snapshot, node string, holders map[string][]holder) {
	for _, g := range s.GPUs {
		for _, d := range append([]sampler.Device{g.Device}, g.Partitions...) {
			h := only(holders[d.UUID])
			profile, instance := "", ""
			if d.Kind == gpu.KindMIG {
				profile, instance = d.Profile, strconv.Itoa(d.GPUInstance)
			}
			for _, e := range dcgmMetrics {
				value := float64(sampler.Absent)
				switch {
				case e.part != nil && (d.Kind == gpu.KindMIG || len(g.Partitions) == 0):
					value = e.part(d)
				case e.board != nil && d.Kind == gpu.KindGPU:
					value = e.board(g)
				}
				e.send(out, value, strconv.Itoa(g.Index), g.UUID, "0000"+strings.ToUpper(g.Address), fmt.Sprintf("nvidia%d", g.Minor), g.Model, node,
					profile, instance, h.container, h.namespace, h.pod)
			}
		}
	}
}
