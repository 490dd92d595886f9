// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu/sampler"
)

// Samples returns the last measurements of the node's GPUs.
type Samples func() sampler.Snapshot

var deviceLabels = []string{"node", "type", "device", "uuid", "gpu_uuid", "model"}

func deviceEntry(name, kind, help string, more ...string) Entry {
	return Entry{"gpu_dra_device_" + name, kind, slices.Concat(deviceLabels, more), help}
}

// The metrics of boards and partitions.
var (
	ofPart = []struct {
		Entry
		value func(sampler.Device) float64
	}{
		{deviceEntry("utilization_ratio", "gauge", "Part of the time in which a kernel ran on the device. Absent for a partition of a GPU before Hopper, which cannot measure it."),
			func(d sampler.Device) float64 { return d.Utilization }},
		{deviceEntry("sm_active_ratio", "gauge", "Part of the device's multiprocessors in use, on average. From Hopper on."),
			func(d sampler.Device) float64 { return d.SM }},
		{deviceEntry("tensor_active_ratio", "gauge", "Part of the device's tensor cores in use, on average. From Hopper on."),
			func(d sampler.Device) float64 { return d.Tensor }},
		{deviceEntry("dram_active_ratio", "gauge", "Part of the device's memory bandwidth in use, on average. From Hopper on."),
			func(d sampler.Device) float64 { return d.DRAM }},
		{deviceEntry("memory_used_bytes", "gauge", "Memory of the device that processes use, without the driver's own."),
			func(d sampler.Device) float64 { return d.MemoryUsed }},
		{deviceEntry("memory_total_bytes", "gauge", "Memory of the device, with the driver's own."),
			func(d sampler.Device) float64 { return d.MemoryTotal }},
		{deviceEntry("processes", "gauge", "Processes that use the device."), func(d sampler.Device) float64 {
			if d.Processes == nil {
				return sampler.Absent
			}
			return float64(len(d.Processes))
		}},
	}
	ofBoard = []struct {
		Entry
		value func(sampler.GPU) map[string]float64
	}{
		{deviceEntry("power_watts", "gauge", "Power of the board."), single(func(g sampler.GPU) float64 { return g.PowerW })},
		{deviceEntry("energy_joules_total", "counter", "Energy of the board since the driver was loaded."),
			single(func(g sampler.GPU) float64 { return scaled(g.Counters.EnergyMJ, 1e-3) })},
		{deviceEntry("temperature_celsius", "gauge", "Temperature of the GPU."), single(func(g sampler.GPU) float64 { return g.TemperatureC })},
		{deviceEntry("clock_hertz", "gauge", "Frequency of a clock: graphics, sm, memory or video.", "clock"),
			func(g sampler.GPU) map[string]float64 { return g.Clocks }},
		{deviceEntry("throttled_seconds_total", "counter", "Time with reduced clocks since the driver was loaded, by reason.", "reason"),
			func(g sampler.GPU) map[string]float64 {
				c := g.Counters
				return map[string]float64{
					"power_cap": scaled(c.PowerCap, 1e-9), "sync_boost": scaled(c.SyncBoost, 1e-9), "sw_thermal": scaled(c.SoftwareThermal, 1e-9),
					"hw_thermal": scaled(c.HardwareThermal, 1e-9), "power_brake": scaled(c.PowerBrake, 1e-9),
				}
			}},
		{deviceEntry("pcie_bytes_total", "counter", "Bytes over PCIe. The driver's counter can wrap, which looks like a restart.", "direction"),
			func(g sampler.GPU) map[string]float64 {
				return directions(g.Counters.PCIeSent, g.Counters.PCIeReceived)
			}},
		{deviceEntry("nvlink_bytes_total", "counter", "Bytes over all NVLinks of the GPU.", "direction"),
			func(g sampler.GPU) map[string]float64 {
				return directions(g.Counters.NVLinkSent, g.Counters.NVLinkReceived)
			}},
	}
	claimLabels      = []string{"namespace", "pod", "claim", "request", "device", "uuid", "model", "node"}
	claimUtilization = Entry{"gpu_dra_claim_utilization_ratio", "gauge", claimLabels,
		"Part of the time in which a kernel ran on a claim's device. For a share of a device with other shares: the part of the device that the claim's processes use. Absent where it cannot be measured: for partitions before Hopper, for shares of a partition with other shares, and for such shares of a GPU without metadata files."}
	claimMemoryUsed = Entry{"gpu_dra_claim_memory_used_bytes", "gauge", claimLabels,
		"Memory that processes use on a claim's device. For a share of a device with other shares: the memory of the claim's processes. Absent for such shares without metadata files."}
	claimMemoryGranted = Entry{"gpu_dra_claim_memory_granted_bytes", "gauge", claimLabels,
		"Memory of a claim's device, or of its share of one."}
	lastSample = Entry{"gpu_dra_last_sample_timestamp_seconds", "gauge", nil,
		"Unix time of the last measurement of GPUs. 0 while none are measured: no claim is prepared, or NVML does not answer."}
)

// deviceCatalogue lists the metrics of measurements.
func deviceCatalogue() []Entry {
	out := []Entry{claimUtilization, claimMemoryUsed, claimMemoryGranted, lastSample}
	for _, e := range ofPart {
		out = append(out, e.Entry)
	}
	for _, e := range ofBoard {
		out = append(out, e.Entry)
	}
	return out
}

func single(value func(sampler.GPU) float64) func(sampler.GPU) map[string]float64 {
	return func(g sampler.GPU) map[string]float64 { return map[string]float64{"": value(g)} }
}

func scaled(n int64, factor float64) float64 {
	if n < 0 {
		return sampler.Absent
	}
	return float64(n) * factor
}

func directions(sent, received int64) map[string]float64 {
	return map[string]float64{"transmit": scaled(sent, 1), "receive": scaled(received, 1)}
}

// devicesCollector serves the last measurements; it makes no call of NVML.
type devicesCollector struct {
	samples Samples
	node    string
}

func (c *devicesCollector) Describe(out chan<- *prometheus.Desc) {
	for _, e := range deviceCatalogue() {
		if !slices.Equal(e.Labels, claimLabels) {
			out <- e.desc()
		}
	}
}

// Collect implements prometheus.Collector.
func (c *devicesCollector) Collect(out chan<- prometheus.Metric) {
	s := c.samples()
	at := 0.0
	if !s.At.IsZero() {
		at = float64(s.At.UnixMilli()) / 1000
	}
	lastSample.send(out, at)
	for _, g := range s.GPUs {
		for _, d := range append([]sampler.Device{g.Device}, g.Partitions...) {
			for _, e := range ofPart {
				e.send(out, e.value(d), c.labels(g, d)...)
			}
		}
		for _, e := range ofBoard {
			values := e.value(g)
			for _, name := range slices.Sorted(maps.Keys(values)) {
				labels := c.labels(g, g.Device)
				if name != "" {
					labels = append(labels, name)
				}
				e.send(out, values[name], labels...)
			}
		}
	}
}

func (c *devicesCollector) labels(g sampler.GPU, d sampler.Device) []string {
	return []string{c.node, string(d.Kind), d.Name, d.UUID, g.UUID, g.Model}
}

// granted returns the memory that a claim has of the i-th device by one request. The request's shares of a device have the
// same labels, so they count together: first is false for the further ones. total is the memory of the device.
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
	claimMemoryGranted.send(out, granted, labels...)
	claimMemoryUsed.send(out, u.MemoryUsed, labels...)
	claimUtilization.send(out, u.Utilization, labels...)
}
