// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/node/sampler"
	"gpu-dra-driver/pkg/wire/metric"
)

// Samples has measurements. *sampler.Sampler implements it.
type Samples interface {
	// Snapshot returns the last measurements.
	Snapshot() sampler.Snapshot
}

// Meter counts GPU seconds. It is a prometheus.Collector, and safe for concurrent use.
type Meter struct {
	// Changed makes Run read the claims again.
	Changed notify.Trigger

	records       plan.Held
	scans         *inventory.Latest
	devicePlugins plan.DevicePlugins
	samples       Samples
	instance      *host.Instance

	mu       sync.Mutex
	counters counters
	// plans were in the records at the last complete read. Before it, known is false.
	plans []plan.Plan
	known bool
}

// NewMeter returns a Meter, which reports while the instance is the node's newest.
func NewMeter(r plan.Held, scans *inventory.Latest, d plan.DevicePlugins, s Samples, instance *host.Instance) *Meter {
	return &Meter{
		Changed:       notify.NewTrigger(),
		records:       r,
		scans:         scans,
		devicePlugins: d,
		samples:       s,
		instance:      instance,
		counters:      newCounters(),
	}
}

const (
	// settle is the time for which changes of claims are collected, since each reads all records.
	settle = 100 * time.Millisecond
	// readInterval is the time after which records are read without a change, for those that were unreadable.
	readInterval = time.Minute
)

// Run counts until the context ends: after each change of claims and each sample.
func (m *Meter) Run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-m.scans.Scanned():
	}
	retry := time.NewTicker(readInterval)
	defer retry.Stop()
	for due := true; ctx.Err() == nil; {
		if err := m.step(due); err != nil {
			klog.FromContext(ctx).Error(err, "Reading the claims failed; GPU seconds count for the last known ones")
		}
		due = true
		select {
		case <-ctx.Done():
		case <-m.Changed:
			time.Sleep(settle)
		case <-retry.C:
		case <-time.After(sampler.Interval):
			due = false
		}
	}
}

// step counts up to now, and reads the claims for the time from now on. While some of their records are unreadable, the
// last known claims stay: an unknown claim does not make a GPU free.
func (m *Meter) step(read bool) (err error) {
	var plans []plan.Plan
	incomplete := true
	if read {
		plans, incomplete, err = m.records.Held()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil && !incomplete {
		m.plans, m.known = plans, true
	}
	m.count()
	return err
}

// count counts up to now. It returns false before the first answers about claims and device plugins, and while another
// instance counts. The caller holds mu.
func (m *Meter) count() bool {
	newest, err := m.instance.Newest()
	served, known := m.devicePlugins.GPUs()
	if err != nil || !newest || !known || !m.known {
		return false
	}
	uses := sampler.Uses(m.samples.Snapshot(), m.plans)
	m.counters.advance(time.Now(), observation{m.scans.Snapshot(), m.plans, served, uses})
	return true
}

// Describe implements prometheus.Collector.
func (m *Meter) Describe(out chan<- *prometheus.Desc) { metric.Describe(out, Metrics...) }

// Collect implements prometheus.Collector. The sums are up to now.
func (m *Meter) Collect(out chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.count() {
		return
	}
	for s, sum := range m.counters.sums {
		s.metric.Send(out, sum, s.labels[:len(s.metric.Labels)]...)
	}
}
