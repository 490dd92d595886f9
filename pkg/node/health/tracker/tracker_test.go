// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package tracker

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/notify/notifytest"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
)

var board = gpu.GPU{PCIAddress: "0000:1b:00.0", UUID: "GPU-1"}

// env is a node whose plugin can restart.
type env struct {
	*testing.T
	dir     string
	faults  *hosttest.Faults
	reports []error
	tracker *Tracker
	// bad is the file that cannot be read, until another file replaces it.
	bad os.FileInfo
}

func newEnv(t *testing.T) *env {
	e := &env{T: t, dir: t.TempDir()}
	e.boot("one")
	e.start()
	return e
}

func (e *env) boot(id string) {
	if err := os.WriteFile(filepath.Join(e.dir, "boot"), []byte(id), 0o600); err != nil {
		e.Fatal(err)
	}
}

func (e *env) start() {
	e.Helper()
	e.faults = hosttest.FailAll(func(o host.Operation) bool { return o.Label == record.LabelGPU }, syscall.ENOSPC)
	h := host.New(host.Options{BootIDFile: filepath.Join(e.dir, "boot"), FaultHook: e.faults.Do, ReadFile: func(path string) ([]byte, error) {
		if is, err := os.Stat(path); err == nil && e.bad != nil && os.SameFile(is, e.bad) {
			return nil, &os.PathError{Op: "read", Path: path, Err: syscall.EIO}
		}
		return os.ReadFile(path)
	}})
	e.Cleanup(h.Close)
	records, err := record.OpenGPUs(h, e.dir, Setting)
	if err != nil {
		e.Fatal(err)
	}
	e.tracker = New(h, records, filepath.Join(e.dir, "lock"), notifytest.Reporter(func(err error) { e.reports = append(e.reports, err) }),
		health.Settings{Taint: []uint64{94}})
}

// poll checks the states after a poll.
func (e *env) poll(g gpu.GPU, r *health.Reading, want ...string) {
	e.Helper()
	var got []string
	for _, f := range e.tracker.Poll(g, r).Faults() {
		got = append(got, f.State)
	}
	if !slices.Equal(got, want) {
		e.Errorf("faults %v, want %v", got, want)
	}
}

func (e *env) recorded(want bool) {
	e.Helper()
	if _, err := os.Stat(filepath.Join(e.dir, Setting, board.PCIAddress+".json")); (err == nil) != want {
		files, _ := os.ReadDir(filepath.Join(e.dir, Setting))
		e.Errorf("the record exists: %v, want %v; files %v", err == nil, want, files)
	}
}

func TestTracker_PluginRestarts_RemembersFaults(t *testing.T) {
	e := newEnv(t)
	e.poll(board, &health.Reading{}) // Healthy GPUs have no record.
	e.recorded(false)
	e.poll(board, &health.Reading{Recovery: 1}, health.Reset)
	e.start()
	e.poll(board, nil, health.Reset)
	e.poll(board, &health.Reading{}, health.Reset)
	e.start() // One answer of the earlier process does not count.
	e.poll(board, &health.Reading{}, health.Reset)
	e.poll(board, &health.Reading{})
	e.recorded(false)
}

func TestTracker_NodeReboots_KeepsFaultsOfTheBoard(t *testing.T) {
	for _, tc := range []struct {
		restart func(*env)
		board   gpu.GPU
		want    []string
	}{
		{func(e *env) { e.boot("two"); e.start() }, board, []string{health.Memory}},
		{func(e *env) { e.tracker.NoDriver() }, board, []string{health.Memory}},
		{func(e *env) { e.start() }, board, []string{health.Reboot, health.Memory}},
		{func(e *env) { e.start() }, gpu.GPU{PCIAddress: board.PCIAddress, UUID: "GPU-2"}, nil},
		{func(*env) {}, gpu.GPU{PCIAddress: board.PCIAddress, UUID: "GPU-2"}, nil},
	} {
		e := newEnv(t)
		e.poll(board, &health.Reading{Recovery: 2, RemapFailed: true}, health.Reboot, health.Memory)
		tc.restart(e)
		e.poll(tc.board, nil, tc.want...)
		e.start()
		e.poll(tc.board, nil, tc.want...)
	}
}

func TestTracker_DiskFull_ReportsAndWritesLater(t *testing.T) {
	e := newEnv(t)
	e.faults.Arm()
	e.poll(board, &health.Reading{Recovery: 1}, health.Reset)
	e.recorded(false)
	if len(e.reports) != 1 || claimerror.ReasonOf(e.reports[0]) != claimerror.HostFailure {
		t.Errorf("reports %v", e.reports)
	}
	e.faults.Disarm()
	e.poll(board, nil, health.Reset)
	e.recorded(true)
}

// TestTracker_RecordUnreadable_GPUKeepsAFault makes the record of a GPU with an XID unreadable while the plugin restarts.
func TestTracker_RecordUnreadable_GPUKeepsAFault(t *testing.T) {
	clean := &health.Reading{}
	for name, damage := range map[string]func([]byte) []byte{
		"EIO":     nil,
		"short":   func(data []byte) []byte { return data[:len(data)/2] },
		"empty":   func([]byte) []byte { return nil },
		"garbage": func([]byte) []byte { return []byte("\x00\xff{]") },
	} {
		for ending, end := range map[string]func(e *env, file string, repair func()){
			"readable at the next poll": func(e *env, _ string, repair func()) {
				repair()
				e.poll(board, clean, health.Named)
				e.start()
				e.poll(board, clean, health.Named)
			},
			"another fault, then readable": func(e *env, _ string, repair func()) {
				e.faults.Arm()
				e.poll(board, &health.Reading{RemapFailed: true}, health.Memory, health.UnreadableRecord)
				e.faults.Disarm()
				e.start()
				e.poll(board, &health.Reading{RemapFailed: true}, health.Memory, health.UnreadableRecord)
				repair()
				e.start()
				e.poll(board, &health.Reading{RemapFailed: true}, health.Memory, health.Named)
			},
			"another fault": func(e *env, _ string, _ func()) {
				e.poll(board, &health.Reading{RemapFailed: true}, health.Memory, health.UnreadableRecord)
				e.start()
				e.poll(board, clean, health.Memory, health.UnreadableRecord)
			},
			"cleared": func(e *env, file string, _ func()) {
				if err := os.Remove(file); err != nil {
					e.Fatal(err)
				}
				e.poll(board, clean)
			},
			"rotten for ever": func(e *env, _ string, _ func()) {
				for range 3 {
					e.poll(board, clean, health.UnreadableRecord)
				}
				e.start()
				e.poll(board, clean, health.UnreadableRecord)
				e.boot("two")
				e.start()
				e.poll(board, clean)
				e.recorded(false)
			},
			"rotten for ever, and the driver is reloaded": func(e *env, _ string, _ func()) {
				e.tracker.NoDriver()
				e.poll(board, clean)
				e.recorded(false)
			},
		} {
			t.Run(name+", "+ending, func(t *testing.T) {
				e := newEnv(t)
				file := filepath.Join(e.dir, Setting, board.PCIAddress+".json")
				e.poll(board, clean)
				e.tracker.Event(board, 94)
				e.poll(board, clean, health.Named)
				good, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if damage == nil {
					e.bad, err = os.Stat(file)
				} else {
					err = os.WriteFile(file, damage(good), 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
				e.start()
				e.poll(board, clean, health.UnreadableRecord)
				if len(e.reports) != 1 || claimerror.ReasonOf(e.reports[0]) != claimerror.RecordUnreadable {
					t.Errorf("reports %v", e.reports)
				}
				end(e, file, func() {
					e.bad = nil
					if err := os.WriteFile(file, good, 0o600); err != nil {
						t.Fatal(err)
					}
				})
			})
		}
	}
}

func TestTracker_XIDs_AreRememberedAndEndByPolls(t *testing.T) {
	e := newEnv(t)
	other := gpu.GPU{PCIAddress: "0000:2b:00.0", UUID: "GPU-2"}
	e.poll(other, nil)
	e.tracker.Event(board, 31)
	e.recorded(false)
	e.tracker.Event(board, 94) // Of the settings.
	e.tracker.Event(board, health.OffTheBus)
	e.poll(other, nil)
	e.start()
	e.poll(board, nil, health.Lost, health.Named)
	e.poll(board, &health.Reading{}, health.Lost, health.Named)
	e.poll(board, &health.Reading{}, health.Named)
	e.boot("two")
	e.start()
	e.poll(board, nil)
}

// TestClear_RunningPlugin_ForgetsFaults clears a fault of a driver without recovery actions from another process. A fault
// that the driver still reports comes back at once.
func TestClear_RunningPlugin_ForgetsFaults(t *testing.T) {
	e := newEnv(t)
	h := host.New(host.Options{BootIDFile: filepath.Join(e.dir, "boot")})
	t.Cleanup(h.Close)
	records, err := record.OpenGPUs(h, e.dir, Setting)
	if err != nil {
		t.Fatal(err)
	}
	clear := func(want ...string) {
		t.Helper()
		faults, err := Clear(h, records, filepath.Join(e.dir, "lock"), board.PCIAddress)
		if err != nil || len(faults) != len(want) || len(want) > 0 && faults[0].State != want[0] {
			t.Errorf("Clear = %v, %v, want %v", faults, err, want)
		}
		e.recorded(false)
	}
	old := &health.Reading{Recovery: health.NoRecovery}
	clear()
	e.poll(board, old)
	e.tracker.Event(board, 46)
	for range 3 {
		e.poll(board, old, health.Reset)
	}
	clear(health.Reset)
	e.poll(board, old)
	e.recorded(false)
	e.poll(board, &health.Reading{Recovery: health.NoRecovery, RemapFailed: true}, health.Memory)
	clear(health.Memory)
	e.poll(board, &health.Reading{Recovery: health.NoRecovery, RemapFailed: true}, health.Memory)
	e.recorded(true)
	if err := os.WriteFile(filepath.Join(e.dir, Setting, board.PCIAddress+".json"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	clear()
	e.poll(board, old)
}
