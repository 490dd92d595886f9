// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

// The units of Grafana.
const (
	plain, percent, seconds, money = "short", "percentunit", "s", "none"
	size, rate, watts, celsius     = "bytes", "binBps", "watt", "celsius"
)

var model = variable{"model", "label_values(gpu_dra_gpu_seconds_total, model)"}

var namespace = variable{"namespace", "label_values(gpu_dra_claim_device_info, claim_namespace)"}

var node = variable{"node", "label_values(nvidia_dra_prepared_devices, node)"}

// recent is how much a counter grew in 10 minutes. increase() does not count the first event, with which a series begins. A
// scrape 10 minutes ago can have failed.
func recent(counter string) string {
	return "((" + counter + " - last_over_time(" + counter + "[1h] offset 10m)) >= 0 or " + counter + ")"
}

// holding joins a measurement of boards with the pods of a claim that has a GPU alone.
func holding(metric string) string {
	return `(max by (claim_namespace, pod, gpu_uuid) (gpu_dra_claim_device_info{claim_namespace=~"$namespace", pod!="", type=~"gpu|nvlink-group"})` +
		` and on (gpu_uuid) (count by (gpu_uuid) (count by (gpu_uuid, claim_uid) (gpu_dra_claim_device_info)) == 1))` +
		` * on (gpu_uuid) group_left () max by (gpu_uuid) (` + metric + `{type="gpu"})`
}

// price turns GPUs by model into their cost.
const price = " * on (model) group_left () max by (model) (gpu_dra_gpu_hourly_cost)"

var dashboards = []dashboard{
	{name: "fleet", title: "GPUs / Fleet", variables: []variable{model}, panels: []panel{
		{title: "GPUs by state", unit: plain, description: "Parts of GPUs count in part.", queries: []query{
			{`sum by (state) (rate(gpu_dra_gpu_seconds_total{model=~"$model"}[$__rate_interval]))`, "{{state}}"},
		}},
		{title: "Allocated part of all GPUs", unit: percent, queries: []query{
			{`sum by (model) (rate(gpu_dra_gpu_seconds_total{model=~"$model", state="allocated"}[$__rate_interval])) / sum by (model) (rate(gpu_dra_gpu_seconds_total{model=~"$model"}[$__rate_interval]))`, "{{model}}"},
		}},
		{title: "Nodes with GPUs", unit: plain, queries: []query{{`sum(gpu_dra_cluster_nodes)`, "nodes"}}},
		{title: "Free GPUs", unit: plain, description: "GPUs that are free as a whole.", queries: []query{
			{`sum by (model) (gpu_dra_cluster_free_gpus{model=~"$model"})`, "{{model}}"},
		}},
		{title: "Claims", unit: plain, queries: []query{{`sum by (phase) (gpu_dra_cluster_claims)`, "{{phase}}"}}},
		{title: "Largest free NVLink group", unit: plain, queries: []query{
			{`max by (model) (gpu_dra_cluster_largest_free_group_gpus{model=~"$model"})`, "{{model}}"},
		}},
		{title: "Free MIG placements", unit: plain, description: "Placements can overlap.", queries: []query{
			{`sum by (model, profile) (gpu_dra_cluster_free_placements{model=~"$model"})`, "{{model}} {{profile}}"},
		}},
		{title: "Free memory in small pieces", unit: percent, queries: []query{
			{`max by (model) (gpu_dra_cluster_fragmentation_ratio{model=~"$model"})`, "{{model}}"},
		}},
	}},
	{name: "nodes", title: "GPUs / Nodes", variables: []variable{node}, panels: []panel{
		{title: "Who holds each GPU", unit: plain, table: true, labelsOnly: true, queries: []query{
			{`sum by (gpu_uuid, type, device, claim_namespace, claim, pod) (gpu_dra_claim_device_info * on (gpu_uuid) group_left () max by (gpu_uuid) (gpu_dra_device_memory_total_bytes{node=~"$node", type="gpu"} > bool 0))`, ""},
		}},
		{title: "Parts of each GPU", unit: plain, queries: []query{
			{`sum by (uuid, state) (rate(gpu_dra_gpu_seconds_total[$__rate_interval]))`, "{{uuid}} {{state}}"},
		}},
		{title: "Utilization of GPUs and partitions", unit: percent, description: "Partitions of GPUs before Hopper have none.", queries: []query{
			{`max by (node, device) (gpu_dra_device_utilization_ratio{node=~"$node"})`, "{{node}} {{device}}"},
		}},
		{title: "Multiprocessors, tensor cores and memory bandwidth in use", unit: percent, description: "From Hopper on.", queries: []query{
			{`max by (node, device) (gpu_dra_device_sm_active_ratio{node=~"$node"})`, "{{node}} {{device}} multiprocessors"},
			{`max by (node, device) (gpu_dra_device_tensor_active_ratio{node=~"$node"})`, "{{node}} {{device}} tensor cores"},
			{`max by (node, device) (gpu_dra_device_dram_active_ratio{node=~"$node"})`, "{{node}} {{device}} memory bandwidth"},
		}},
		{title: "Used memory of GPUs and partitions", unit: percent, queries: []query{
			{`max by (node, device) (gpu_dra_device_memory_used_bytes{node=~"$node"}) / max by (node, device) (gpu_dra_device_memory_total_bytes{node=~"$node"})`, "{{node}} {{device}}"},
		}},
		{title: "Power of GPUs", unit: watts, queries: []query{
			{`max by (node, device) (gpu_dra_device_power_watts{node=~"$node"})`, "{{node}} {{device}}"},
		}},
		{title: "Temperature of GPUs", unit: celsius, queries: []query{
			{`max by (node, device) (gpu_dra_device_temperature_celsius{node=~"$node"})`, "{{node}} {{device}}"},
		}},
		{title: "Bytes over PCIe and NVLink", unit: rate, queries: []query{
			{`sum by (node, device, direction) (rate(gpu_dra_device_pcie_bytes_total{node=~"$node"}[$__rate_interval]))`, "{{node}} {{device}} PCIe {{direction}}"},
			{`sum by (node, device, direction) (rate(gpu_dra_device_nvlink_bytes_total{node=~"$node"}[$__rate_interval]))`, "{{node}} {{device}} NVLink {{direction}}"},
		}},
		{title: "Prepared devices", unit: plain, queries: []query{
			{`sum by (node, device_type) (max by (node, driver, device_type) (nvidia_dra_prepared_devices{node=~"$node"}))`, "{{node}} {{device_type}}"},
		}},
		{title: "Published devices", unit: plain, queries: []query{{`sum by (instance, type) (gpu_dra_published_devices)`, "{{instance}} {{type}}"}}},
		{title: "Time to prepare a claim's devices (99 %)", unit: seconds, queries: []query{
			{`histogram_quantile(0.99, sum by (le, operation) (rate(nvidia_dra_request_duration_seconds_bucket[$__rate_interval])))`, "{{operation}}"},
		}},
		{title: "Calls of the kubelet", unit: plain, queries: []query{
			{`sum by (operation, result) (rate(nvidia_dra_requests_total[$__rate_interval]))`, "{{operation}} {{result}}"},
		}},
	}},
	{name: "claims", title: "GPUs / Claims and pods", variables: []variable{namespace}, panels: []panel{
		{title: "Allocated GPUs by namespace", unit: plain, queries: []query{
			{`sum by (claim_namespace) (rate(gpu_dra_namespace_allocated_gpu_seconds_total{claim_namespace=~"$namespace"}[$__rate_interval]))`, "{{claim_namespace}}"},
		}},
		{title: "Allocated GPUs by claim", unit: plain, queries: []query{
			{`sum by (claim_namespace, claim) (rate(gpu_dra_claim_allocated_gpu_seconds_total{claim_namespace=~"$namespace"}[$__rate_interval]))`, "{{claim_namespace}}/{{claim}}"},
		}},
		{title: "Utilization of pods' devices", unit: percent, description: "Of a share beside others: the used part of the whole device. Such shares of partitions have none.", queries: []query{
			{`max by (namespace, pod, device) (gpu_dra_claim_utilization_ratio{namespace=~"$namespace"})`, "{{namespace}}/{{pod}} {{device}}"},
		}},
		{title: "Used part of pods' memory", unit: percent, queries: []query{
			{`sum by (namespace, pod) (gpu_dra_claim_memory_used_bytes{namespace=~"$namespace"}) / sum by (namespace, pod) (gpu_dra_claim_memory_granted_bytes{namespace=~"$namespace"})`, "{{namespace}}/{{pod}}"},
		}},
		{title: "Power of pods that have GPUs alone", unit: watts, queries: []query{
			{"sum by (claim_namespace, pod) (" + holding("gpu_dra_device_power_watts") + ")", "{{claim_namespace}}/{{pod}}"},
		}},
		{title: "Temperature of GPUs that pods have alone", unit: celsius, queries: []query{
			{"max by (claim_namespace, pod) (" + holding("gpu_dra_device_temperature_celsius") + ")", "{{claim_namespace}}/{{pod}}"},
		}},
		{title: "Devices of claims and pods", unit: plain, table: true, labelsOnly: true, queries: []query{
			{`sum by (claim_namespace, claim, pod, container, type, device, uuid) (gpu_dra_claim_device_info{claim_namespace=~"$namespace"})`, ""},
		}},
		{title: "GPU hours of claims", unit: plain, table: true, description: "Of claims that exist.", queries: []query{
			{`sum by (claim_namespace, claim, model) (gpu_dra_claim_allocated_gpu_seconds_total{claim_namespace=~"$namespace"}) / 3600`, ""},
		}},
	}},
	{name: "health", title: "GPUs / Health", panels: []panel{
		{title: "Unhealthy parts of GPUs", unit: plain, queries: []query{
			{`sum by (uuid, model) (rate(gpu_dra_gpu_seconds_total{state="unhealthy"}[$__rate_interval]))`, "{{uuid}} {{model}}"},
		}},
		{title: "XIDs in 10 minutes", unit: plain, queries: []query{
			{"sum by (uuid, xid) " + recent("gpu_dra_xid_errors_total"), "{{uuid}} {{xid}}"},
		}},
		{title: "States of GPUs", unit: plain, table: true, labelsOnly: true, queries: []query{{`max by (uuid, state) (gpu_dra_device_health)`, ""}}},
		{title: "Recovery action of the driver", unit: plain, description: "0 is none.", queries: []query{
			{`max by (uuid) (gpu_dra_device_recovery_action)`, "{{uuid}}"},
		}},
		{title: "Time with reduced clocks", unit: percent, description: "Of each second.", queries: []query{
			{`clamp_max(sum by (node, device, reason) (rate(gpu_dra_device_throttled_seconds_total[$__rate_interval])), 1)`, "{{node}} {{device}} {{reason}}"},
		}},
		{title: "Errors of the memory", unit: plain, description: "Since the driver was loaded.", queries: []query{
			{`max by (uuid, type) (gpu_dra_device_ecc_errors_total)`, "{{uuid}} {{type}}"},
		}},
		{title: "Replaced rows of the memory", unit: plain, queries: []query{
			{`max by (uuid, cause) (gpu_dra_device_remapped_rows)`, "{{uuid}} {{cause}}"},
		}},
		{title: "Time since the last publishing", unit: seconds, queries: []query{
			{`time() - max by (instance) (gpu_dra_last_publish_timestamp_seconds > 0)`, "{{instance}}"},
		}},
		{title: "Failed preparations and releases in 10 minutes", unit: plain, queries: []query{
			{"sum by (error_type) " + recent("nvidia_dra_node_prepare_errors_total"), "prepare {{error_type}}"},
			{"sum by (error_type) " + recent("nvidia_dra_node_unprepare_errors_total"), "unprepare {{error_type}}"},
		}},
		{title: "Background errors in 10 minutes", unit: plain, queries: []query{
			{"sum by (reason) " + recent("gpu_dra_background_errors_total"), "{{reason}}"},
		}},
		{title: "Quarantined records", unit: plain, queries: []query{{`sum by (instance) (gpu_dra_quarantined_records)`, "{{instance}}"}}},
	}},
	{name: "cost", title: "GPUs / Cost", panels: []panel{
		{title: "Cost an hour by namespace", unit: money, queries: []query{
			{`sum by (claim_namespace) (sum by (claim_namespace, model) (rate(gpu_dra_namespace_allocated_gpu_seconds_total[$__rate_interval]))` + price + `)`, "{{claim_namespace}}"},
		}},
		{title: "Cost an hour by state", unit: money, description: "free is paid for and unallocated.", queries: []query{
			{`sum by (state) (sum by (model, state) (rate(gpu_dra_gpu_seconds_total[$__rate_interval]))` + price + `)`, "{{state}}"},
		}},
		{title: "Cost in the time range, by namespace", unit: money, table: true, queries: []query{
			{`sum by (claim_namespace) (sum by (claim_namespace, model) (increase(gpu_dra_namespace_allocated_gpu_seconds_total[$__range])) / 3600` + price + `)`, ""},
		}},
		{title: "Held GPUs without a process", unit: plain, queries: []query{
			{`sum by (claim_namespace) (rate(gpu_dra_claim_allocated_gpu_seconds_total[$__rate_interval]) * (1 - rate(gpu_dra_claim_occupied_seconds_total[$__rate_interval])))`, "{{claim_namespace}}"},
		}},
		{title: "Held GPUs that are not in use", unit: plain, description: "Of GPUs with processes too. Partitions of GPUs before Hopper, and shares of partitions beside others, are not known.", queries: []query{
			{`sum by (claim_namespace) (rate(gpu_dra_claim_allocated_gpu_seconds_total[$__rate_interval]) - ignoring (source) rate(gpu_dra_claim_active_gpu_seconds_total[$__rate_interval]))`, "{{claim_namespace}}"},
		}},
		{title: "Most expensive claims", unit: money, table: true, queries: []query{
			{`topk(10, sum by (claim_namespace, claim) (sum by (claim_namespace, claim, model) (gpu_dra_claim_allocated_gpu_seconds_total) / 3600` + price + `))`, ""},
		}},
	}},
}
