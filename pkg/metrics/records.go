// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"gpu-dra-driver/pkg/plan"
)

// Records is what the engine knows of prepared claims.
type Records interface {
	Held() (plans []plan.Plan, incomplete bool, err error)
	Quarantined() (int, error)
}

// recordsCollector reads the records at each scrape.
type recordsCollector struct {
	records               Records
	node, driver          string
	prepared, quarantined *prometheus.Desc
}

func newRecordsCollector(r Records, node, driver string) *recordsCollector {
	return &recordsCollector{
		records: r, node: node, driver: driver,
		prepared:    prometheus.NewDesc(preparedDevices.Name, preparedDevices.Help, preparedDevices.Labels, nil),
		quarantined: prometheus.NewDesc(quarantinedRecords.Name, quarantinedRecords.Help, nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *recordsCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.prepared
	out <- c.quarantined
}

// Collect implements prometheus.Collector. Records that cannot be read are an error of the scrape, not a zero.
func (c *recordsCollector) Collect(out chan<- prometheus.Metric) {
	plans, _, err := c.records.Held()
	if err != nil {
		out <- prometheus.NewInvalidMetric(c.prepared, err)
	} else {
		count := map[string]int{"gpu": 0}
		for _, p := range plans {
			for i, d := range p.Devices {
				if !p.Continues(i) {
					count[string(d.Kind)]++
				}
			}
		}
		for kind, n := range count {
			out <- prometheus.MustNewConstMetric(c.prepared, prometheus.GaugeValue, float64(n), c.node, c.driver, kind)
		}
	}
	n, err := c.records.Quarantined()
	if err != nil {
		out <- prometheus.NewInvalidMetric(c.quarantined, err)
		return
	}
	out <- prometheus.MustNewConstMetric(c.quarantined, prometheus.GaugeValue, float64(n))
}
