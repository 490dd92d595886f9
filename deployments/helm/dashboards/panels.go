// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

// The units of Grafana.
const (
	plain, percent, seconds, money = "short", "percentunit", "s", "none"
)

var model = variable{"model", "label_values(gpu_dra_gpu_seconds_total, model)"}

var namespace = variable{"namespace", "label_values(gpu_dra_claim_device_info, claim_namespace)"}

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
	{name: "nodes", title: "GPUs / Nodes", panels: []panel{
		{title: "Prepared devices", unit: plain, queries: []query{
			{`sum by (node, device_type) (nvidia_dra_prepared_devices)`, "{{node}} {{device_type}}"},
		}},
		{title: "Published devices", unit: plain, queries: []query{{`sum by (instance, type) (gpu_dra_published_devices)`, "{{instance}} {{type}}"}}},
		{title: "Time to prepare a claim's devices (99 %)", unit: seconds, queries: []query{
			{`histogram_quantile(0.99, sum by (le, operation) (rate(nvidia_dra_request_duration_seconds_bucket[$__rate_interval])))`, "{{operation}}"},
		}},
		{title: "Calls of the kubelet", unit: plain, queries: []query{
			{`sum by (operation, result) (rate(nvidia_dra_requests_total[$__rate_interval]))`, "{{operation}} {{result}}"},
		}},
		{title: "Parts of each GPU", unit: plain, queries: []query{
			{`sum by (uuid, state) (rate(gpu_dra_gpu_seconds_total[$__rate_interval]))`, "{{uuid}} {{state}}"},
		}},
		{title: "Who holds each GPU", unit: plain, table: true, queries: []query{
			{`sum by (gpu_uuid, type, device, claim_namespace, claim, pod) (gpu_dra_claim_device_info)`, ""},
		}},
	}},
	{name: "claims", title: "GPUs / Claims and pods", variables: []variable{namespace}, panels: []panel{
		{title: "Allocated GPUs by namespace", unit: plain, queries: []query{
			{`sum by (claim_namespace) (rate(gpu_dra_namespace_allocated_gpu_seconds_total{claim_namespace=~"$namespace"}[$__rate_interval]))`, "{{claim_namespace}}"},
		}},
		{title: "Allocated GPUs by claim", unit: plain, queries: []query{
			{`sum by (claim_namespace, claim) (rate(gpu_dra_claim_allocated_gpu_seconds_total{claim_namespace=~"$namespace"}[$__rate_interval]))`, "{{claim_namespace}}/{{claim}}"},
		}},
		{title: "Devices of claims and pods", unit: plain, table: true, queries: []query{
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
			{`sum by (uuid, xid) (increase(gpu_dra_xid_errors_total[10m]))`, "{{uuid}} {{xid}}"},
		}},
		{title: "Time since the last publishing", unit: seconds, queries: []query{
			{`time() - max by (instance) (gpu_dra_last_publish_timestamp_seconds > 0)`, "{{instance}}"},
		}},
		{title: "Failed preparations and releases", unit: plain, queries: []query{
			{`sum by (error_type) (increase(nvidia_dra_node_prepare_errors_total[$__rate_interval]))`, "prepare {{error_type}}"},
			{`sum by (error_type) (increase(nvidia_dra_node_unprepare_errors_total[$__rate_interval]))`, "unprepare {{error_type}}"},
		}},
		{title: "Background errors", unit: plain, queries: []query{
			{`sum by (reason) (increase(gpu_dra_background_errors_total[$__rate_interval]))`, "{{reason}}"},
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
		{title: "Most expensive claims", unit: money, table: true, queries: []query{
			{`topk(10, sum by (claim_namespace, claim) (sum by (claim_namespace, claim, model) (gpu_dra_claim_allocated_gpu_seconds_total) / 3600` + price + `))`, ""},
		}},
	}},
}
