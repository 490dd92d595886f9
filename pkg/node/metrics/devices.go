// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/node/sampler"
	"gpu-dra-driver/pkg/wire/metric"
)

// Samples returns the last measurements of the node's GPUs.
type Samples func() sampler.Snapshot

var deviceLabels = []string{"node", "type", "device", "uuid", "gpu_uuid", "model"}

func deviceEntry(name, kind, help string, more ...string) metric.Entry {
	return metric.New("gpu_dra_device_"+name, kind, slices.Concat(deviceLabels, more), help)
}

// The metrics of boards and partitions, of boards only, and of claims.
var (
	deviceUtilization = deviceEntry("utilization_ratio", "gauge",
		"Part of the time in which a kernel ran on the device. Absent for a partition of a GPU before Hopper, which "+
			"cannot measure it.")
	deviceSM = deviceEntry("sm_active_ratio", "gauge",
		"Part of the device's multiprocessors in use, on average. From Hopper on.")
	deviceTensor = deviceEntry("tensor_active_ratio", "gauge",
		"Part of the device's tensor cores in use, on average. From Hopper on.")
	deviceDRAM = deviceEntry("dram_active_ratio", "gauge",
		"Part of the device's memory bandwidth in use, on average. From Hopper on.")
	deviceMemoryUsed = deviceEntry("memory_used_bytes", "gauge",
		"Memory of the device that processes use, without the driver's own.")
	deviceMemoryTotal = deviceEntry("memory_total_bytes", "gauge",
		"Memory of the device, with the driver's own.")
	deviceProcesses = deviceEntry("processes", "gauge",
		"Processes that use the device.")

	boardPower = deviceEntry("power_watts", "gauge",
		"Power of the board.")
	boardEnergy = deviceEntry("energy_joules_total", "counter",
		"Energy of the board since the driver was loaded.")
	boardTemperature = deviceEntry("temperature_celsius", "gauge",
		"Temperature of the GPU.")
	boardClock = deviceEntry("clock_hertz", "gauge",
		"Frequency of a clock: graphics, sm, memory or video.", "clock")
	boardThrottled = deviceEntry("throttled_seconds_total", "counter",
		"Time with reduced clocks since the driver was loaded, by reason.", "reason")
	boardPCIe = deviceEntry("pcie_bytes_total", "counter",
		"Bytes over PCIe. The driver's counter can wrap, which looks like a restart.", "direction")
	boardNVLink = deviceEntry("nvlink_bytes_total", "counter",
		"Bytes over all NVLinks of the GPU.", "direction")

	claimLabels      = []string{"namespace", "pod", "claim", "request", "device", "uuid", "model", "node"}
	claimUtilization = metric.New("gpu_dra_claim_utilization_ratio", "gauge", claimLabels,
		"Part of the time in which a kernel ran on a claim's device. For a share of a device with other shares: the "+
			"part of the device that the claim's processes use. Absent where it cannot be measured: for partitions "+
			"before Hopper, for shares of a partition with other shares, and for such shares of a GPU without "+
			"metadata files.")
	claimMemoryUsed = metric.New("gpu_dra_claim_memory_used_bytes", "gauge", claimLabels,
		"Memory that processes use on a claim's device. For a share of a device with other shares: the memory of the "+
			"claim's processes. Absent for such shares without metadata files.")
	claimMemoryGranted = metric.New("gpu_dra_claim_memory_granted_bytes", "gauge", claimLabels,
		"Memory of a claim's device, or of its share of one.")
	lastSample = metric.New("gpu_dra_last_sample_timestamp_seconds", "gauge", nil,
		"Unix time of the last measurement of GPUs. 0 while none are measured: no claim is prepared, or NVML does "+
			"not answer.")
)

// deviceCatalogue lists the metrics of measurements.
func deviceCatalogue() []metric.Entry {
	return []metric.Entry{
		lastSample, deviceUtilization, deviceSM, deviceTensor, deviceDRAM, deviceMemoryUsed, deviceMemoryTotal,
		deviceProcesses, boardPower, boardEnergy, boardTemperature, boardClock, boardThrottled, boardPCIe, boardNVLink,
	}
}

func scaled[N int64 | float64](n N, factor float64) float64 {
	if n < 0 {
		return sampler.Absent
	}
	return float64(n) * factor
}

// devicesCollector serves the last measurements; it makes no call of NVML.
type devicesCollector struct {
	samples Samples
	node    string
}

func (c *devicesCollector) Describe(out chan<- *prometheus.Desc) {
	metric.Describe(out, deviceCatalogue()...)
}

// Collect implements prometheus.Collector.
func (c *devicesCollector) Collect(out chan<- prometheus.Metric) {
	s := c.samples()
	at := 0.0
	if !s.At.IsZero() {
		at = float64(s.At.UnixMilli()) / 1000
	}
	lastSample.Send(out, at)
	for _, g := range s.GPUs {
		for _, d := range append([]sampler.Device{g.Device}, g.Partitions...) {
			c.sendDevice(out, g, d)
		}
		c.sendBoard(out, g)
	}
}

func (c *devicesCollector) labels(g sampler.GPU, d sampler.Device) []string {
	return []string{c.node, string(d.Kind), d.Name, d.UUID, g.UUID, g.Model}
}

func (c *devicesCollector) sendDevice(out chan<- prometheus.Metric, g sampler.GPU, d sampler.Device) {
	labels := c.labels(g, d)
	deviceUtilization.Send(out, d.Utilization, labels...)
	deviceSM.Send(out, d.SM, labels...)
	deviceTensor.Send(out, d.Tensor, labels...)
	deviceDRAM.Send(out, d.DRAM, labels...)
	deviceMemoryUsed.Send(out, d.MemoryUsed, labels...)
	deviceMemoryTotal.Send(out, d.MemoryTotal, labels...)
	if d.Processes != nil {
		deviceProcesses.Send(out, float64(len(d.Processes)), labels...)
	}
}

func (c *devicesCollector) sendBoard(out chan<- prometheus.Metric, g sampler.GPU) {
	send := func(e metric.Entry, value float64, more ...string) {
		e.Send(out, value, append(c.labels(g, g.Device), more...)...)
	}
	send(boardPower, g.PowerW)
	send(boardEnergy, scaled(g.Counters.EnergyMJ, 1e-3))
	send(boardTemperature, g.TemperatureC)
	for name, hertz := range g.Clocks {
		send(boardClock, hertz, name)
	}
	n := g.Counters
	send(boardThrottled, scaled(n.PowerCap, 1e-9), "power_cap")
	send(boardThrottled, scaled(n.SyncBoost, 1e-9), "sync_boost")
	send(boardThrottled, scaled(n.SoftwareThermal, 1e-9), "sw_thermal")
	send(boardThrottled, scaled(n.HardwareThermal, 1e-9), "hw_thermal")
	send(boardThrottled, scaled(n.PowerBrake, 1e-9), "power_brake")
	send(boardPCIe, scaled(n.PCIeSent, 1), "transmit")
	send(boardPCIe, scaled(n.PCIeReceived, 1), "receive")
	send(boardNVLink, scaled(n.NVLinkSent, 1), "transmit")
	send(boardNVLink, scaled(n.NVLinkReceived, 1), "receive")
}

// granted returns the memory that a claim has of the i-th device by one request. The request's shares of a device have
// the same labels, so they count together: first is false for the further ones. total is the memory of the device.
func granted(p plan.Plan, i int, total float64) (bytes float64, first bool) {
	d := p.Devices[i]
	if !d.Partial() {
		return total, true
	}
	for n, o := range p.Devices {
		if o.Request != d.Request || !o.Shares(d) {
			continue
		}
		if n < i {
			return 0, false
		}
		bytes += float64(cmp.Or(o.Share.UsableBytes, o.Share.MemoryBytes))
	}
	return bytes, true
}

// sendUsage writes the samples of a claim's device for one of its pods.
func sendUsage(out chan<- prometheus.Metric, u sampler.Use, granted float64, p plan.Plan, pod, node string) {
	labels := []string{p.Claim.Namespace, pod, p.Claim.Name, u.Request, u.Name, u.Measured.UUID, u.Model, node}
	claimMemoryGranted.Send(out, granted, labels...)
	claimMemoryUsed.Send(out, u.MemoryUsed, labels...)
	claimUtilization.Send(out, u.Utilization, labels...)
}
