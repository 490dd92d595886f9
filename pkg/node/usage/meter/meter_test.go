// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/node/sampler"
	"gpu-dra-driver/pkg/node/usage"
)

// node is the world of a Meter: one GPU, and a claim of it while held.
type node struct {
	t          *testing.T
	host       *host.Host
	dir        string
	held       bool
	incomplete bool
	// shared means that another claim has the GPU too, files that the claims have metadata files.
	shared, files bool
}

func newNode(t *testing.T) *node {
	n := &node{t: t, dir: t.TempDir()}
	n.boot("first")
	return n
}

func (n *node) boot(id string) {
	n.t.Helper()
	if err := os.WriteFile(filepath.Join(n.dir, "boot"), []byte(id), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) path() string { return filepath.Join(n.dir, "usage.json") }

// meter starts a process, after the end of the last one.
func (n *node) meter() *Meter {
	n.t.Helper()
	if n.host != nil {
		n.host.Close()
	}
	n.host = host.New(host.Options{BootIDFile: filepath.Join(n.dir, "boot")})
	n.t.Cleanup(n.host.Close)
	scans := inventory.NewLatest()
	scans.Set(gpu.Snapshot{GPUs: []gpu.GPU{{PCIAddress: "0000:01:00.0", UUID: "GPU-a", ProductName: "NVIDIA L40S"}}})
	instance, err := n.host.Enlist(context.Background(), filepath.Join(n.dir, "instance"))
	if err != nil {
		n.t.Fatal(err)
	}
	return New(n.host, Options{Path: n.path(), Records: n, Scans: scans, DevicePlugins: n, Instance: instance})
}

// Held implements plan.Held.
func (n *node) Held() ([]plan.Plan, bool, error) {
	if !n.held {
		return nil, n.incomplete, nil
	}
	d := plan.Device{Kind: gpu.KindGPU, Name: "gpu-0", PCIAddress: "0000:01:00.0", UUID: "GPU-a"}
	p := plan.Plan{Claim: plan.Claim{Namespace: "n", Name: "c", UID: "u"}, Devices: []plan.Device{d}, Metadata: plan.Metadata{Files: n.files}}
	plans := []plan.Plan{p}
	if n.shared {
		p.Claim.UID = "other"
		plans = append(plans, p)
	}
	return plans, n.incomplete, nil
}

// GPUs implements plan.DevicePlugins.
func (*node) GPUs() (map[string]string, bool) { return nil, true }

// samples are measurements.
type samples struct{ device *sampler.Device }

func (s samples) Snapshot() sampler.Snapshot {
	return sampler.Snapshot{GPUs: []sampler.GPU{{Device: *s.device}}}
}

func (n *node) count(m *Meter, save bool) usage.Account {
	n.t.Helper()
	if err := m.count(save); err != nil {
		n.t.Fatal(err)
	}
	a, ok := m.Account()
	if !ok {
		n.t.Fatal("no account")
	}
	return a
}

func seconds(a usage.Account, s usage.State) float64 { return a.GPUs["0000:01:00.0"].Seconds[s] }

func TestMeter_KilledAndRebooted_KeepsSums(t *testing.T) {
	n := newNode(t)
	n.held = true
	first := n.meter()
	n.count(first, true)
	saved := n.count(first, true)
	// A new process of the same boot counts the time since the last write, with the claims of the records.
	second := n.count(n.meter(), true)
	if seconds(second, usage.Allocated) <= seconds(saved, usage.Allocated) || seconds(second, usage.Free) != 0 {
		t.Errorf("allocated %v after %v, free %v", seconds(second, usage.Allocated), seconds(saved, usage.Allocated), seconds(second, usage.Free))
	}
	n.boot("second")
	if third := n.count(n.meter(), false); seconds(third, usage.Allocated) < seconds(saved, usage.Allocated) {
		t.Errorf("allocated %v after a reboot, %v before", seconds(third, usage.Allocated), seconds(saved, usage.Allocated))
	}
}

func TestMeter_DamagedFile_StartsAtZero(t *testing.T) {
	n := newNode(t)
	if err := os.WriteFile(n.path(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.count(n.meter(), true)
	if a := n.count(n.meter(), false); seconds(a, usage.Free) <= 0 {
		t.Errorf("%+v, want the time since the first count", a)
	}
}

func TestMeter_UnknownClaims_CountedLater(t *testing.T) {
	n := newNode(t)
	n.held = true
	m := n.meter()
	n.count(m, false)
	n.held, n.incomplete = false, true
	if a := n.count(m, false); len(a.Claims) != 1 {
		t.Errorf("%d claims while records are unreadable, want the last known one", len(a.Claims))
	}
}

func TestMeter_OlderInstance_ReportsAndWritesNothing(t *testing.T) {
	n := newNode(t)
	m := n.meter()
	newer := host.New(host.Options{})
	defer newer.Close()
	if _, err := newer.Enlist(t.Context(), filepath.Join(n.dir, "instance")); err != nil {
		t.Fatal(err)
	}
	if err := m.count(true); err != nil {
		t.Fatal(err)
	}
	_, err := os.Stat(n.path())
	if _, ok := m.Account(); ok || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("reports %v, file: %v", ok, err)
	}
}

func TestMeter_Run_SavesAtStartEachMinuteAndAtEnd(t *testing.T) {
	n := newNode(t)
	synctest.Test(t, func(t *testing.T) {
		m := n.meter()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { m.Run(ctx); close(done) }()
		exists := func() bool { return os.Remove(n.path()) == nil }
		synctest.Wait()
		if !exists() {
			t.Error("no file after the start")
		}
		n.held = true
		m.Changed()
		time.Sleep(settle)
		synctest.Wait()
		if a, ok := m.Account(); !ok || len(a.Claims) != 1 || exists() {
			t.Errorf("%d claims, want 1 and no write", len(a.Claims))
		}
		time.Sleep(saveInterval)
		synctest.Wait()
		if !exists() {
			t.Error("no file after an interval")
		}
		cancel()
		<-done
		if !exists() {
			t.Error("no file after the end")
		}
	})
}

// TestMeter_Samples_CountActiveSeconds counts the samples of a claim's device between two reads of the claims.
func TestMeter_Samples_CountActiveSeconds(t *testing.T) {
	for name, c := range map[string]struct {
		measured sampler.Device
		shared   bool
		files    bool
		want     usage.Use
	}{
		"busy":             {measured: sampler.Device{Utilization: 1, Processes: []sampler.Process{{PID: 1}}}, want: usage.Use{Source: "nvml", Watched: true, Active: 1, Occupied: 1}},
		"idle":             {measured: sampler.Device{Processes: []sampler.Process{}}, want: usage.Use{Source: "nvml", Watched: true}},
		"nothing measured": {measured: sampler.Device{Utilization: sampler.Absent}},
		"several claims":   {measured: sampler.Device{Utilization: 1}, shared: true},
		"share with a process": {
			measured: sampler.Device{Utilization: 1, Processes: []sampler.Process{{Utilization: 1, Files: []sampler.File{{Claim: "u"}}}}}, shared: true, files: true,
			want: usage.Use{Source: "nvml", Watched: true, Active: 1, Occupied: 1},
		},
		"share beside a process": {
			measured: sampler.Device{Utilization: 1, Processes: []sampler.Process{{Utilization: 1, Files: []sampler.File{{Claim: "other"}}}}}, shared: true, files: true,
			want: usage.Use{Source: "nvml", Watched: true},
		},
		"unknown processes": {measured: sampler.Device{Utilization: 1}, want: usage.Use{Source: "nvml", Active: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.held, n.shared, n.files = true, c.shared, c.files
			m := n.meter()
			c.measured.UUID = "GPU-a"
			m.o.Samples = samples{&c.measured}
			n.count(m, false)
			a, ok := m.Account()
			if !ok {
				t.Fatal("no account")
			}
			got := a.Claims["u"].GPUs["0000:01:00.0"]
			if got.Source != c.want.Source || got.Watched != c.want.Watched || got.Active > 0 != (c.want.Active > 0) || got.Occupied > 0 != (c.want.Occupied > 0) {
				t.Errorf("%+v, want as in %+v", got, c.want)
			}
		})
	}
}

// TestRun_SampleBetweenWrites_Counts ends the activity before the next read of the claims.
func TestRun_SampleBetweenWrites_Counts(t *testing.T) {
	n := newNode(t)
	n.held = true
	synctest.Test(t, func(t *testing.T) {
		m := n.meter()
		measured := sampler.Device{UUID: "GPU-a", Utilization: 1}
		m.o.Samples = samples{&measured}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); m.Run(ctx) }()
		time.Sleep(sampler.Interval + time.Second)
		synctest.Wait()
		measured.Utilization = 0
		cancel()
		<-ended
		a, ok := m.Account()
		if use := a.Claims["u"].GPUs["0000:01:00.0"]; !ok || use.Active == 0 {
			t.Errorf("%+v, want active seconds", use)
		}
	})
}
