// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire/metric"
)

// Stuck has the partitions of ended claims that NVML does not destroy.
type Stuck interface {
	// Stuck returns them by PCI address.
	Stuck() (map[string][]gpu.Partition, error)
}

// CollectStuck adds the metric of stuck partitions, whose records each scrape reads.
func (m *Metrics) CollectStuck(s Stuck) { m.registry.MustRegister(stuckCollector{s}) }

type stuckCollector struct{ Stuck }

func (stuckCollector) Describe(out chan<- *prometheus.Desc) { metric.Describe(out, stuckPartitions) }

// Collect implements prometheus.Collector. Unreadable records fail the scrape instead of counting as zero.
func (c stuckCollector) Collect(out chan<- prometheus.Metric) {
	all, err := c.Stuck.Stuck()
	if err != nil {
		out <- stuckPartitions.Invalid(err)
		return
	}
	n := 0
	for _, partitions := range all {
		n += len(partitions)
	}
	stuckPartitions.Send(out, float64(n))
}

// Holders have idle GPUs open, which keeps their MIG modes from being switched on.
type Holders interface {
	// Holders returns their names by PCI address.
	Holders() map[string]string
}

// CollectHolders adds the metric of the holders. A scrape asks no process.
func (m *Metrics) CollectHolders(h Holders, scans gpu.Scans) {
	m.registry.MustRegister(holdersCollector{h, scans})
}

type holdersCollector struct {
	Holders
	scans gpu.Scans
}

func (holdersCollector) Describe(out chan<- *prometheus.Desc) { metric.Describe(out, migHolders) }

// Collect implements prometheus.Collector.
func (c holdersCollector) Collect(out chan<- prometheus.Metric) {
	snapshot := c.scans.Snapshot()
	for address, name := range c.Holders.Holders() {
		if g, ok := snapshot.ByAddress(address); ok {
			migHolders.Send(out, 1, g.UUID, name)
		}
	}
}
