// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	gpuusage "gpu-dra-driver/pkg/node/usage"
	"gpu-dra-driver/pkg/wire/metric"
)

var (
	gpuSeconds = metric.New("gpu_dra_gpu_seconds_total", "counter", []string{"uuid", "model", "state"},
		"Seconds of a GPU in a state: allocated to claims, free, unhealthy, or blocked (no claim can get it, because of other claims or a device plugin). A GPU that is in part allocated counts in part. The states add up to the time since the driver first saw the GPU, except for reboots.")
	claimAllocated = metric.New("gpu_dra_claim_allocated_gpu_seconds_total", "counter",
		[]string{"claim_namespace", "claim", "claim_uid", "gpu_uuid", "model"},
		"Seconds of whole GPUs that a prepared claim has had. A partition counts as its part of the memory slices, a share as the larger of its parts of memory and compute. A claim counts once, however many pods use it.")
	namespaceAllocated = metric.New("gpu_dra_namespace_allocated_gpu_seconds_total", "counter", []string{"claim_namespace", "model"},
		"Seconds of whole GPUs that the prepared claims of a namespace have had on the node, also of claims that end between two scrapes. Parts of GPUs count as in gpu_dra_claim_allocated_gpu_seconds_total. Absent after a day without a claim, or after 200 other namespaces had their last claim on the node.")
	claimActive = metric.New("gpu_dra_claim_active_gpu_seconds_total", "counter",
		append(slices.Clone(claimAllocated.Labels), "source"),
		"Seconds of whole GPUs, weighed as the allocated ones, in which the claim used its devices: the integral of their utilization. source is the measurement: nvml, or gpm for partitions. Absent for devices without a measurement, such as shares of a partition with other shares.")
	claimOccupied = metric.New("gpu_dra_claim_occupied_seconds_total", "counter", claimAllocated.Labels,
		"Seconds in which a process used the claim's devices on a GPU. Absent while the driver does not list processes, and for shares of a device with other shares without metadata files.")
)

// usageMetrics are the metrics of a gpuusage.Account.
var usageMetrics = []metric.Entry{gpuSeconds, namespaceAllocated, claimAllocated, claimActive, claimOccupied}

type usageCollector func() (gpuusage.Account, bool)

// CollectUsage adds the metrics of the account that read returns at each scrape; false means no data.
func (m *Metrics) CollectUsage(read func() (gpuusage.Account, bool)) {
	m.registry.MustRegister(usageCollector(read))
}

func (c usageCollector) Describe(out chan<- *prometheus.Desc) {
	metric.Describe(out, usageMetrics...)
}

func (c usageCollector) Collect(out chan<- prometheus.Metric) {
	account, ok := c()
	if !ok {
		return
	}
	for _, g := range account.GPUs {
		if g.Missing {
			continue // Perhaps it is gone for good.
		}
		for _, state := range gpuusage.States {
			gpuSeconds.Send(out, g.Seconds[state], g.UUID, g.Model, string(state))
		}
	}
	for name, namespace := range account.Namespaces {
		for model, seconds := range namespace.Seconds {
			namespaceAllocated.Send(out, seconds, name, model)
		}
	}
	for _, claim := range account.Claims {
		for _, use := range claim.GPUs {
			labels := []string{claim.Namespace, claim.Name, claim.UID, use.UUID, use.Model}
			claimAllocated.Send(out, use.Allocated, labels...)
			if use.Watched {
				claimOccupied.Send(out, use.Occupied, labels...)
			}
			if use.Source != "" {
				claimActive.Send(out, use.Active, append(labels, use.Source)...)
			}
		}
	}
}
