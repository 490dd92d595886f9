// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package reset_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/notify/notifytest"
	"gpu-dra-driver/pkg/claim/executor/reset"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
)

// machine has one GPU, whose driver asks for a reset.
type machine struct {
	t      *testing.T
	dir    string
	o      reset.Options
	gpu    gpu.GPU
	answer health.Reading
	uptime time.Duration
	resets int
	client string
	served string
	// These replace the methods.
	reset func(context.Context) error
	last  func() (string, health.Reading, bool)
	// clientErr and uptimeErr are errors of Client and Uptime.
	clientErr, uptimeErr error
	err                  error
	reports              []string
}

func newMachine(t *testing.T) *machine {
	m := &machine{
		t: t, dir: t.TempDir(), answer: health.Reading{Recovery: 1},
		gpu: gpu.GPU{PCIAddress: "0000:10:00.0", UUID: "GPU-0", Faults: []gpu.Fault{{State: health.Reset, Cause: "it asks"}}},
	}
	m.start()
	return m
}

// start starts a new process of the plugin.
func (m *machine) start() {
	m.t.Helper()
	h := host.New(host.Options{})
	open := func(setting string) *record.GPUs {
		r, err := record.OpenGPUs(h, m.dir, setting)
		if err != nil {
			m.t.Fatal(err)
		}
		return r
	}
	m.o = reset.Options{
		Faults: open("health"), Attempts: open(reset.Setting), ProcRoot: filepath.Join(m.dir, "proc"),
		SMI: m, Health: m, DevicePlugins: m, Usage: m, Clock: m, Switches: &locks{},
		Reports: notifytest.Reporter(func(err error) { m.reports = append(m.reports, err.Error()) }), OpenLimit: time.Nanosecond,
	}
}

func (m *machine) Reset(ctx context.Context, address string) error {
	if m.reset != nil {
		return m.reset(ctx)
	}
	if m.resets++; address != m.gpu.PCIAddress {
		m.t.Errorf("a reset of %s", address)
	}
	return m.err
}

func (m *machine) Last(string) (string, health.Reading, bool) {
	if m.last != nil {
		return m.last()
	}
	return m.gpu.UUID, m.answer, true
}

func (m *machine) GPUs() (map[string]string, bool) {
	return map[string]string{m.gpu.PCIAddress: m.served}, true
}

func (m *machine) Client(context.Context, gpu.GPU) (string, error) { return m.client, m.clientErr }

func (m *machine) Uptime() (time.Duration, error) { return m.uptime, m.uptimeErr }

func (m *machine) round() error { return reset.New(m.o).Setting().Restore(context.Background(), m.gpu) }

type locks struct{ held atomic.Int64 }

func (l *locks) Lock(string)   { l.held.Add(1) }
func (l *locks) Unlock(string) { l.held.Add(-1) }

func TestRestore_DriverAsks_ResetsOnceInTenMinutes(t *testing.T) {
	m := newMachine(t)
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{0, 1}, {time.Minute, 1}, {8 * time.Minute, 1}, {time.Minute, 2}} {
		m.uptime += step.after
		m.start() // A restart does not forget the attempt.
		if err := m.round(); err != nil || m.resets != step.want {
			t.Errorf("at %s: %d resets, %v; want %d", m.uptime, m.resets, err, step.want)
		}
	}
	if m.gpu.UUID = "GPU-1"; m.round() != nil || m.resets != 3 {
		t.Errorf("another board at the address: %d resets", m.resets)
	}
	if len(m.reports) > 0 {
		t.Error(m.reports)
	}
}

func TestRestore_NoResetAsked_DoesNothing(t *testing.T) {
	for name, change := range map[string]func(*machine){
		"no fault":                  func(m *machine) { m.gpu.Faults = nil },
		"a worse fault":             func(m *machine) { m.gpu.Faults = []gpu.Fault{{State: health.Lost}, {State: health.Reset}} },
		"an XID of an older driver": func(m *machine) { m.answer.Recovery = health.NoRecovery },
		"the action has ended":      func(m *machine) { m.answer.Recovery = 0 },
		"another action":            func(m *machine) { m.answer.Recovery = 6 },
		"no answer yet":             func(m *machine) { m.last = func() (u string, r health.Reading, ok bool) { return } },
		"another board's answer": func(m *machine) {
			m.last = func() (string, health.Reading, bool) { return "GPU-9", m.answer, true }
		},
	} {
		m := newMachine(t)
		change(m)
		if err := m.round(); err != nil || m.resets != 0 || len(m.reports) > 0 {
			t.Errorf("%s: %d resets, %v, %v", name, m.resets, err, m.reports)
		}
	}
}

func TestRestore_Obstacle_IsReportedWithoutReset(t *testing.T) {
	for want, change := range map[string]func(*machine){
		"serves it as nvidia.com/gpu":      func(m *machine) { m.served = "nvidia.com/gpu" },
		"has, or can have, MIG partitions": func(m *machine) { m.gpu.MIG.Partitions = []gpu.Partition{{Profile: "1g.10gb"}} },
		"can have, MIG partitions":         func(m *machine) { m.gpu.MIG.Fault = "query failed" },
		"MIG partitions": func(m *machine) { // Newer than the scan.
			if err := os.MkdirAll(filepath.Join(m.o.ProcRoot, "driver/nvidia/capabilities/gpu0/mig/gi7"), 0o755); err != nil {
				m.t.Fatal(err)
			}
		},
		"in use by process 812": func(m *machine) { m.client = "process 812" },
		"process table": func(m *machine) {
			m.clientErr = errors.New("process table")
		},
		"clock": func(m *machine) { m.uptimeErr = errors.New("clock") },
	} {
		m := newMachine(t)
		change(m)
		if err := m.round(); err == nil || m.resets != 0 || len(m.reports) != 1 || !strings.Contains(m.reports[0], want) {
			t.Errorf("%s: %d resets, %v, %q", want, m.resets, err, m.reports)
		}
		if m.o.Switches.(*locks).held.Load() != 0 {
			t.Errorf("%s: a lock is left", want)
		}
	}
}

// TestRestore_Crash_DoesNotResetAgain starts a process with the files of a reset in progress, which a crash leaves.
func TestRestore_Crash_DoesNotResetAgain(t *testing.T) {
	m := newMachine(t)
	began := false
	m.reset = func(context.Context) error {
		began, m.reset = true, nil
		m.start()
		return m.round()
	}
	if err := m.round(); err != nil || !began || m.resets != 0 {
		t.Errorf("after the crash: %d resets, %v, began %v", m.resets, err, began)
	}
}

// TestRestore_NVLinkRefuses_ReportsAndPauses has a board whose GPUs cannot be reset alone.
func TestRestore_NVLinkRefuses_ReportsAndPauses(t *testing.T) {
	m := newMachine(t)
	m.err = errors.New("nvidia-smi -r -i 0000:10:00.0: exit status 3: connected by NVLink, reset them together")
	for n := range 5 {
		m.uptime = time.Duration(n) * time.Minute
		_ = m.round()
	}
	if m.resets != 1 || len(m.reports) != 1 {
		t.Errorf("%d resets, %q", m.resets, m.reports)
	}
	for _, want := range []string{"reset failed for gpu-0000-10-00-0: nvidia-smi -r -i 0000:10:00.0", "exit status 3", "Drain the node"} {
		if !strings.Contains(fmt.Sprint(m.reports), want) {
			t.Errorf("%q is not in %q", want, m.reports)
		}
	}
}

// TestRestore_ProgramHangs_IsKilledAtTheLimit is about a program that a signal ends.
func TestRestore_ProgramHangs_IsKilledAtTheLimit(t *testing.T) {
	m := newMachine(t)
	m.o.Limit = time.Millisecond
	m.reset = func(ctx context.Context) error {
		<-ctx.Done()
		return fmt.Errorf("it did not end in time: %w", context.Cause(ctx))
	}
	if err := m.round(); !errors.Is(err, context.DeadlineExceeded) || len(m.reports) != 1 {
		t.Errorf("%v, %q", err, m.reports)
	}
}
