// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"errors"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"

	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
	"gpu-dra-driver/pkg/node/sampler"
	"gpu-dra-driver/pkg/node/usage"
	"gpu-dra-driver/pkg/wire/metric"
)

// fakeRecords implements Records with fixed answers.
type fakeRecords struct {
	plans       []plan.Plan
	quarantined int
	err         error
}

// scan is the only scan of a node.
type scan gpu.Snapshot

func (s scan) Snapshot() gpu.Snapshot { return gpu.Snapshot(s) }

func (k fakeRecords) Held() ([]plan.Plan, bool, error) { return k.plans, false, k.err }
func (k fakeRecords) Quarantined() (int, error)        { return k.quarantined, k.err }

func nobody(context.Context) (map[string][]User, error) {
	return nil, errors.New("the kubelet is away")
}

func scrape(t *testing.T, m *Metrics) []string {
	t.Helper()
	r := httptest.NewRecorder()
	m.Handler().ServeHTTP(r, httptest.NewRequest("GET", "/metrics", nil))
	if r.Code != 200 {
		t.Fatalf("status %d: %s", r.Code, r.Body)
	}
	var samples []string
	for line := range strings.Lines(r.Body.String()) {
		if strings.HasPrefix(line, "nvidia_") || strings.HasPrefix(line, "gpu_") || strings.HasPrefix(line, "DCGM_") {
			samples = append(samples, strings.TrimSpace(line))
		}
	}
	return samples
}

func has(t *testing.T, samples []string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !slices.Contains(samples, w) {
			t.Errorf("no sample %s", w)
		}
	}
}

func lacks(t *testing.T, samples []string, prefix string) {
	t.Helper()
	for _, s := range samples {
		if strings.HasPrefix(s, prefix) {
			t.Errorf("there is %s", s)
		}
	}
}

// observeAll makes each metric have a sample.
func observeAll(m *Metrics) {
	m.Begin(Prepare)(true)
	m.Begin(Unprepare)(false)
	m.ClaimFailed(Prepare, claimerror.DeviceLost)
	m.ClaimFailed(Unprepare, claimerror.HostFailure)
	m.Published(time.UnixMilli(1_700_000_000_500), map[string]int{"gpu": 8})
	m.PublishFailed("Invalid")
	m.Recovered("intent", nil)
	m.Background(claimerror.RecordUnreadable)
	m.XID("GPU-1", health.XIDOf(31))
	m.XID("GPU-1", health.XIDOf(999))
}

// holders are programs that have GPUs open.
type holders map[string]string

func (h holders) Holders() map[string]string { return h }

// stuck are stuck partitions.
type stuck map[string][]gpu.Partition

func (s stuck) Stuck() (map[string][]gpu.Partition, error) { return s, nil }

func TestCollectStuck_PartitionsOfTwoGPUs_AreCounted(t *testing.T) {
	m := New(Options{Driver: "d", Node: "n", Version: "v"})
	m.CollectStuck(stuck{"0000:01:00.0": {{}, {}}, "0000:02:00.0": {{}}})
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "gpu_dra_stuck_partitions" && f.GetMetric()[0].GetGauge().GetValue() == 3 {
			return
		}
	}
	t.Errorf("%v", families)
}

// seconds serves the metrics of a usage.Meter.
type seconds struct{}

func (seconds) Describe(out chan<- *prometheus.Desc) { metric.Describe(out, usage.Metrics...) }

func (seconds) Collect(out chan<- prometheus.Metric) {
	for _, e := range usage.Metrics {
		e.Send(out, 1, e.Labels...)
	}
}

func TestCatalogue_AllMetrics_EqualServed(t *testing.T) {
	m := New(Options{Driver: "d", Node: "n", Version: "v"})
	m.CollectRecords(fakeRecords{plans: []plan.Plan{{Devices: []plan.Device{{}}}}}, nobody, func() sampler.Snapshot { return measured("") })
	m.CollectHealth(scan{GPUs: []gpu.GPU{{}}}, fakeRecords{}, func(string) (string, health.Reading, bool) {
		return "", health.Reading{}, true
	})
	m.CollectStuck(stuck{"0000:01:00.0": {{}}})
	m.CollectHolders(holders{"0000:01:00.0": "nv-hostengine", "gone": "x"}, scan{GPUs: []gpu.GPU{{PCIAddress: "0000:01:00.0"}}})
	m.CollectUsage(seconds{})
	observeAll(m)
	m.SetRefused([]string{"gpu-0000-01-00-0"})
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var served []metric.Entry
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "go_") || strings.HasPrefix(f.GetName(), "process_") {
			continue
		}
		e := metric.Entry{Name: f.GetName(), Type: strings.ToLower(f.GetType().String()), Help: f.GetHelp()}
		for _, l := range f.GetMetric()[0].GetLabel() {
			e.Labels = append(e.Labels, l.GetName())
		}
		served = append(served, e)
	}
	want := Catalogue()
	for i := range want {
		want[i].Labels = slices.Clone(want[i].Labels)
		slices.Sort(want[i].Labels)
	}
	if diff := cmp.Diff(want, served, cmpopts.IgnoreUnexported(metric.Entry{})); diff != "" {
		t.Errorf("-catalogue +served:\n%s", diff)
	}
}

func TestMetrics_CallsAndRecords_Counted(t *testing.T) {
	m := New(Options{Driver: "d", Node: "n", Version: "1.2"})
	m.CollectRecords(fakeRecords{quarantined: 2, plans: []plan.Plan{
		{Claim: plan.Claim{Namespace: "ns", Name: "c", UID: "u"}, Devices: []plan.Device{
			{Request: "r", Name: "gpu-0", UUID: "GPU-0", Kind: gpu.KindGPU}, {Request: "s", Name: "gpu-1", UUID: "GPU-1", Kind: gpu.KindGPU, ShareID: "i"},
		}},
		{Devices: []plan.Device{{Kind: gpu.KindMonitor}}},
	}}, func(context.Context) (map[string][]User, error) {
		return map[string][]User{"u-gpu-0": {{"p", "one"}, {"p", "two"}}, "u-gpu-1": {{"p", "of the whole GPU"}}}, nil
	}, nothing)
	has(t, scrape(t, m), `nvidia_dra_requests_total{driver="d",operation="unprepare",result="error"} 0`, `gpu_dra_last_publish_timestamp_seconds 0`)
	observeAll(m)
	end := m.Begin(Prepare)
	m.Recovered("intent", errors.New("disk"))
	samples := scrape(t, m)
	has(
		t, samples,
		`nvidia_dra_requests_total{driver="d",operation="prepare",result="success"} 1`,
		`nvidia_dra_requests_total{driver="d",operation="unprepare",result="error"} 1`,
		`nvidia_dra_requests_inflight{driver="d",operation="prepare"} 1`,
		`nvidia_dra_request_duration_seconds_count{driver="d",operation="prepare"} 1`,
		`nvidia_dra_node_prepare_errors_total{driver="d",error_type="DeviceLost"} 1`,
		`nvidia_dra_node_unprepare_errors_total{driver="d",error_type="HostFailure"} 1`,
		`nvidia_dra_prepared_devices{device_type="gpu",driver="d",node="n"} 2`,
		`nvidia_dra_prepared_devices{device_type="monitor",driver="d",node="n"} 1`,
		`gpu_dra_claim_device_info{claim="c",claim_namespace="ns",claim_uid="u",container="one",device="gpu-0",gpu_uuid="GPU-0",pod="p",request="r",share="",type="gpu",uuid="GPU-0"} 1`,
		`gpu_dra_claim_device_info{claim="c",claim_namespace="ns",claim_uid="u",container="two",device="gpu-0",gpu_uuid="GPU-0",pod="p",request="r",share="",type="gpu",uuid="GPU-0"} 1`,
		`gpu_dra_claim_device_info{claim="c",claim_namespace="ns",claim_uid="u",container="",device="gpu-1",gpu_uuid="GPU-1",pod="",request="s",share="i",type="gpu",uuid="GPU-1"} 1`,
		`gpu_dra_published_devices{type="gpu"} 8`,
		`gpu_dra_last_publish_timestamp_seconds 1.7000000005e+09`,
		`gpu_dra_quarantined_records 2`,
		`gpu_dra_recoveries_total{found="intent",result="done"} 1`,
		`gpu_dra_recoveries_total{found="intent",result="error"} 1`,
	)
	end(true)
	m.Published(time.Now(), map[string]int{"monitor": 1})
	samples = scrape(t, m)
	has(t, samples, `nvidia_dra_requests_inflight{driver="d",operation="prepare"} 0`, `gpu_dra_published_devices{type="monitor"} 1`)
	lacks(t, samples, `gpu_dra_published_devices{type="gpu"}`)
	m.Unpublished()
	samples = scrape(t, m)
	has(t, samples, `gpu_dra_last_publish_timestamp_seconds 0`)
	lacks(t, samples, "gpu_dra_published_devices")
}

// TestRecordsCollector_NoClaims_ZeroOfEachType: the last value of a series that only vanished would count as prepared.
func TestRecordsCollector_NoClaims_ZeroOfEachType(t *testing.T) {
	m := New(Options{Driver: "d", Node: "n"})
	m.CollectRecords(fakeRecords{}, nobody, nothing)
	for _, kind := range []gpu.Kind{gpu.KindGPU, gpu.KindMIG, gpu.KindGroup, gpu.KindMonitor} {
		has(t, scrape(t, m), `nvidia_dra_prepared_devices{device_type="`+string(kind)+`",driver="d",node="n"} 0`)
	}
}

func TestDurationBuckets_Milliseconds_Resolved(t *testing.T) {
	within := 0
	for _, b := range durationBuckets {
		if b >= 0.0005 && b <= 0.01 {
			within++
		}
	}
	if within < 6 || !slices.IsSorted(durationBuckets) {
		t.Errorf("%d buckets up to 10 ms: %v", within, durationBuckets)
	}
}

func TestRecordsCollector_RecordsUnreadable_OtherMetricsServed(t *testing.T) {
	m := New(Options{Driver: "d", Node: "n"})
	m.CollectRecords(fakeRecords{err: errors.New("disk")}, nobody, nothing)
	observeAll(m)
	samples := scrape(t, m)
	has(t, samples, `gpu_dra_published_devices{type="gpu"} 8`)
	lacks(t, samples, "nvidia_dra_prepared_devices")
	lacks(t, samples, "gpu_dra_quarantined_records")
	var collected []prometheus.Metric
	out := make(chan prometheus.Metric, 8)
	(&recordsCollector{fakeRecords{err: errors.New("disk")}, nobody, nothing, "n", "d"}).Collect(out)
	close(out)
	for c := range out {
		collected = append(collected, c)
	}
	if len(collected) != 2 {
		t.Errorf("%d errors for two metrics", len(collected))
	}
}
