// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package metrics defines the metrics of the controller, about the cluster.
package metrics

import (
	"cmp"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire/metric"
)

// The controller's metrics. The reference is generated from Catalogue.
var (
	clusterNodes = metric.New("gpu_dra_cluster_nodes", "gauge", nil,
		"Nodes that publish GPUs.")
	clusterDevices = metric.New("gpu_dra_cluster_devices", "gauge", []string{"model", "type", "profile", "state"},
		"Published devices. type is gpu, mig or nvlink-group; the profile of a group is its number of GPUs. state is "+
			"free, allocated (also if claims share the device), blocked (unavailable because of other allocations), "+
			"unhealthy, or cordoned by an administrator.")
	clusterFreeGPUs = metric.New("gpu_dra_cluster_free_gpus", "gauge", []string{"model"},
		"GPUs that are free as a whole.")
	clusterFreePlacements = metric.New("gpu_dra_cluster_free_placements", "gauge", []string{"model", "profile"},
		"Placements at which a MIG partition of the profile can be created, also those that nodes publish only when "+
			"an object asks for the profile. Placements can overlap: an allocation can block several.")
	clusterLargestGroup = metric.New("gpu_dra_cluster_largest_free_group_gpus", "gauge", []string{"model"},
		"GPUs of the largest free NVLink group; 1 if only single GPUs are free. On nodes that publish no groups, as "+
			"many free GPUs of one nvlinkGroup, rounded down to a power of two.")
	clusterFragmentation = metric.New("gpu_dra_cluster_fragmentation_ratio", "gauge", []string{"model"},
		"Share of the free memory slices, 0 to 1, that the largest free placement of their GPU cannot use.")
	clusterClaims = metric.New("gpu_dra_cluster_claims", "gauge", []string{"phase"},
		"Claims for this driver's devices. phase is pending (not allocated), allocated (no pod yet), reserved (for "+
			"pods) or deleting.")
	clusterClasses = metric.New("gpu_dra_cluster_device_classes", "gauge", []string{"state"},
		"DeviceClasses that select this driver's devices. state is ok, unmatched (no device of the cluster matches) "+
			"or invalid (a selector fails on a device).")
	hourlyCost = metric.New("gpu_dra_gpu_hourly_cost", "gauge", []string{"model"},
		"Price of a GPU for an hour, by the flag --gpu-prices, in the currency of the flag.")
	budgetUsed = metric.New("gpu_dra_budget_used", "gauge", []string{"namespace", "limit", "model"},
		"Use of a GPU budget. limit is gpus or memory (in bytes); model is empty for the limit of all models.")
	budgetHard = metric.New("gpu_dra_budget_hard", "gauge", []string{"namespace", "limit", "model"},
		"Limit of a GPU budget, with the labels of its use.")
	reviews = metric.New("gpu_dra_reviews_total", "counter", []string{"webhook", "kind", "result"},
		"Reviews of objects. webhook is admit (can deny), advise (only warns, except with denyUnsatisfiable) or "+
			"budget. result is allowed, warned or denied.")
	reviewDuration = metric.New("gpu_dra_review_duration_seconds", "histogram", []string{"webhook"},
		"Duration of reviews.")
	webhookReachable = metric.New("gpu_dra_webhook_reachable", "gauge", nil,
		"1 if the API server reached the webhook in the last test, 0 if not. Only the leading controller tests it, "+
			"every 15 minutes.")
)

// clusterGauges are the metrics of a Cluster.
var clusterGauges = []metric.Entry{
	clusterNodes, clusterDevices, clusterFreeGPUs, clusterFreePlacements, clusterLargestGroup, clusterFragmentation,
	clusterClaims, clusterClasses, hourlyCost,
}

// Catalogue lists the controller's own metrics, by name.
func Catalogue() []metric.Entry {
	return metric.Sorted(append(slices.Clone(clusterGauges), budgetUsed, budgetHard, reviews, reviewDuration,
		webhookReachable, metric.BuildInfo)...)
}

// Cluster holds the numbers behind the cluster metrics.
type Cluster struct {
	Nodes  int
	Counts pool.DeviceCounts
	// Claims are by phase, Classes by state.
	Claims, Classes map[string]int
	// Prices has the price of a GPU for an hour, by model.
	Prices map[string]float64
}

// Budget is a limit of a namespace's GPU budget with its use.
type Budget struct {
	// Limit is `gpus` or `memory`. Model is empty for the limit of all models.
	Namespace, Limit, Model string
	// Used and Hard are in GPUs or bytes.
	Used, Hard float64
}

// Compare orders limits by their labels.
func (b Budget) Compare(o Budget) int {
	return cmp.Or(cmp.Compare(b.Namespace, o.Namespace), cmp.Compare(b.Limit, o.Limit), cmp.Compare(b.Model, o.Model))
}

// Clusters collects the cluster metrics of the Cluster that it returns at each scrape; false means no data, as on an
// instance without the lead.
type Clusters func() (Cluster, bool)

// Describe implements prometheus.Collector.
func (c Clusters) Describe(out chan<- *prometheus.Desc) {
	metric.Describe(out, clusterGauges...)
}

// Collect implements prometheus.Collector.
func (c Clusters) Collect(out chan<- prometheus.Metric) {
	now, ok := c()
	if !ok {
		return
	}
	clusterNodes.Send(out, float64(now.Nodes))
	type row struct{ model, kind, profile, state string }
	devices := map[row]int{}
	free, places := map[string]int{}, map[[2]string]int{}
	for k, n := range now.Counts.Devices {
		profile := k.Profile
		if k.Type == gpu.KindGroup {
			profile = strconv.Itoa(k.GPUs)
		}
		devices[row{k.Product, string(k.Type), profile, string(k.State)}] += n
		if k.State != pool.Free {
			n = 0
		}
		switch k.Type {
		case gpu.KindGPU:
			free[k.Product] += n
		case gpu.KindMIG:
			places[[2]string{k.Product, k.Profile}] += 0
		}
	}
	for k, n := range now.Counts.FreePlacements {
		places[[2]string{k.Product, k.Profile}] += n
	}
	for r, n := range devices {
		clusterDevices.Send(out, float64(n), r.model, r.kind, r.profile, r.state)
	}
	for model, n := range free {
		clusterFreeGPUs.Send(out, float64(n), model)
		clusterLargestGroup.Send(out, float64(now.Counts.LargestGroup[model]), model)
		clusterFragmentation.Send(out, now.Counts.Fragmentation(model), model)
	}
	for key, n := range places {
		clusterFreePlacements.Send(out, float64(n), key[0], key[1])
	}
	for phase, n := range now.Claims {
		clusterClaims.Send(out, float64(n), phase)
	}
	for model, price := range now.Prices {
		hourlyCost.Send(out, price, model)
	}
	for state, n := range now.Classes {
		clusterClasses.Send(out, float64(n), state)
	}
}

// Budgets collects the limits that it returns at each scrape.
type Budgets func() []Budget

// Describe implements prometheus.Collector.
func (b Budgets) Describe(out chan<- *prometheus.Desc) {
	metric.Describe(out, budgetUsed, budgetHard)
}

// Collect implements prometheus.Collector.
func (b Budgets) Collect(out chan<- prometheus.Metric) {
	for _, one := range b() {
		budgetUsed.Send(out, one.Used, one.Namespace, one.Limit, one.Model)
		budgetHard.Send(out, one.Hard, one.Namespace, one.Limit, one.Model)
	}
}

// reviewBuckets are in seconds. Most reviews take less than a millisecond.
var reviewBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, 1}

// Reviews counts reviews. It is safe for concurrent use.
type Reviews struct {
	total *prometheus.CounterVec
	took  *prometheus.HistogramVec
	// reachable has no value before the first test.
	reachable *prometheus.GaugeVec
}

func NewReviews(r prometheus.Registerer, version string) *Reviews {
	metric.BuildInfo.Gauge(r).WithLabelValues(version, runtime.Version()).Set(1)
	return &Reviews{total: reviews.Counter(r), took: reviewDuration.Histogram(r, reviewBuckets),
		reachable: webhookReachable.Gauge(r)}
}

// SetReachable stores the result of the last test of the webhook.
func (r *Reviews) SetReachable(reachable bool) {
	value := 0.
	if reachable {
		value = 1
	}
	r.reachable.WithLabelValues().Set(value)
}

func (r *Reviews) Reviewed(webhook, kind, result string, took time.Duration) {
	r.total.WithLabelValues(webhook, kind, result).Inc()
	r.took.WithLabelValues(webhook).Observe(took.Seconds())
}
