// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
	"gpu-dra-driver/pkg/wire/metric"
)

// Readings returns the last answer of the driver about the GPU at a PCI address, and its UUID.
type Readings func(address string) (uuid string, r health.Reading, ok bool)

// CollectHealth adds the metrics of the GPUs' health, as of the last scan. A scrape asks no GPU. A GPU of the records
// that the driver no longer lists is lost.
func (m *Metrics) CollectHealth(scans gpu.Scans, records Records, last Readings) {
	m.registry.MustRegister(&healthCollector{scans, records, last, m.node})
}

type healthCollector struct {
	scans   gpu.Scans
	records Records
	last    Readings
	node    string
}

func (c *healthCollector) Describe(out chan<- *prometheus.Desc) {
	metric.Describe(out, gpuInfo, deviceHealth, driverLoaded, recoveryAction, eccErrors, remappedRows)
}

// Collect implements prometheus.Collector. A GPU that cannot be read has its state only.
func (c *healthCollector) Collect(out chan<- prometheus.Metric) {
	s := c.scans.Snapshot()
	loaded := 0.0
	if s.Driver.Version != "" {
		loaded = 1
	}
	driverLoaded.Send(out, loaded)
	for _, g := range s.GPUs {
		c.name(out, g.PCIAddress, g.UUID, g.ProductName)
		for _, state := range states(g) {
			deviceHealth.Send(out, 1, g.UUID, state)
		}
		uuid, r, ok := c.last(g.PCIAddress)
		if !ok || uuid != g.UUID {
			continue
		}
		recoveryAction.Send(out, float64(r.Recovery), g.UUID)
		eccErrors.Send(out, float64(r.Corrected), g.UUID, "corrected")
		eccErrors.Send(out, float64(r.Uncorrected), g.UUID, "uncorrected")
		remappedRows.Send(out, float64(r.CorrectedRows), g.UUID, "corrected")
		remappedRows.Send(out, float64(r.UncorrectedRows), g.UUID, "uncorrected")
	}
	unread := map[string]bool{}
	plans, _, _ := c.records.Held() // The engine reports unreadable records.
	for _, p := range slices.Concat(s.Problems, plan.Gone(s, plans)) {
		uuid, state := p.UUID, "unreadable"
		if known, _, ok := c.last(p.PCIAddress); ok && uuid == "" {
			uuid = known
		}
		if p.Lost {
			state = health.Lost
		}
		if uuid != "" && !unread[uuid] {
			unread[uuid] = true
			c.name(out, p.PCIAddress, uuid, "")
			deviceHealth.Send(out, 1, uuid, state)
		}
	}
}

// name sends the names of a GPU. The model of one that cannot be read is unknown.
func (c *healthCollector) name(out chan<- prometheus.Metric, address, uuid, model string) {
	gpuInfo.Send(out, 1, c.node, gpu.NameOf(address), uuid, model)
}

// states returns the states and advice of a GPU that was read, now or before it hung.
func states(g gpu.GPU) (out []string) {
	if g.Silent {
		out = append(out, "unreadable")
	}
	for _, f := range g.Faults {
		out = append(out, f.State)
	}
	if len(out) == 0 {
		out = append(out, "healthy")
	}
	for _, a := range g.Advice {
		out = append(out, a.State)
	}
	if g.Unmonitored != "" {
		out = append(out, "unmonitored")
	}
	return out
}
