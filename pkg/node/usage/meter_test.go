// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/node/sampler"
)

// fixture is the world of a Meter: one GPU, and a claim of it while held.
type fixture struct {
	t          *testing.T
	instances  string
	held       bool
	incomplete bool
	unreadable error
	// shared means that another claim has the GPU too, files that the claims have metadata files.
	shared, files bool
	// silent means that the kubelet has not answered about device plugins.
	silent   bool
	measured sampler.Snapshot
}

func newFixture(t *testing.T) *fixture {
	return &fixture{t: t, instances: filepath.Join(t.TempDir(), "instance")}
}

// instance enlists a process.
func (f *fixture) instance() *host.Instance {
	f.t.Helper()
	machine := host.New(host.Options{})
	f.t.Cleanup(machine.Close)
	instance, err := machine.Enlist(context.Background(), f.instances)
	if err != nil {
		f.t.Fatal(err)
	}
	return instance
}

func (f *fixture) meter() *Meter {
	f.t.Helper()
	scans := inventory.NewLatest()
	scans.Set(node(1))
	return NewMeter(f, scans, f, f, f.instance())
}

// Held implements plan.Held.
func (f *fixture) Held() ([]plan.Plan, bool, error) {
	if !f.held {
		return nil, f.incomplete, f.unreadable
	}
	p := claim("c", whole(0))
	p.Metadata = plan.Metadata{Files: f.files}
	plans := []plan.Plan{p}
	if f.shared {
		p.Claim.Name, p.Claim.UID = "other", "other"
		plans = append(plans, p)
	}
	return plans, f.incomplete, f.unreadable
}

// GPUs implements plan.DevicePlugins.
func (f *fixture) GPUs() (map[string]string, bool) { return nil, !f.silent }

// Snapshot implements Samples.
func (f *fixture) Snapshot() sampler.Snapshot { return f.measured }

// measure sets the measurement of the GPU.
func (f *fixture) measure(d sampler.Device) {
	d.UUID = uuid(0)
	f.measured = sampler.Snapshot{GPUs: []sampler.GPU{{Device: d}}}
}

// scrape returns the number of samples.
func scrape(m *Meter) int {
	out := make(chan prometheus.Metric, 100)
	m.Collect(out)
	return len(out)
}

func read(t *testing.T, m *Meter) {
	t.Helper()
	if err := m.step(true); err != nil {
		t.Fatal(err)
	}
}

func TestMeter_Registered_ServesItsMetrics(t *testing.T) {
	f := newFixture(t)
	f.held = true
	f.measure(sampler.Device{Processes: []sampler.Process{}})
	m := f.meter()
	read(t, m)
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(m); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var served, want []string
	for _, family := range families {
		served = append(served, family.GetName())
	}
	for _, e := range Metrics {
		want = append(want, e.Name)
	}
	slices.Sort(want)
	if !slices.Equal(served, want) {
		t.Errorf("served are %v, want %v", served, want)
	}
}

// TestMeter_UnknownClaims_LastKnownOnesCount has records that cannot be read.
func TestMeter_UnknownClaims_LastKnownOnesCount(t *testing.T) {
	f := newFixture(t)
	synctest.Test(t, func(t *testing.T) {
		m := f.meter()
		f.incomplete = true
		read(t, m)
		if n := scrape(m); n != 0 {
			t.Errorf("%d samples before the first read of all records, want none", n)
		}
		f.held, f.incomplete = true, false
		read(t, m)
		f.held, f.incomplete = false, true
		read(t, m)
		time.Sleep(10 * time.Second)
		f.incomplete, f.unreadable = false, errors.New("input/output error")
		if err := m.step(true); !errors.Is(err, f.unreadable) {
			t.Errorf("got %v, want the error of the records", err)
		}
		time.Sleep(10 * time.Second)
		scrape(m)
		if got := m.counters.claimed("c").allocated; !near(got, 20) || m.counters.state(0, free) != 0 {
			t.Errorf("%v s of the claim, %v s free; want 20 and none", got, m.counters.state(0, free))
		}
	})
}

func TestMeter_KubeletSilent_ServesNothing(t *testing.T) {
	f := newFixture(t)
	f.silent = true
	m := f.meter()
	read(t, m)
	if n := scrape(m); n != 0 {
		t.Errorf("%d samples while the GPUs of device plugins are unknown, want none", n)
	}
	f.silent = false
	if n := scrape(m); n != len(states) {
		t.Errorf("%d samples after the kubelet's answer, want %d", n, len(states))
	}
}

func TestMeter_OlderInstance_ServesNothing(t *testing.T) {
	f := newFixture(t)
	m := f.meter()
	read(t, m)
	if scrape(m) == 0 {
		t.Error("no samples of the only instance")
	}
	f.instance()
	read(t, m)
	if n := scrape(m); n != 0 {
		t.Errorf("%d samples of the older instance, want none", n)
	}
}

// TestMeter_Restarted_BeginsAtZero has a plugin restart while a claim is prepared.
func TestMeter_Restarted_BeginsAtZero(t *testing.T) {
	f := newFixture(t)
	f.held = true
	synctest.Test(t, func(t *testing.T) {
		first := f.meter()
		read(t, first)
		time.Sleep(10 * time.Second)
		read(t, first)
		if got := first.counters.claimed("c").allocated; !near(got, 10) {
			t.Errorf("charged %v s, want 10", got)
		}
		time.Sleep(10 * time.Second)
		second := f.meter()
		read(t, second)
		if sum, found := second.counters.sum(&claimAllocated, "c"); !found || sum != 0 {
			t.Errorf("%v s after the restart, %v; want a series at 0", sum, found)
		}
	})
}

func TestMeter_ClaimsChange_CountedAtOnce(t *testing.T) {
	f := newFixture(t)
	synctest.Test(t, func(t *testing.T) {
		m := f.meter()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); m.Run(ctx) }()
		synctest.Wait()
		f.held = true
		m.Changed.Fire()
		time.Sleep(settle)
		synctest.Wait()
		time.Sleep(time.Second)
		scrape(m)
		if got := m.counters.claimed("c").allocated; !near(got, 1) {
			t.Errorf("charged %v s, want 1", got)
		}
		cancel()
		<-done
	})
}

// TestMeter_Samples_CountActiveSeconds counts the samples of a claim's device between two scrapes.
func TestMeter_Samples_CountActiveSeconds(t *testing.T) {
	process := func(claim string) []sampler.Process {
		return []sampler.Process{{Utilization: 1, Files: []sampler.File{{Claim: claim}}}}
	}
	for name, c := range map[string]struct {
		measured      sampler.Device
		shared, files bool
		want          claimed
	}{
		"busy": {
			measured: sampler.Device{Utilization: 1, Processes: []sampler.Process{{PID: 1}}},
			want:     claimed{source: "nvml", watched: true, active: 10, occupied: 10},
		},
		"idle":             {measured: sampler.Device{Processes: []sampler.Process{}}, want: claimed{source: "nvml", watched: true}},
		"nothing measured": {measured: sampler.Device{Utilization: sampler.Absent}},
		"several claims":   {measured: sampler.Device{Utilization: 1}, shared: true},
		"share with a process": {
			measured: sampler.Device{Utilization: 1, Processes: process("c")}, shared: true, files: true,
			want: claimed{source: "nvml", watched: true, active: 10, occupied: 10},
		},
		"share beside a process": {
			measured: sampler.Device{Utilization: 1, Processes: process("other")}, shared: true, files: true,
			want: claimed{source: "nvml", watched: true},
		},
		"unknown processes": {measured: sampler.Device{Utilization: 1}, want: claimed{source: "nvml", active: 10}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.held, f.shared, f.files = true, c.shared, c.files
			synctest.Test(t, func(t *testing.T) {
				m := f.meter()
				f.measure(c.measured)
				read(t, m)
				time.Sleep(10 * time.Second)
				scrape(m)
				c.want.allocated = 10
				if got := m.counters.claimed("c"); got != c.want {
					t.Errorf("%+v, want %+v", got, c.want)
				}
			})
		})
	}
}

// TestRun_SampleBetweenScrapes_Counts ends the activity before the scrape.
func TestRun_SampleBetweenScrapes_Counts(t *testing.T) {
	f := newFixture(t)
	f.held = true
	synctest.Test(t, func(t *testing.T) {
		m := f.meter()
		f.measure(sampler.Device{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); m.Run(ctx) }()
		synctest.Wait()
		f.measure(sampler.Device{Utilization: 1})
		time.Sleep(sampler.Interval + time.Second)
		synctest.Wait()
		f.measure(sampler.Device{})
		time.Sleep(sampler.Interval)
		synctest.Wait()
		scrape(m)
		if got := m.counters.claimed("c").active; !near(got, sampler.Interval.Seconds()) {
			t.Errorf("%v active seconds, want those of an interval", got)
		}
		cancel()
		<-ended
	})
}
