// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package metric has the parts of a metric of Prometheus: its name, type, labels and meaning. The metrics of the
// programs and their reference are both made of such entries.
package metric

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Entry is a metric.
type Entry struct {
	Name string
	// Type is Prometheus's counter, gauge or histogram.
	Type   string
	Labels []string
	Help   string
	// desc is made once, because making it costs more than a sample.
	desc *prometheus.Desc
}

// BuildInfo is served by each program.
var BuildInfo = New("gpu_dra_build_info", "gauge", []string{"version", "goversion"},
	"Always 1; the labels identify the running build.")

// New returns a metric.
func New(name, kind string, labels []string, help string) Entry {
	return Entry{name, kind, labels, help, prometheus.NewDesc(name, help, labels, nil)}
}

// Sorted returns entries by name.
func Sorted(entries ...Entry) []Entry {
	return slices.SortedFunc(slices.Values(entries), func(a, b Entry) int { return cmp.Compare(a.Name, b.Name) })
}

func (e Entry) opts() prometheus.Opts { return prometheus.Opts{Name: e.Name, Help: e.Help} }

// Counter registers the counter of an entry.
func (e Entry) Counter(r prometheus.Registerer) *prometheus.CounterVec {
	return promauto.With(r).NewCounterVec(prometheus.CounterOpts(e.opts()), e.Labels)
}

// Gauge registers the gauge of an entry.
func (e Entry) Gauge(r prometheus.Registerer) *prometheus.GaugeVec {
	return promauto.With(r).NewGaugeVec(prometheus.GaugeOpts(e.opts()), e.Labels)
}

// Histogram registers the histogram of an entry.
func (e Entry) Histogram(r prometheus.Registerer, buckets []float64) *prometheus.HistogramVec {
	return promauto.With(r).NewHistogramVec(prometheus.HistogramOpts{Name: e.Name, Help: e.Help,
		Buckets: buckets}, e.Labels)
}

// Invalid returns a sample that fails the scrape with err.
func (e Entry) Invalid(err error) prometheus.Metric { return prometheus.NewInvalidMetric(e.desc, err) }

// Send writes a sample, unless the value is absent: negative or NaN.
func (e Entry) Send(out chan<- prometheus.Metric, value float64, labels ...string) {
	kind := prometheus.GaugeValue
	if e.Type == "counter" {
		kind = prometheus.CounterValue
	}
	if value >= 0 { // False for NaN too.
		out <- prometheus.MustNewConstMetric(e.desc, kind, value, labels...)
	}
}

// Describe writes the descriptions of entries, for a prometheus.Collector.
func Describe(out chan<- *prometheus.Desc, entries ...Entry) {
	for _, e := range entries {
		out <- e.desc
	}
}
