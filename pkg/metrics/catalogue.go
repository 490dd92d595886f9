// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package metrics is what the kubelet plugin counts and measures.
//
// Names are those of NVIDIA's driver where the meaning is the same, so that dashboards go on working. What is true now
// (prepared and quarantined claims) is read when somebody asks, never kept beside the truth.
//
// Trap. Labels are few and bounded: a claim, pod or device name in a label would grow without end.
package metrics

import (
	"cmp"
	"slices"
)

// Entry says what one metric is.
type Entry struct {
	Name string
	// Type is Prometheus's: counter, gauge or histogram.
	Type   string
	Labels []string
	Help   string
}

// The metrics. Catalogue lists them, and the reference is generated from it.
var (
	requestsTotal = Entry{"nvidia_dra_requests_total", "counter", []string{"driver", "operation", "result"},
		"Calls of the kubelet that were answered. operation is prepare or unprepare; result is success, or error if any claim of the call failed."}
	requestDuration = Entry{"nvidia_dra_request_duration_seconds", "histogram", []string{"driver", "operation"},
		"Time from a call of the kubelet to its answer, the look-up of its claims in the API server included."}
	requestsInflight = Entry{"nvidia_dra_requests_inflight", "gauge", []string{"driver", "operation"},
		"Calls of the kubelet in work."}
	prepareErrors = Entry{"nvidia_dra_node_prepare_errors_total", "counter", []string{"driver", "error_type"},
		"Claims that could not be prepared, by the reason that their Event has."}
	unprepareErrors = Entry{"nvidia_dra_node_unprepare_errors_total", "counter", []string{"driver", "error_type"},
		"Claims that could not be unprepared, by reason."}
	preparedDevices = Entry{"nvidia_dra_prepared_devices", "gauge", []string{"node", "driver", "device_type"},
		"Devices of prepared claims, read from their records. A device that several claims hold counts for each."}
	publishedDevices = Entry{"gpu_dra_published_devices", "gauge", []string{"type"},
		"Devices in the node's ResourceSlices, as last published by this instance."}
	lastPublish = Entry{"gpu_dra_last_publish_timestamp_seconds", "gauge", nil,
		"Unix time at which this instance last found the ResourceSlices as wanted or made them so. 0 before the first time and while another instance publishes."}
	publishErrors = Entry{"gpu_dra_publish_errors_total", "counter", []string{"reason"},
		"Failures to publish: DroppedFields where the API server lacks a feature, Invalid where it refuses a slice, Failed otherwise."}
	quarantinedRecords = Entry{"gpu_dra_quarantined_records", "gauge", nil,
		"Files of unreadable records that are set aside for a person to look at."}
	recoveries = Entry{"gpu_dra_recoveries_total", "counter", []string{"found", "result"},
		"Claims that a restart, a reboot or a vanished claim left in need of work. found is the state of the record (spec where only a CDI spec was left), result is done or error; an error is tried again."}
	backgroundErrors = Entry{"gpu_dra_background_errors_total", "counter", []string{"reason"},
		"Problems that no caller was told of, by the reason that their Event has."}
	devicePluginGPUs = Entry{"gpu_dra_device_plugin_gpus", "gauge", nil,
		"GPUs that a device plugin of the node serves, and that this driver therefore offers to no new claim."}
	buildInfo = Entry{"gpu_dra_build_info", "gauge", []string{"version", "goversion"},
		"Always 1; the labels say which build runs."}
)

// Catalogue lists every metric of the driver's own, by name.
func Catalogue() []Entry {
	all := []Entry{
		requestsTotal, requestDuration, requestsInflight, prepareErrors, unprepareErrors, preparedDevices,
		publishedDevices, lastPublish, publishErrors, quarantinedRecords, recoveries, backgroundErrors, devicePluginGPUs, buildInfo,
	}
	slices.SortFunc(all, byName)
	return all
}

func byName(a, b Entry) int { return cmp.Compare(a.Name, b.Name) }
