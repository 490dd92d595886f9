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

// dcgmLabels are the exporter's. UUID is the GPU's, also for a MIG device.
var dcgmLabels = []string{
	"gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "GPU_I_PROFILE", "GPU_I_ID", "container", "namespace", "pod",
}

const mebibyte, percent = 1 << 20, 100

// The first are of a board only, the others of a board or a partition.
var (
	dcgmSMClock      = dcgm("DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz).")
	dcgmMemoryClock  = dcgm("DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz).")
	dcgmMemoryTemp   = dcgm("DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C).")
	dcgmTemp         = dcgm("DEV_GPU_TEMP", "gauge", "GPU temperature (in C).")
	dcgmPower        = dcgm("DEV_POWER_USAGE", "gauge", "Power draw (in W).")
	dcgmEnergy       = dcgm("DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Total energy consumption since boot (in mJ).")
	dcgmReplays      = dcgm("DEV_PCIE_REPLAY_COUNTER", "counter", "Total number of PCIe retries.")
	dcgmUtilization  = dcgm("DEV_GPU_UTIL", "gauge", "GPU utilization (in %).")
	dcgmMemoryUtil   = dcgm("DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %).")
	dcgmEncoder      = dcgm("DEV_ENC_UTIL", "gauge", "Encoder utilization (in %).")
	dcgmDecoder      = dcgm("DEV_DEC_UTIL", "gauge", "Decoder utilization (in %).")
	dcgmNVLink       = dcgm("DEV_NVLINK_BANDWIDTH_TOTAL", "counter", "Total number of NVLink bandwidth counters for all lanes.")
	dcgmFree         = dcgm("DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB).")
	dcgmUsed         = dcgm("DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB).")
	dcgmReserved     = dcgm("DEV_FB_RESERVED", "gauge", "Framebuffer memory reserved (in MiB).")
	dcgmEngineActive = dcgm("PROF_GR_ENGINE_ACTIVE", "gauge", "Ratio of time the graphics engine is active.")
	dcgmTensorActive = dcgm("PROF_PIPE_TENSOR_ACTIVE", "gauge", "Ratio of cycles the tensor (HMMA) pipe is active.")
	dcgmDRAMActive   = dcgm("PROF_DRAM_ACTIVE", "gauge", "Ratio of cycles the device memory interface is active sending or receiving data.")
)

// DCGM lists the metrics that have the names, labels and units of NVIDIA's dcgm-exporter, for its dashboards. It is the
// exporter's lists without those that this driver does not measure, see testdata/dcgm-exporter.tsv and docs/metrics.md.
func DCGM() []Entry {
	return []Entry{
		dcgmSMClock, dcgmMemoryClock, dcgmMemoryTemp, dcgmTemp, dcgmPower, dcgmEnergy, dcgmReplays, dcgmUtilization, dcgmMemoryUtil,
		dcgmEncoder, dcgmDecoder, dcgmFree, dcgmUsed, dcgmReserved, dcgmNVLink, dcgmEngineActive, dcgmTensorActive, dcgmDRAMActive,
	}
}

func dcgm(name, kind, help string) Entry { return Entry{"DCGM_FI_" + name, kind, dcgmLabels, help} }

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
			labels := []string{
				strconv.Itoa(g.Index), g.UUID, "0000" + strings.ToUpper(g.Address), fmt.Sprintf("nvidia%d", g.Minor), g.Model, node,
				profile, instance, h.container, h.namespace, h.pod,
			}
			send := func(e Entry, value float64) { e.send(out, value, labels...) }
			if d.Kind == gpu.KindGPU {
				sendBoard(g, send)
			}
			if d.Kind == gpu.KindMIG || len(g.Partitions) == 0 {
				sendPart(d, send)
			}
		}
	}
}

func sendBoard(g sampler.GPU, send func(Entry, float64)) {
	send(dcgmSMClock, clockMHz(g, "sm"))
	send(dcgmMemoryClock, clockMHz(g, "memory"))
	send(dcgmMemoryTemp, scaled(g.Counters.MemoryTemperature, 1))
	send(dcgmTemp, g.TemperatureC)
	send(dcgmPower, g.PowerW)
	send(dcgmEnergy, scaled(g.Counters.EnergyMJ, 1))
	send(dcgmReplays, scaled(g.Counters.PCIeReplays, 1))
	if len(g.Partitions) == 0 {
		send(dcgmUtilization, scaled(g.Utilization, percent))
	}
	send(dcgmMemoryUtil, scaled(g.MemoryUtilization, percent))
	send(dcgmEncoder, scaled(g.Encoder, percent))
	send(dcgmDecoder, scaled(g.Decoder, percent))
	if c := g.Counters; c.NVLinkSent >= 0 && c.NVLinkReceived >= 0 {
		send(dcgmNVLink, float64(c.NVLinkSent+c.NVLinkReceived)/mebibyte)
	}
}

func sendPart(d sampler.Device, send func(Entry, float64)) {
	if d.MemoryTotal >= 0 {
		send(dcgmFree, max(d.MemoryTotal-d.MemoryReserved-d.MemoryUsed, 0)/mebibyte)
	}
	send(dcgmUsed, scaled(d.MemoryUsed, 1./mebibyte))
	send(dcgmReserved, scaled(d.MemoryReserved, 1./mebibyte))
	if d.SM >= 0 { // Without performance counters, the exporter does not have it either.
		send(dcgmEngineActive, d.Utilization)
	}
	send(dcgmTensorActive, d.Tensor)
	send(dcgmDRAMActive, d.DRAM)
}
