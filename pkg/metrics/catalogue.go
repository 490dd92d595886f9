// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package metrics defines and serves the metrics of the kubelet plugin and the controller.
//
// Names equal those of NVIDIA's driver where the meaning is the same, so that dashboards keep working. The numbers of
// prepared and quarantined claims are read at each scrape; a counter could drift from the records.
//
// Trap. Labels have few, bounded values: a claim, pod or device name in a label would grow without end.
package metrics

import (
	"cmp"
	"slices"
)

// Entry describes one metric.
type Entry struct {
	Name string
	// Type is Prometheus's counter, gauge or histogram.
	Type   string
	Labels []string
	Help   string
}

// The plugin's metrics. The reference is generated from Catalogue.
var (
	requestsTotal = Entry{"nvidia_dra_requests_total", "counter", []string{"driver", "operation", "result"},
		"Completed calls of the kubelet. operation is prepare or unprepare; result is success, or error if any claim of the call failed."}
	requestDuration = Entry{"nvidia_dra_request_duration_seconds", "histogram", []string{"driver", "operation"},
		"Time from a call of the kubelet to its answer, including the look-up of its claims in the API server."}
	requestsInflight = Entry{"nvidia_dra_requests_inflight", "gauge", []string{"driver", "operation"},
		"Calls of the kubelet in progress."}
	prepareErrors = Entry{"nvidia_dra_node_prepare_errors_total", "counter", []string{"driver", "error_type"},
		"Failed preparations of claims, by Event reason."}
	unprepareErrors = Entry{"nvidia_dra_node_unprepare_errors_total", "counter", []string{"driver", "error_type"},
		"Failed unpreparations of claims, by Event reason."}
	preparedDevices = Entry{"nvidia_dra_prepared_devices", "gauge", []string{"node", "driver", "device_type"},
		"Devices of prepared claims, read from their records. A device that several claims share counts once for each claim."}
	publishedDevices = Entry{"gpu_dra_published_devices", "gauge", []string{"type"},
		"Devices in the node's ResourceSlices, as last published by this instance."}
	lastPublish = Entry{"gpu_dra_last_publish_timestamp_seconds", "gauge", nil,
		"Unix time of this instance's last successful check or update of the ResourceSlices. It is 0 before the first one and while another instance publishes."}
	publishErrors = Entry{"gpu_dra_publish_errors_total", "counter", []string{"reason"},
		"Failures to publish. reason is DroppedFields if the API server lacks a feature, Invalid if it refuses a slice, and Failed otherwise."}
	quarantinedRecords = Entry{"gpu_dra_quarantined_records", "gauge", nil,
		"Files of unreadable records that were moved to quarantine for inspection."}
	recoveries = Entry{"gpu_dra_recoveries_total", "counter", []string{"found", "result"},
		"Claims recovered after a plugin restart, a node reboot or the deletion of the claim. found is the state of the record, or spec if only a CDI spec was left. result is done or error; errors are retried."}
	backgroundErrors = Entry{"gpu_dra_background_errors_total", "counter", []string{"reason"},
		"Background errors, by Event reason."}
	devicePluginGPUs = Entry{"gpu_dra_device_plugin_gpus", "gauge", nil,
		"GPUs that a device plugin of the node serves; this driver does not offer them to new claims."}
	buildInfo = Entry{"gpu_dra_build_info", "gauge", []string{"version", "goversion"},
		"Always 1; the labels identify the running build."}
)

// Catalogue lists the plugin's own metrics, by name.
func Catalogue() []Entry {
	all := []Entry{
		requestsTotal, requestDuration, requestsInflight, prepareErrors, unprepareErrors, preparedDevices,
		publishedDevices, lastPublish, publishErrors, quarantinedRecords, recoveries, backgroundErrors, devicePluginGPUs, buildInfo,
	}
	slices.SortFunc(all, byName)
	return all
}

func byName(a, b Entry) int { return cmp.Compare(a.Name, b.Name) }
