// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package usage counts the seconds in which the GPUs of a node are allocated, free, unhealthy and blocked, and those
// that each claim and namespace has.
//
// The counters are in memory and begin at zero with each plugin, as Prometheus expects of a counter. The time in which
// no plugin runs is counted nowhere. The seconds of a GPU's states add up to the time since the plugin first saw it.
//
// Traps. A claim is charged once, however many pods have it. During an upgrade two plugins count the same time, so only
// the newest reports it. A series that stopped growing would mean that the claim is idle, so one without a measurement
// ends.
package usage

import (
	"maps"
	"slices"
	"time"

	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/sampler"
	"gpu-dra-driver/pkg/wire/metric"
)

var (
	gpuSeconds = metric.New("gpu_dra_gpu_seconds_total", "counter", []string{"uuid", "model", "state"},
		"Seconds of a GPU in a state: allocated to claims, free, unhealthy, or blocked (no claim can get it, because "+
			"of other claims or a device plugin). A GPU that is in part allocated counts in part. The states add up "+
			"to the time since the plugin first saw the GPU.")
	claimAllocated = metric.New("gpu_dra_claim_allocated_gpu_seconds_total", "counter",
		[]string{"claim_namespace", "claim", "claim_uid", "gpu_uuid", "model"},
		"Seconds of whole GPUs that a prepared claim has had since the plugin's start. A partition counts as its "+
			"part of the memory slices, a share as the larger of its parts of memory and compute. A claim counts "+
			"once, however many pods use it.")
	namespaceAllocated = metric.New("gpu_dra_namespace_allocated_gpu_seconds_total", "counter",
		[]string{"claim_namespace", "model"},
		"Seconds of whole GPUs that the prepared claims of a namespace have had on the node, also of claims that end "+
			"between two scrapes. Parts of GPUs count as in gpu_dra_claim_allocated_gpu_seconds_total. Absent after "+
			"a day without a claim, or after 200 other namespaces had their last claim on the node.")
	claimActive = metric.New("gpu_dra_claim_active_gpu_seconds_total", "counter",
		append(slices.Clone(claimAllocated.Labels), "source"),
		"Seconds of whole GPUs, weighed as the allocated ones, in which the claim used its devices: the integral of "+
			"their utilization. source is the measurement: nvml, or gpm for partitions. Absent for devices without a "+
			"measurement, such as shares of a partition with other shares.")
	claimOccupied = metric.New("gpu_dra_claim_occupied_seconds_total", "counter", claimAllocated.Labels,
		"Seconds in which a process used the claim's devices on a GPU. Absent while the driver does not list "+
			"processes, and for shares of a device with other shares without metadata files.")
)

// Metrics are the metrics of a Meter.
var Metrics = []metric.Entry{gpuSeconds, namespaceAllocated, claimAllocated, claimActive, claimOccupied}

// series identifies a counter by its metric and the values of its labels.
type series struct {
	metric *metric.Entry
	labels [6]string
}

func of(m *metric.Entry, labels ...string) series {
	s := series{metric: m}
	copy(s.labels[:], labels)
	return s
}

// observation is the node at one moment.
type observation struct {
	snapshot gpu.Snapshot
	// plans has a plan for each claim on the node.
	plans []plan.Plan
	// served are the GPUs that device plugins serve, by PCI address.
	served map[string]string
	// uses are the measured devices, by the positions of plan and device.
	uses map[[2]int]sampler.Use
}

// counters are the sums of a node.
type counters struct {
	// boards are as last scanned, by PCI address. A new board in a slot replaces the earlier one.
	boards map[string]gpu.GPU
	sums   map[series]float64
	// rates has the gain of each series in a second, since at.
	rates map[series]float64
	at    time.Time
	// namespaces have the time of their last claim.
	namespaces map[string]time.Time
}

func newCounters() counters {
	return counters{boards: map[string]gpu.GPU{}, sums: map[series]float64{}, namespaces: map[string]time.Time{}}
}

// longestStep is the most time that one step counts. A node that was suspended used no GPU, and a clock can jump.
const longestStep = time.Minute

// keepNamespace and keepNamespaces limit the sums of namespaces that exist for a short time each. A tenant can create
// thousands a day, and each is a series of a metric.
const (
	keepNamespace  = 24 * time.Hour
	keepNamespaces = 200
)

// advance counts the time since the last call with the rates of then, and stores those of now. A new series begins at
// zero.
func (c *counters) advance(at time.Time, o observation) {
	elapsed := max(0, min(longestStep, at.Sub(c.at))).Seconds()
	for s, rate := range c.rates {
		c.sums[s] += elapsed * rate
	}
	c.at = at
	c.see(o)
	c.rates = c.ratesOf(o)
	for s := range c.rates {
		c.sums[s] += 0
	}
	c.forget()
	maps.DeleteFunc(c.sums, func(s series, _ float64) bool {
		_, grows := c.rates[s]
		_, known := c.namespaces[s.labels[0]]
		return !grows && !(known && s.metric == &namespaceAllocated)
	})
}

// see stores the boards of a scan. Profiles that it could not read are taken from an earlier one. A board that only a
// claim names is missing.
func (c *counters) see(o observation) {
	for _, g := range o.snapshot.GPUs {
		if known := c.boards[g.PCIAddress]; known.UUID == g.UUID && len(g.MIG.Profiles) == 0 {
			g.MIG.Profiles = known.MIG.Profiles
		}
		c.boards[g.PCIAddress] = g
	}
	for _, p := range o.plans {
		c.namespaces[p.Claim.Namespace] = c.at
		for _, d := range p.Devices {
			if _, known := c.boards[d.PCIAddress]; !known {
				c.boards[d.PCIAddress] = gpu.GPU{PCIAddress: d.PCIAddress, UUID: d.UUID, ProductName: d.ProductName}
			}
		}
	}
}

// forget removes namespaces that have had no claim for long, and the longest ones above the limit.
func (c *counters) forget() {
	past, last := 0, c.namespaces
	for _, name := range slices.SortedFunc(maps.Keys(last), func(x, y string) int { return last[y].Compare(last[x]) }) {
		if last[name].Before(c.at) {
			past++
		}
		if past > keepNamespaces || c.at.Sub(last[name]) >= keepNamespace {
			delete(last, name)
		}
	}
}
