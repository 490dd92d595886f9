// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "strings"

// The units of Grafana.
const (
	plain, percent, seconds = "short", "percentunit", "s"
	// The chart replaces the currency with that of its values.
	money                      = "currencyUSD"
	size, rate, watts, celsius = "bytes", "binBps", "watt", "celsius"
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

// price turns GPUs by cluster and model into their cost an hour.
const price = " * on (cluster, model) group_left () max by (cluster, model) (gpu_dra_gpu_hourly_cost)"

// named adds the node and the device to series of GPUs, which have the labels cluster and `uuid`. `onNode` adds the node to series of a
// plugin, which have the labels cluster and instance.
func named(expr string) string {
	return "(" + expr + ") * on (cluster, uuid) group_left (node, device) topk by (cluster, uuid) (1, gpu_dra_gpu_info)"
}

func onNode(expr string) string {
	return "(" + expr + ") * on (cluster, instance) group_left (node) group by (cluster, instance, node) (gpu_dra_gpu_info)"
}

// everIn selects the GPUs of which a series was above 0 at any time of the dashboard's range.
func everIn(metric string) string {
	return " and on (cluster, uuid) max by (cluster, uuid) (max_over_time(" + metric + "[$__range] @ end())) > 0"
}

// ranked are the series with the highest means of the time range. They are chosen once for the range, so that lines do not begin and end
// with their places in the list.
func ranked(expr string) string {
	return "topk(20, avg_over_time((" + expr + ")[$__range:$__rate_interval] @ end()))"
}

// highest limits a graph to what a browser can draw of a fleet, and aboveZero to series that were above 0 in the range.
func highest(expr string) string { return "(" + expr + ") and " + ranked(expr) }

func aboveZero(expr string) string { return highest(expr) + " > 0" }

// orNone adds one line at 0 if nothing is shown of what is measured.
func orNone(shown, measured string) string {
	return "(" + shown + ") or on () label_replace(0 * sum(" + measured + `), "device", "all GPUs", "", "")`
}

// orZero is 0 instead of no sample, as long as the other metric has one: a count of nothing differs from no answer.
func orZero(expr, other string) string { return "(" + expr + ") or 0 * sum(" + other + ")" }

// idle are the GPUs that claims hold and do not use, by labels.
func idle(by, filter string) string {
	return "sum by (" + by + ") (rate(gpu_dra_claim_allocated_gpu_seconds_total" + filter + "[$__rate_interval])" +
		" - ignoring (source) rate(gpu_dra_claim_active_gpu_seconds_total" + filter + "[$__rate_interval]))"
}

const states = "gpu_dra_gpu_seconds_total"

// slowed is the part of each second with reduced clocks, and the others count faults of GPUs' memories.
const (
	slowed       = `clamp_max(sum by (node, device, reason) (rate(gpu_dra_device_throttled_seconds_total[$__rate_interval])), 1)`
	memoryErrors = `max by (cluster, uuid, type) (gpu_dra_device_ecc_errors_total)`
	replacedRows = `max by (cluster, uuid, cause) (gpu_dra_device_remapped_rows)`
)

// measured has samples of all nodes whose plugin answers.
const measured = "gpu_dra_device_health"

// cost is the cost an hour of GPUs in a state, as a number.
func cost(filter string) string {
	return "sum(sum by (cluster, model) (rate(" + states + filter + "[$__rate_interval]))" + price + ")"
}

// The colours of numbers: neutral ones, those that should be 0, and those that should not.
var (
	neutral = []threshold{{0, "text"}}
	bad     = []threshold{{0, "green"}, {1, "red"}}
	notice  = []threshold{{0, "green"}, {1, "yellow"}}
	wanted  = []threshold{{0, "orange"}, {1, "green"}}
	waste   = []threshold{{0, "green"}, {.25, "yellow"}, {.5, "red"}}
	used    = []threshold{{0, "red"}, {.25, "yellow"}, {.5, "green"}}
	heat    = []threshold{{0, "green"}, {80, "yellow"}, {85, "red"}}
)

const (
	partsCount = "Parts of GPUs count in part."
	idleMeans  = "GPUs that claims hold and do not use. " + partsCount + " Partitions of GPUs before Hopper are not known."
	noPrices   = "no prices"

	highestOnly = "The 20 highest."
)

// numbers that several dashboards show.
var (
	// A lost GPU is in no slice, and so not among the controller's devices.
	unhealthyGPUs = panel{title: "Unhealthy GPUs", unit: plain, description: "GPUs with a fault, also those that claims hold.", kind: number, thresholds: bad, queries: []query{
		{orZero(`count(max by (cluster, uuid) (gpu_dra_device_health{state!~"healthy|unmonitored|`+strings.Join(adviceNames(), "|")+`"}))`, measured), ""},
	}}
	waitingClaims = panel{title: "Waiting claims", unit: plain, kind: number, thresholds: notice, queries: []query{
		{`sum(gpu_dra_cluster_claims{phase="pending"})`, ""},
	}}
	idleGPUs = panel{title: "Idle GPUs", unit: plain, description: idleMeans, kind: number, thresholds: notice, queries: []query{
		{orZero("sum("+idle("cluster", "")+")", measured), ""},
	}}
	idleCost = panel{title: "Idle cost an hour", unit: money, description: "The cost of GPUs that claims hold and do not use. Set the chart value cost.prices.",
		kind: number, thresholds: neutral, none: noPrices, queries: []query{{"sum(" + idle("cluster, model", "") + price + ")", ""}}}
)

var dashboards = []dashboard{
	{name: "fleet", title: "GPUs / Fleet", variables: []variable{model}, panels: []panel{
		{title: "Free GPUs", unit: plain, description: "GPUs that are free as a whole.", kind: number, thresholds: wanted, queries: []query{
			{`sum(gpu_dra_cluster_free_gpus{model=~"$model"})`, ""},
		}},
		{title: "Allocated GPUs", unit: plain, description: partsCount, kind: number, thresholds: neutral, queries: []query{
			{`sum(rate(gpu_dra_gpu_seconds_total{model=~"$model", state="allocated"}[$__rate_interval]))`, ""},
		}},
		unhealthyGPUs, waitingClaims, idleGPUs, idleCost,
		{title: "GPUs by state", unit: plain, description: partsCount, queries: []query{
			{`sum by (state) (rate(gpu_dra_gpu_seconds_total{model=~"$model"}[$__rate_interval]))`, "{{state}}"},
		}},
		{title: "Allocated part of all GPUs", unit: percent, queries: []query{
			{`sum by (model) (rate(gpu_dra_gpu_seconds_total{model=~"$model", state="allocated"}[$__rate_interval])) / sum by (model) (rate(gpu_dra_gpu_seconds_total{model=~"$model"}[$__rate_interval]))`, "{{model}}"},
		}},
		{title: "Free GPUs by model", unit: plain, queries: []query{
			{`sum by (model) (gpu_dra_cluster_free_gpus{model=~"$model"})`, "{{model}}"},
		}},
		{title: "Claims", unit: plain, queries: []query{{`sum by (phase) (gpu_dra_cluster_claims)`, "{{phase}}"}}},
		{title: "Namespaces with the most GPUs", unit: plain, description: "The first 10. " + partsCount, kind: table,
			columns: []column{{"claim_namespace", "Namespace"}, {"model", "Model"}, {"Value", "GPUs"}}, queries: []query{
				{`sort_desc(topk(10, sum by (claim_namespace, model) (rate(gpu_dra_namespace_allocated_gpu_seconds_total{model=~"$model"}[$__rate_interval]))))`, ""},
			}},
		{title: "Nodes with GPUs", unit: plain, queries: []query{{`sum(gpu_dra_cluster_nodes)`, "nodes"}}},
		{title: "Free MIG placements", unit: plain, description: "Placements can overlap.", queries: []query{
			{`sum by (model, profile) (gpu_dra_cluster_free_placements{model=~"$model"})`, "{{model}} {{profile}}"},
		}},
		{title: "Largest free NVLink group", unit: plain, queries: []query{
			{`max by (model) (gpu_dra_cluster_largest_free_group_gpus{model=~"$model"})`, "{{model}}"},
		}},
		{title: "Free memory in small pieces", unit: percent, thresholds: []threshold{{0, "green"}, {.5, "yellow"}}, queries: []query{
			{`max by (model) (gpu_dra_cluster_fragmentation_ratio{model=~"$model"})`, "{{model}}"},
		}},
	}},
	{name: "nodes", title: "GPUs / Nodes", variables: []variable{node}, panels: []panel{
		{title: "Measured GPUs", unit: plain, description: "GPUs of nodes with prepared claims.", kind: number, thresholds: neutral, queries: []query{
			{`count(max by (cluster, uuid) (gpu_dra_device_memory_total_bytes{node=~"$node", type="gpu"}))`, ""},
		}},
		{title: "Measured utilization", unit: percent, description: "The mean.", kind: number, thresholds: neutral, queries: []query{
			{`avg(max by (cluster, uuid) (gpu_dra_device_utilization_ratio{node=~"$node", type="gpu"}))`, ""},
		}},
		{title: "Measured memory in use", unit: percent, kind: number, thresholds: neutral, queries: []query{
			{`sum(max by (cluster, uuid) (gpu_dra_device_memory_used_bytes{node=~"$node", type="gpu"})) / sum(max by (cluster, uuid) (gpu_dra_device_memory_total_bytes{node=~"$node", type="gpu"}))`, ""},
		}},
		{title: "Power", unit: watts, kind: number, thresholds: neutral, queries: []query{
			{`sum(max by (cluster, uuid) (gpu_dra_device_power_watts{node=~"$node"}))`, ""},
		}},
		{title: "Hottest GPU", unit: celsius, description: "Boards of data centres reduce their clocks at 85 to 95 degrees.", kind: number, thresholds: heat, queries: []query{
			{`max(gpu_dra_device_temperature_celsius{node=~"$node"})`, ""},
		}},
		{title: "Prepared devices", unit: plain, description: "Shares and partitions count each.", kind: number, thresholds: neutral, queries: []query{
			{`sum(max by (cluster, node, driver, device_type) (nvidia_dra_prepared_devices{node=~"$node"}))`, ""},
		}},
		{title: "Who holds each GPU", unit: plain, kind: table,
			columns: []column{{"node", "Node"}, {"board", "GPU"}, {"claim_namespace", "Namespace"}, {"pod", "Pod"}, {"claim", "Claim"}, {"device", "Device"}},
			queries: []query{
				{`group by (node, board, device, claim_namespace, claim, pod) (gpu_dra_claim_device_info * on (cluster, gpu_uuid) group_left (node, board)` +
					` label_join(label_join(topk by (cluster, uuid) (1, gpu_dra_gpu_info{node=~"$node"}), "gpu_uuid", "", "uuid"), "board", "", "device"))`, ""},
			}},
		{title: "Busiest GPUs", unit: percent, description: "The first 10 by utilization.", kind: table,
			columns: []column{{"node", "Node"}, {"device", "GPU"}, {"model", "Model"}, {"Value", "Utilization"}}, queries: []query{
				{`sort_desc(topk(10, max by (node, device, model) (gpu_dra_device_utilization_ratio{node=~"$node", type="gpu"})))`, ""},
			}},
		{title: "Allocated part of each GPU", unit: percent, description: highestOnly, queries: []query{
			{"sum by (node, device) (" + named(highest(`sum by (cluster, uuid) (rate(gpu_dra_gpu_seconds_total{state="allocated"}[$__rate_interval]))`)) + ")", "{{node}} {{device}}"},
		}},
		{title: "Utilization of GPUs and partitions", unit: percent, description: highestOnly + " Partitions of GPUs before Hopper have none.", queries: []query{
			{highest(`max by (node, device) (gpu_dra_device_utilization_ratio{node=~"$node"})`), "{{node}} {{device}}"},
		}},
		{title: "Multiprocessors, tensor cores and memory bandwidth in use", unit: percent, description: highestOnly + " From Hopper on.", queries: []query{
			{highest(`max by (node, device) (gpu_dra_device_sm_active_ratio{node=~"$node"})`), "{{node}} {{device}} multiprocessors"},
			{highest(`max by (node, device) (gpu_dra_device_tensor_active_ratio{node=~"$node"})`), "{{node}} {{device}} tensor cores"},
			{highest(`max by (node, device) (gpu_dra_device_dram_active_ratio{node=~"$node"})`), "{{node}} {{device}} memory bandwidth"},
		}},
		{title: "Used memory of GPUs and partitions", unit: percent, description: highestOnly, queries: []query{
			{highest(`max by (node, device) (gpu_dra_device_memory_used_bytes{node=~"$node"}) / max by (node, device) (gpu_dra_device_memory_total_bytes{node=~"$node"})`), "{{node}} {{device}}"},
		}},
		{title: "Power of GPUs", unit: watts, description: highestOnly, queries: []query{
			{highest(`max by (node, device) (gpu_dra_device_power_watts{node=~"$node"})`), "{{node}} {{device}}"},
		}},
		{title: "Temperature of GPUs", unit: celsius, description: highestOnly, thresholds: heat, queries: []query{
			{highest(`max by (node, device) (gpu_dra_device_temperature_celsius{node=~"$node"})`), "{{node}} {{device}}"},
		}},
		{title: "Bytes over PCIe and NVLink", unit: rate, description: highestOnly, queries: []query{
			{highest(`sum by (node, device, direction) (rate(gpu_dra_device_pcie_bytes_total{node=~"$node"}[$__rate_interval]))`), "{{node}} {{device}} PCIe {{direction}}"},
			{highest(`sum by (node, device, direction) (rate(gpu_dra_device_nvlink_bytes_total{node=~"$node"}[$__rate_interval]))`), "{{node}} {{device}} NVLink {{direction}}"},
		}},
		{title: "Prepared devices by type", unit: plain, description: highestOnly, queries: []query{
			{highest(`sum by (node, device_type) (max by (node, driver, device_type) (nvidia_dra_prepared_devices{node=~"$node"}))`), "{{node}} {{device_type}}"},
		}},
		{title: "Published devices", unit: plain, description: highestOnly, queries: []query{
			{"sum by (node, type) (" + onNode(highest(`sum by (cluster, instance, type) (gpu_dra_published_devices)`)) + ")", "{{node}} {{type}}"},
		}},
		{title: "Time to prepare a claim's devices (99 %)", unit: seconds, queries: []query{
			{`histogram_quantile(0.99, sum by (le, operation) (rate(nvidia_dra_request_duration_seconds_bucket[$__rate_interval])))`, "{{operation}}"},
		}},
		{title: "Calls of the kubelet a second", unit: plain, queries: []query{
			{`sum by (operation, result) (rate(nvidia_dra_requests_total[$__rate_interval]))`, "{{operation}} {{result}}"},
		}},
	}},
	{name: "claims", title: "GPUs / Claims and pods", variables: []variable{namespace}, panels: []panel{
		{title: "Allocated GPUs", unit: plain, description: partsCount, kind: number, thresholds: neutral, queries: []query{
			{`sum(rate(gpu_dra_namespace_allocated_gpu_seconds_total{claim_namespace=~"$namespace"}[$__rate_interval]))`, ""},
		}},
		{title: "Pods with GPUs", unit: plain, kind: number, thresholds: neutral, queries: []query{
			{`count(count by (cluster, claim_namespace, pod) (gpu_dra_claim_device_info{claim_namespace=~"$namespace", pod!=""}))`, ""},
		}},
		waitingClaims,
		{title: "Mean utilization", unit: percent, description: "Of claims' devices.", kind: number, thresholds: used, queries: []query{
			{`avg(max by (cluster, namespace, claim, request, device) (gpu_dra_claim_utilization_ratio{namespace=~"$namespace"}))`, ""},
		}},
		{title: "Idle GPUs", unit: plain, description: idleMeans, kind: number, thresholds: notice, queries: []query{
			{orZero("sum("+idle("cluster", `{claim_namespace=~"$namespace"}`)+")", measured), ""},
		}},
		{title: "Idle cost an hour", unit: money, description: idleCost.description, kind: number, thresholds: neutral, none: noPrices, queries: []query{
			{"sum(" + idle("cluster, model", `{claim_namespace=~"$namespace"}`) + price + ")", ""},
		}},
		{title: "Allocated GPUs by namespace", unit: plain, description: highestOnly, queries: []query{
			{highest(`sum by (claim_namespace) (rate(gpu_dra_namespace_allocated_gpu_seconds_total{claim_namespace=~"$namespace"}[$__rate_interval]))`), "{{claim_namespace}}"},
		}},
		{title: "Allocated GPUs by claim", unit: plain, description: highestOnly, queries: []query{
			{highest(`sum by (claim_namespace, claim) (rate(gpu_dra_claim_allocated_gpu_seconds_total{claim_namespace=~"$namespace"}[$__rate_interval]))`), "{{claim_namespace}}/{{claim}}"},
		}},
		{title: "Claims that use least of their GPUs", unit: plain, description: "The first 10, by GPUs that they hold and do not use.", kind: table,
			columns: []column{{"claim_namespace", "Namespace"}, {"claim", "Claim"}, {"Value", "Idle GPUs"}}, queries: []query{
				{"sort_desc(topk(10, " + idle("claim_namespace, claim", `{claim_namespace=~"$namespace"}`) + " > 0))", ""},
			}},
		{title: "GPU hours of claims", unit: plain, kind: table, description: "In the time range.",
			columns: []column{{"claim_namespace", "Namespace"}, {"claim", "Claim"}, {"model", "Model"}, {"Value", "GPU hours"}}, queries: []query{
				{`sort_desc(sum by (claim_namespace, claim, model) (increase(gpu_dra_claim_allocated_gpu_seconds_total{claim_namespace=~"$namespace"}[$__range])) / 3600)`, ""},
			}},
		{title: "Utilization of pods' devices", unit: percent, description: highestOnly + " A share beside others shows the whole device, and none of a partition.", queries: []query{
			{highest(`max by (namespace, pod, device) (gpu_dra_claim_utilization_ratio{namespace=~"$namespace"})`), "{{namespace}}/{{pod}} {{device}}"},
		}},
		{title: "Used part of pods' memory", unit: percent, description: highestOnly, thresholds: []threshold{{0, "green"}, {.95, "yellow"}}, queries: []query{
			{highest(`sum by (namespace, pod) (gpu_dra_claim_memory_used_bytes{namespace=~"$namespace"}) / sum by (namespace, pod) (gpu_dra_claim_memory_granted_bytes{namespace=~"$namespace"})`), "{{namespace}}/{{pod}}"},
		}},
		{title: "Power of pods that have GPUs alone", unit: watts, description: highestOnly, queries: []query{
			{highest("sum by (claim_namespace, pod) (" + holding("gpu_dra_device_power_watts") + ")"), "{{claim_namespace}}/{{pod}}"},
		}},
		{title: "Temperature of GPUs that pods have alone", unit: celsius, description: highestOnly, thresholds: heat, queries: []query{
			{highest("max by (claim_namespace, pod) (" + holding("gpu_dra_device_temperature_celsius") + ")"), "{{claim_namespace}}/{{pod}}"},
		}},
		{title: "Devices of claims and pods", unit: plain, kind: table,
			columns: []column{{"claim_namespace", "Namespace"}, {"pod", "Pod"}, {"container", "Container"}, {"claim", "Claim"}, {"type", "Type"}, {"device", "Device"}},
			queries: []query{
				{`group by (claim_namespace, claim, pod, container, type, device) (gpu_dra_claim_device_info{claim_namespace=~"$namespace"})`, ""},
			}},
	}},
	{name: "health", title: "GPUs / Health", panels: []panel{
		unhealthyGPUs,
		{title: "GPUs with advice", unit: plain, description: "GPUs that work, and that an administrator should look at.", kind: number, thresholds: notice, queries: []query{
			{orZero(`count(max by (cluster, uuid) (gpu_dra_device_health{state=~"`+strings.Join(adviceNames(), "|")+`"}))`, measured), ""},
		}},
		{title: "To reset or reboot", unit: plain, description: "By the recovery action of NVIDIA's driver.", kind: number, thresholds: bad, queries: []query{
			{orZero(`count(max by (cluster, uuid) (gpu_dra_device_recovery_action) > 0)`, "gpu_dra_device_recovery_action"), ""},
		}},
		{title: "XIDs in 10 minutes", unit: plain, kind: number, thresholds: notice, queries: []query{
			{orZero("sum "+recent("gpu_dra_xid_errors_total"), measured), ""},
		}},
		{title: "Reduced clocks", unit: plain, description: "By heat or power.", kind: number, thresholds: notice, queries: []query{
			{orZero(`count(max by (cluster, uuid) (gpu_dra_device_health{state="slowdown"}))`, measured), ""},
		}},
		{title: "Nodes without driver", unit: plain, kind: number, thresholds: bad, queries: []query{
			{`count(gpu_dra_nvidia_driver_loaded) - sum(gpu_dra_nvidia_driver_loaded)`, ""},
		}},
		{title: "Health of GPUs over time", unit: plain, description: "GPUs that were not healthy in the time range, the worst 20.", kind: timeline, mappings: healthWords(), none: "All GPUs are healthy.",
			queries: []query{{named(highest(worst() + everIn(`gpu_dra_device_health{state!="healthy"}`))), "{{node}} {{device}}"}}},
		{title: "Recovery actions of NVIDIA's driver", unit: plain, description: "GPUs with an action in the time range, the first 20.", kind: timeline, mappings: actions, none: "No GPU needs an action.",
			queries: []query{{named(highest(`max by (cluster, uuid) (gpu_dra_device_recovery_action)` + everIn("gpu_dra_device_recovery_action"))), "{{node}} {{device}}"}}},
		{title: "GPUs that are not healthy", unit: plain, description: "ADDRESS is the GPU's PCI address.", kind: table, none: "All GPUs are healthy.",
			columns: []column{{"node", "Node"}, {"device", "GPU"}, {"state", "State"}, {"cause", "Cause"}, {"remedy", "Remedy"}}, cells: stateCells(), queries: []query{
				{`label_join(label_join(group by (node, device, state) (` + named(`max by (cluster, uuid, state) (gpu_dra_device_health{state!="healthy"})`) +
					`), "cause", "", "state"), "remedy", "", "state")`, ""},
			}},
		{title: "GPUs with the most XIDs", unit: plain, description: "In 10 minutes, the first 10.", kind: table,
			columns: []column{{"node", "Node"}, {"device", "GPU"}, {"xid", "XID"}, {"Value", "Times"}}, queries: []query{
				{"sort_desc(topk(10, sum by (node, device, xid) (" + named("sum by (cluster, uuid, xid) "+recent("gpu_dra_xid_errors_total")) + ") > 0))", ""},
			}},
		{title: "Time with reduced clocks", unit: percent, description: "Of each second. " + highestOnly, queries: []query{
			{orNone(aboveZero(slowed), slowed), "{{node}} {{device}} {{reason}}"},
		}},
		{title: "Errors of the memory", unit: plain, description: "Since the driver was loaded. " + highestOnly, queries: []query{
			{orNone("max by (node, device, type) ("+named(aboveZero(memoryErrors))+")", memoryErrors), "{{node}} {{device}} {{type}}"},
		}},
		{title: "Replaced rows of the memory", unit: plain, description: highestOnly, queries: []query{
			{orNone("max by (node, device, cause) ("+named(aboveZero(replacedRows))+")", replacedRows), "{{node}} {{device}} {{cause}}"},
		}},
		{title: "Time since the last publishing", unit: seconds, description: highestOnly, thresholds: []threshold{{0, "green"}, {900, "red"}}, queries: []query{
			{"max by (node) (" + onNode(highest(`time() - max by (cluster, instance) (gpu_dra_last_publish_timestamp_seconds > 0)`)) + ")", "{{node}}"},
		}},
		{title: "Failed preparations and releases in 10 minutes", unit: plain, queries: []query{
			{"sum by (error_type) " + recent("nvidia_dra_node_prepare_errors_total"), "prepare {{error_type}}"},
			{"sum by (error_type) " + recent("nvidia_dra_node_unprepare_errors_total"), "unprepare {{error_type}}"},
		}},
		{title: "Background errors in 10 minutes", unit: plain, queries: []query{
			{"sum by (reason) " + recent("gpu_dra_background_errors_total"), "{{reason}}"},
		}},
		{title: "Quarantined records", unit: plain, description: highestOnly, queries: []query{
			{"sum by (node) (" + onNode(highest(`sum by (cluster, instance) (gpu_dra_quarantined_records)`)) + ")", "{{node}}"},
		}},
	}},
	{name: "cost", title: "GPUs / Cost", panels: []panel{
		{title: "Cost an hour", unit: money, description: "Set the chart value cost.prices.", kind: number, thresholds: neutral, none: noPrices, queries: []query{{cost(""), ""}}},
		{title: "Allocated, an hour", unit: money, kind: number, thresholds: neutral, none: noPrices, queries: []query{{cost(`{state="allocated"}`), ""}}},
		{title: "Free, an hour", unit: money, kind: number, thresholds: neutral, none: noPrices, queries: []query{{cost(`{state="free"}`), ""}}},
		{title: "Unhealthy, an hour", unit: money, kind: number, thresholds: neutral, none: noPrices, queries: []query{{cost(`{state="unhealthy"}`), ""}}},
		idleCost,
		{title: "Unused part", unit: percent, description: "The cost of GPUs that are free or unhealthy, and of those that claims hold and do not use.", kind: number, thresholds: waste, none: noPrices, queries: []query{
			{"(" + cost(`{state=~"free|unhealthy"}`) + " + sum(" + idle("cluster, model", "") + price + ")) / " + cost(""), ""},
		}},
		{title: "Cost an hour by namespace", unit: money, description: highestOnly, queries: []query{
			{highest(`sum by (claim_namespace) (sum by (cluster, claim_namespace, model) (rate(gpu_dra_namespace_allocated_gpu_seconds_total[$__rate_interval]))` + price + `)`), "{{claim_namespace}}"},
		}},
		{title: "Cost an hour by state", unit: money, description: "free is paid for and unallocated.", queries: []query{
			{`sum by (state) (sum by (cluster, model, state) (rate(gpu_dra_gpu_seconds_total[$__rate_interval]))` + price + `)`, "{{state}}"},
		}},
		{title: "Cost in the time range, by namespace", unit: money, kind: table, columns: []column{{"claim_namespace", "Namespace"}, {"Value", "Cost"}}, queries: []query{
			{`sort_desc(sum by (claim_namespace) (sum by (cluster, claim_namespace, model) (increase(gpu_dra_namespace_allocated_gpu_seconds_total[$__range])) / 3600` + price + `))`, ""},
		}},
		{title: "Most expensive claims", unit: money, description: "The first 10 in the time range.", kind: table,
			columns: []column{{"claim_namespace", "Namespace"}, {"claim", "Claim"}, {"Value", "Cost"}}, queries: []query{
				{`sort_desc(topk(10, sum by (claim_namespace, claim) (sum by (cluster, claim_namespace, claim, model) (increase(gpu_dra_claim_allocated_gpu_seconds_total[$__range])) / 3600` + price + `)))`, ""},
			}},
		{title: "Held GPUs without a process", unit: plain, description: highestOnly, queries: []query{
			{highest(`sum by (claim_namespace) (rate(gpu_dra_claim_allocated_gpu_seconds_total[$__rate_interval]) * (1 - rate(gpu_dra_claim_occupied_seconds_total[$__rate_interval])))`), "{{claim_namespace}}"},
		}},
		{title: "Held GPUs that are not in use", unit: plain, description: highestOnly + " Partitions of GPUs before Hopper, and shares of partitions beside others, are not known.", queries: []query{
			{highest(idle("claim_namespace", "")), "{{claim_namespace}}"},
		}},
	}},
}
