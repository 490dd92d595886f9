// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package metrics defines and serves the metrics of the kubelet plugin.
//
// Names equal those of NVIDIA's driver where the meaning is the same, so that dashboards keep working. The numbers of
// prepared and quarantined claims are read at each scrape; a counter could drift from the records.
//
// Trap. Labels have few, bounded values: the name of a claim, pod or device would grow without end in a counter.
// Collectors may use such names, because their samples end with the claim.
package metrics

import (
	"cmp"
	"context"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"gpu-dra-driver/pkg/cdi"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
	"gpu-dra-driver/pkg/node/sampler"
	"gpu-dra-driver/pkg/node/usage"
	"gpu-dra-driver/pkg/wire/metric"
)

// The operations of the kubelet.
const (
	Prepare   = "prepare"
	Unprepare = "unprepare"
)

// durationBuckets are in seconds. A whole GPU takes about a millisecond, a MIG partition about a second.
var durationBuckets = []float64{.0005, .001, .002, .003, .005, .0075, .01, .015, .025, .05, .1, .25, .5, 1, 2.5, 5, 10,
	30}

// Options hold the values of the common labels.
type Options struct {
	Driver, Node, Version string
}

// Metrics counts and measures the work of one plugin. It is safe for concurrent use.
type Metrics struct {
	driver, node string
	registry     *prometheus.Registry

	requests, prepareErrors, unprepareErrors, publishErrors *prometheus.CounterVec
	recoveries, backgroundErrors, xidErrors                 *prometheus.CounterVec

	duration                *prometheus.HistogramVec
	lastPublish, pluginGPUs prometheus.Gauge

	inflight, published, refused *prometheus.GaugeVec
}

// New creates the metrics and their registry, which also serves the metrics of the process and of Go.
func New(o Options) *Metrics {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m := &Metrics{
		driver: o.Driver, node: o.Node, registry: r,
		requests:         requestsTotal.Counter(r),
		inflight:         requestsInflight.Gauge(r),
		prepareErrors:    prepareErrors.Counter(r),
		unprepareErrors:  unprepareErrors.Counter(r),
		published:        publishedDevices.Gauge(r),
		refused:          refusedDevices.Gauge(r),
		lastPublish:      lastPublish.Gauge(r).WithLabelValues(),
		publishErrors:    publishErrors.Counter(r),
		pluginGPUs:       devicePluginGPUs.Gauge(r).WithLabelValues(),
		recoveries:       recoveries.Counter(r),
		backgroundErrors: backgroundErrors.Counter(r),
		xidErrors:        xidErrors.Counter(r),
		duration:         requestDuration.Histogram(r, durationBuckets),
	}
	metric.BuildInfo.Gauge(r).WithLabelValues(o.Version, runtime.Version()).Set(1)
	// A rate needs a first sample, so counters start at zero instead of being absent.
	for _, operation := range []string{Prepare, Unprepare} {
		m.requests.WithLabelValues(o.Driver, operation, "success")
		m.requests.WithLabelValues(o.Driver, operation, "error")
		m.duration.WithLabelValues(o.Driver, operation)
		m.inflight.WithLabelValues(o.Driver, operation)
	}
	return m
}

// CollectRecords adds the metrics of the records, which each scrape reads, and of the measurements of their devices.
func (m *Metrics) CollectRecords(r Records, users Users, samples Samples) {
	m.registry.MustRegister(&recordsCollector{r, users, samples, m.node, m.driver}, &devicesCollector{samples, m.node})
}

// CollectUsage adds the metrics of GPU seconds.
func (m *Metrics) CollectUsage(u prometheus.Collector) { m.registry.MustRegister(u) }

func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		// Unreadable records must not hide the other metrics.
		ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 4,
	})
}

// Begin counts a call of the kubelet. The caller passes to end whether the whole call succeeded.
func (m *Metrics) Begin(operation string) (end func(ok bool)) {
	inflight := m.inflight.WithLabelValues(m.driver, operation)
	inflight.Inc()
	began := time.Now()
	return func(ok bool) {
		inflight.Dec()
		result := "success"
		if !ok {
			result = "error"
		}
		m.requests.WithLabelValues(m.driver, operation, result).Inc()
		m.duration.WithLabelValues(m.driver, operation).Observe(time.Since(began).Seconds())
	}
}

// ClaimFailed counts a failed Prepare or Unprepare of a claim.
func (m *Metrics) ClaimFailed(operation string, reason claimerror.Reason) {
	errors := m.prepareErrors
	if operation == Unprepare {
		errors = m.unprepareErrors
	}
	errors.WithLabelValues(m.driver, string(reason)).Inc()
}

// Published records the time of the last check of the slices, and the number of devices of each type in them.
func (m *Metrics) Published(at time.Time, devices map[string]int) {
	m.published.Reset()
	for kind, n := range devices {
		m.published.WithLabelValues(kind).Set(float64(n))
	}
	m.lastPublish.Set(float64(at.UnixMilli()) / 1000)
}

// SetRefused sets the devices whose present form the API server refuses; an empty name is a slice as a whole.
func (m *Metrics) SetRefused(devices []string) {
	m.refused.Reset()
	for _, d := range devices {
		m.refused.WithLabelValues(d).Set(1)
	}
}

// SetDevicePluginGPUs sets the number of GPUs that device plugins of the node serve.
func (m *Metrics) SetDevicePluginGPUs(gpus int) { m.pluginGPUs.Set(float64(gpus)) }

// Unpublished resets the metrics of publishing, because another instance publishes now.
func (m *Metrics) Unpublished() {
	m.published.Reset()
	m.refused.Reset()
	m.lastPublish.Set(0)
}

func (m *Metrics) PublishFailed(reason string) { m.publishErrors.WithLabelValues(reason).Inc() }

// Recovered counts a claim that Recover or the search for deleted claims handled.
func (m *Metrics) Recovered(found string, err error) {
	result := "done"
	if err != nil {
		result = "error"
	}
	m.recoveries.WithLabelValues(found, result).Inc()
}

// XID counts an XID of a GPU. Those that are not in NVIDIA's catalogue have one label.
func (m *Metrics) XID(uuid string, x health.XID) {
	code := "other"
	if x.Class != health.Unlisted {
		code = strconv.FormatUint(x.Code, 10)
	}
	m.xidErrors.WithLabelValues(uuid, code).Inc()
}

// Background counts an error that no caller receives.
func (m *Metrics) Background(reason claimerror.Reason) {
	m.backgroundErrors.WithLabelValues(string(reason)).Inc()
}

// Records reads the records of prepared claims.
type Records interface {
	plan.Held
	Quarantined() (int, error)
}

// Users returns the containers with each device, by the CDI device's name.
type Users func(context.Context) (map[string][]User, error)

// User is a container of a pod in the claim's namespace.
type User struct{ Pod, Container string }

// usersLimit limits the wait for the kubelet: a scrape must not fail while the kubelet hangs.
const usersLimit = 2 * time.Second

type recordsCollector struct {
	records      Records
	users        Users
	samples      Samples
	node, driver string
}

// recordMetrics are the metrics of the records.
var recordMetrics = []metric.Entry{
	preparedDevices, quarantinedRecords, claimDevice, claimUtilization, claimMemoryUsed, claimMemoryGranted,
}

func (c *recordsCollector) Describe(out chan<- *prometheus.Desc) {
	metric.Describe(out, recordMetrics...)
}

// Collect implements prometheus.Collector. Unreadable records fail the scrape instead of counting as zero.
func (c *recordsCollector) Collect(out chan<- prometheus.Metric) {
	plans, _, err := c.records.Held()
	if err != nil {
		out <- preparedDevices.Invalid(err)
	} else {
		count := map[string]int{}
		for _, kind := range []gpu.Kind{gpu.KindGPU, gpu.KindMIG, gpu.KindGroup, gpu.KindMonitor} {
			count[string(kind)] = 0 // The alert PluginDown reads the last value.
		}
		for _, p := range plans {
			for i, d := range p.Devices {
				if !p.Continues(i) {
					count[string(d.Kind)]++
				}
			}
		}
		for kind, n := range count {
			preparedDevices.Send(out, float64(n), c.node, c.driver, kind)
		}
		c.collectClaims(plans, out)
	}
	n, err := c.records.Quarantined()
	if err != nil {
		out <- quarantinedRecords.Invalid(err)
		return
	}
	quarantinedRecords.Send(out, float64(n))
}

// collectClaims writes a sample for each container and each of its devices, or GPUs of groups. Without an answer of the
// kubelet, no device has a container.
func (c *recordsCollector) collectClaims(plans []plan.Plan, out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), usersLimit)
	defer cancel()
	users, _ := c.users(ctx)
	measured := sampler.Uses(c.samples(), plans)
	for n, p := range plans {
		var with []User
		for i, d := range p.Devices {
			if !p.Continues(i) {
				if with = users[cdi.DeviceName(p, i)]; len(with) == 0 {
					with = []User{{}}
				}
			}
			for _, u := range with {
				claimDevice.Send(out, 1, p.Claim.Namespace, p.Claim.Name, p.Claim.UID, u.Pod, u.Container, d.Request,
					string(d.Kind),
					d.Name, d.ShareID, cmp.Or(d.Partition.UUID, d.UUID), d.UUID)
			}
			if u, ok := measured[[2]int{n, i}]; ok {
				if granted, first := granted(p, i, u.Measured.MemoryTotal); first {
					for _, pod := range pods(with) {
						sendUsage(out, u, granted, p, pod, c.node)
					}
				}
			}
		}
	}
}

// pods returns the pods of containers, each once.
func pods(with []User) (out []string) {
	for _, u := range with {
		if !slices.Contains(out, u.Pod) {
			out = append(out, u.Pod)
		}
	}
	return out
}

// The plugin's metrics. The reference is generated from Catalogue.
var (
	requestsTotal = metric.New("nvidia_dra_requests_total", "counter", []string{"driver", "operation", "result"},
		"Completed calls of the kubelet. operation is prepare or unprepare; result is success, or error if any claim "+
			"of the call failed.")
	requestDuration = metric.New("nvidia_dra_request_duration_seconds", "histogram", []string{"driver", "operation"},
		"Time from a call of the kubelet to its answer, including the time to read its claims from the API server.")
	requestsInflight = metric.New("nvidia_dra_requests_inflight", "gauge", []string{"driver", "operation"},
		"Calls of the kubelet in progress.")
	prepareErrors = metric.New("nvidia_dra_node_prepare_errors_total", "counter", []string{"driver", "error_type"},
		"Failed preparations of claims, by Event reason.")
	unprepareErrors = metric.New("nvidia_dra_node_unprepare_errors_total", "counter", []string{"driver", "error_type"},
		"Failed unpreparations of claims, by Event reason.")
	preparedDevices = metric.New("nvidia_dra_prepared_devices", "gauge", []string{"node", "driver", "device_type"},
		"Devices of prepared claims, read from their records. A device that several claims share counts once for "+
			"each claim.")
	claimDevice = metric.New("gpu_dra_claim_device_info", "gauge",
		[]string{"claim_namespace", "claim", "claim_uid", "pod", "container", "request", "type", "device", "share",
			"uuid", "gpu_uuid"},
		"Always 1; the labels are a device of a prepared claim and a container with the claim. An NVLink group has a "+
			"sample for each GPU. uuid names the GPU or MIG device, gpu_uuid the GPU. pod and container are empty "+
			"before the container starts, and while the kubelet does not answer.")
	publishedDevices = metric.New("gpu_dra_published_devices", "gauge", []string{"type"},
		"Devices in the node's ResourceSlices, as last published by this instance.")
	lastPublish = metric.New("gpu_dra_last_publish_timestamp_seconds", "gauge", nil,
		"Unix time of this instance's last successful check or update of the ResourceSlices. It is 0 before the "+
			"first one and while another instance publishes.")
	publishErrors = metric.New("gpu_dra_publish_errors_total", "counter", []string{"reason"},
		"Failures to publish. reason is DroppedFields if the API server lacks a feature, Invalid if it or an "+
			"admission policy refuses a slice as invalid, and Failed otherwise.")
	refusedDevices = metric.New("gpu_dra_refused_devices", "gauge", []string{"device"},
		"1 for each device of the node whose present form the API server, an admission policy or a quota refuses. "+
			"Its last accepted form stays, or it is not published. device is empty for a slice as a whole.")
	quarantinedRecords = metric.New("gpu_dra_quarantined_records", "gauge", nil,
		"Files of unreadable records that were moved to quarantine for inspection.")
	recoveries = metric.New("gpu_dra_recoveries_total", "counter", []string{"found", "result"},
		"Claims recovered after a plugin restart, a node reboot or the deletion of the claim. found is the state of "+
			"the record, or spec if only a CDI spec was left. result is done or error; errors are retried.")
	backgroundErrors = metric.New("gpu_dra_background_errors_total", "counter", []string{"reason"},
		"Background errors, by Event reason.")
	xidErrors = metric.New("gpu_dra_xid_errors_total", "counter", []string{"uuid", "xid"},
		"XIDs of a GPU while a claim was prepared on it. xid is other for those that are not in NVIDIA's catalogue.")
	gpuInfo = metric.New("gpu_dra_gpu_info", "gauge", []string{"node", "device", "uuid", "model"},
		"Always 1; the labels are the names of a GPU, also of one that cannot be read. A query adds them to metrics "+
			"that have only the uuid.")
	deviceHealth = metric.New("gpu_dra_device_health", "gauge", []string{"uuid", "state"},
		"1 for each present state of a GPU: healthy, a state or advice of docs/reference/health.md, unmonitored, or "+
			"unreadable. Absent before the first scan.")
	driverLoaded = metric.New("gpu_dra_nvidia_driver_loaded", "gauge", nil,
		"1 if the last scan found NVIDIA's driver; 0 if none is loaded, or it has not answered since the "+
			"plugin's start.")
	recoveryAction = metric.New("gpu_dra_device_recovery_action", "gauge", []string{"uuid"},
		"NVML's number of the driver's recovery action: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, 5 "+
			"IMEX domain, 6 bus reset, 7 system reboot. Absent with drivers before R570.")
	eccErrors = metric.New("gpu_dra_device_ecc_errors_total", "counter", []string{"uuid", "type"},
		"Errors of the GPU's memory since the driver was loaded. type is corrected or uncorrected. Absent without ECC.")
	remappedRows = metric.New("gpu_dra_device_remapped_rows", "gauge", []string{"uuid", "cause"},
		"Replaced rows of the GPU's memory, by the errors that caused it: corrected or uncorrected. Absent in "+
			"MIG mode.")
	devicePluginGPUs = metric.New("gpu_dra_device_plugin_gpus", "gauge", nil,
		"GPUs that a device plugin of the node serves; this driver does not offer them to new claims.")
	stuckPartitions = metric.New("gpu_dra_stuck_partitions", "gauge", nil,
		"MIG partitions of ended claims that NVML does not destroy. New claims cannot get their place.")
	migHolders = metric.New("gpu_dra_mig_mode_holders", "gauge", []string{"uuid", "program"},
		"1 for each idle GPU with published partitions whose MIG mode cannot be switched on, because a program has "+
			"the GPU open. Its partitions are unavailable to new claims.")
)

// Catalogue lists the plugin's own metrics, by name.
func Catalogue() []metric.Entry {
	return metric.Sorted(slices.Concat(recordMetrics, deviceCatalogue(), usage.Metrics, []metric.Entry{
		requestsTotal, requestDuration, requestsInflight, prepareErrors, unprepareErrors, publishedDevices,
		refusedDevices, lastPublish,
		publishErrors, recoveries, backgroundErrors, xidErrors, gpuInfo, deviceHealth, driverLoaded, recoveryAction,
		eccErrors, remappedRows,
		devicePluginGPUs, stuckPartitions, migHolders, metric.BuildInfo,
	})...)
}
