// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/nvmlfake"
	"gpu-dra-driver/sim/simtest"
)

// env drives Watch by hand: every tick is the test's.
type env struct {
	t       *testing.T
	machine *engine.Engine
	lib     *counting
	i       *Inventory
	dir     string
	ticks   chan time.Time
	late    chan time.Time // ticks during a scan
	// answerInterval is the interval of its ticks while it waits for answers.
	answerInterval time.Duration
	seen           chan delivery
	ended          chan error
	cancel         context.CancelFunc

	watching bool
}

type delivery struct {
	snapshot gpu.Snapshot
	err      error
}

func startWatch(t *testing.T, change func(*engine.State)) *env {
	t.Helper()
	w := newWatch(t, change)
	w.start()
	return w
}

func newWatch(t *testing.T, change func(*engine.State)) *env {
	t.Helper()
	w := &env{
		t: t, machine: simtest.MachineInMemory(t, "hgx-h100", 0), dir: t.TempDir(),
		ticks: make(chan time.Time), late: make(chan time.Time), answerInterval: AnswerInterval, seen: make(chan delivery, 16), ended: make(chan error, 1),
	}
	if change != nil {
		simtest.Change(t, w.machine, change)
	}
	w.lib = &counting{Library: nvmlfake.New(w.machine)}
	w.i = New(Options{
		Library: w.lib, ProcRoot: w.dir, SysRoot: w.dir, DevRoot: w.dir,
		Tick: func(d time.Duration) (<-chan time.Time, func()) {
			if d == AnswerInterval {
				t := time.NewTicker(w.answerInterval)
				return t.C, t.Stop
			}
			if !w.watching {
				w.watching = true
				return w.ticks, func() {}
			}
			return w.late, func() {} // of a scan
		},
	})
	return w
}

func (w *env) start() {
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	go func() {
		w.ended <- w.i.Watch(ctx, func(s gpu.Snapshot, err error) { w.seen <- delivery{s, err} })
	}()
	w.t.Cleanup(func() {
		cancel()
		<-w.ended
	})
}

// stored checks the number of GPUs in the stored Snapshot. No GPUs: none is stored yet.
func (w *env) stored(gpus int) {
	w.t.Helper()
	select {
	case <-w.i.Scans.Scanned():
		if n := len(w.i.Scans.Snapshot().GPUs); n != gpus || n == 0 {
			w.t.Errorf("a Snapshot with %d GPUs is stored, want %d", n, gpus)
		}
	default:
		if gpus > 0 {
			w.t.Error("no Snapshot is stored")
		}
	}
}

func (w *env) next() delivery {
	w.t.Helper()
	select {
	case d := <-w.seen:
		return d
	case <-time.After(30 * time.Second):
		w.t.Fatal("nothing was delivered")
		return delivery{}
	}
}

// tick returns when Watch has taken the tick, so that after a second one the first has been acted on.
func (w *env) tick(n int) {
	w.t.Helper()
	w.send(w.ticks, n)
}

func (w *env) send(ticks chan time.Time, n int) {
	w.t.Helper()
	for range n {
		select {
		case ticks <- time.Time{}:
		case <-time.After(30 * time.Second):
			w.t.Fatal("Watch takes no tick")
		}
	}
}

func (w *env) nothingDelivered() {
	w.t.Helper()
	select {
	case d := <-w.seen:
		w.t.Fatalf("delivered without a change: %d GPUs, %v", len(d.snapshot.GPUs), d.err)
	default:
	}
}

func (w *env) write(path string) {
	w.t.Helper()
	path = filepath.Join(w.dir, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

func TestWatch_Unchanged_ReportsOnce(t *testing.T) {
	w := startWatch(t, nil)
	if d := w.next(); len(d.snapshot.GPUs) != 8 || d.err != nil {
		t.Fatalf("delivered %d GPUs, %v", len(d.snapshot.GPUs), d.err)
	}
	w.tick(2*pollsPerScan + 2) // two scans
	w.nothingDelivered()
}

func TestWatch_LostGPU_SeenAfterPollsPerScan(t *testing.T) {
	w := startWatch(t, nil)
	w.next()
	simtest.Change(t, w.machine, func(s *engine.State) { s.GPUs[1].Lost = true })
	w.tick(pollsPerScan)
	if d := w.next(); len(d.snapshot.GPUs) != 7 || len(d.snapshot.Problems) != 1 {
		t.Errorf("delivered %d GPUs, %d problems", len(d.snapshot.GPUs), len(d.snapshot.Problems))
	}
}

func TestWatch_FilesChange_ScansAtNextPoll(t *testing.T) {
	for _, path := range []string{"driver/nvidia/version", "driver/nvidia/gpus/0000:1b:00.0/information", "dev/nvidia8", "dev/nvidiactl"} {
		t.Run(path, func(t *testing.T) {
			w := startWatch(t, nil)
			w.next()
			simtest.Change(t, w.machine, func(s *engine.State) { s.Remove(&s.GPUs[7]) })
			w.write(path)
			w.tick(1)
			if d := w.next(); len(d.snapshot.GPUs) != 7 {
				t.Errorf("delivered %d GPUs, want 7", len(d.snapshot.GPUs))
			}
		})
	}
}

func TestWatch_OtherDeviceNode_DoesNotScan(t *testing.T) {
	w := startWatch(t, nil)
	w.next()
	w.tick(1)
	w.write("dev/loop7")
	w.tick(pollsPerScan - 1) // the last poll begins a scan
	w.tick(1)                // it is over
	if w.lib.opened.Load() != 2 {
		t.Errorf("%d scans, want one at the start and one after the polls", w.lib.opened.Load())
	}
}

func TestTrigger_WhileWaiting_ScansNow(t *testing.T) {
	w := startWatch(t, nil)
	w.next()
	simtest.Change(t, w.machine, func(s *engine.State) { s.GPUs[0].Lost = true })
	for range 5 {
		w.i.Trigger.Fire() // never blocks
	}
	if d := w.next(); len(d.snapshot.Problems) != 1 {
		t.Errorf("problems %+v, want one", d.snapshot.Problems)
	}
}

func TestWatch_DriverLoadedLater_ReportsGPUs(t *testing.T) {
	w := startWatch(t, func(s *engine.State) { s.DriverLoaded = false })
	if d := w.next(); !errors.Is(d.err, ErrNoDriver) || len(d.snapshot.GPUs) != 0 {
		t.Fatalf("delivered %d GPUs, %v; want none and ErrNoDriver", len(d.snapshot.GPUs), d.err)
	}
	w.tick(2)
	w.nothingDelivered()
	simtest.Change(t, w.machine, func(s *engine.State) { s.DriverLoaded = true })
	w.tick(2)
	if d := w.next(); len(d.snapshot.GPUs) != 8 || d.err != nil {
		t.Fatalf("delivered %d GPUs, %v; want 8", len(d.snapshot.GPUs), d.err)
	}
	simtest.Change(t, w.machine, func(s *engine.State) { s.DriverLoaded = false })
	w.tick(pollsPerScan)
	if d := w.next(); !errors.Is(d.err, ErrNoDriver) || len(d.snapshot.GPUs) != 0 {
		t.Errorf("after unloading: %d GPUs, %v", len(d.snapshot.GPUs), d.err)
	}
}

func TestWatch_FirstScanFails_StoresNothing(t *testing.T) {
	w := startWatch(t, func(s *engine.State) { s.Faults = []engine.Fault{{Query: "nvmlInit", Code: nvml.Unknown}} })
	if d := w.next(); len(d.snapshot.GPUs) != 0 || !errors.Is(d.err, nvml.Unknown) {
		t.Fatalf("delivered %d GPUs, %v; want none and the error", len(d.snapshot.GPUs), d.err)
	}
	w.stored(0)
	simtest.Change(t, w.machine, func(s *engine.State) { s.Faults = nil })
	w.tick(1)
	w.next()
	w.stored(8)
}

func TestWatch_ScanFails_KeepsLastSnapshot(t *testing.T) {
	w := startWatch(t, nil)
	w.next()
	simtest.Change(t, w.machine, func(s *engine.State) {
		s.Faults = []engine.Fault{{Query: "nvmlInit", Code: nvml.Unknown}}
	})
	w.tick(pollsPerScan)
	if d := w.next(); len(d.snapshot.GPUs) != 8 || !errors.Is(d.err, nvml.Unknown) {
		t.Fatalf("delivered %d GPUs, %v; want the last 8 and the error", len(d.snapshot.GPUs), d.err)
	}
	simtest.Change(t, w.machine, func(s *engine.State) { s.Faults = nil })
	w.tick(1)
	if d := w.next(); len(d.snapshot.GPUs) != 8 || d.err != nil {
		t.Errorf("delivered %d GPUs, %v; want 8 and no error", len(d.snapshot.GPUs), d.err)
	}
}

func TestWatch_NVMLFailsForLong_ReportsHealthUnknown(t *testing.T) {
	w := startWatch(t, nil)
	w.next()
	simtest.Change(t, w.machine, func(s *engine.State) {
		s.Faults = []engine.Fault{{Query: "nvmlInit", Code: nvml.Unknown}}
	})
	w.tick(pollsPerScan)
	if d := w.next(); !errors.Is(d.err, nvml.Unknown) || errors.Is(d.err, ErrHealthUnknown) {
		t.Fatalf("after one failure: %v", d.err)
	}
	w.tick(pollsToUnknown - 2)
	w.nothingDelivered()
	w.tick(1)
	if d := w.next(); len(d.snapshot.GPUs) != 8 || !errors.Is(d.err, nvml.Unknown) || !errors.Is(d.err, ErrHealthUnknown) {
		t.Fatalf("%d GPUs, %v; want the last 8, the cause and ErrHealthUnknown", len(d.snapshot.GPUs), d.err)
	}
	w.tick(2 * pollsToUnknown)
	w.nothingDelivered()
	simtest.Change(t, w.machine, func(s *engine.State) { s.Faults = nil })
	w.tick(1)
	if d := w.next(); len(d.snapshot.GPUs) != 8 || d.err != nil {
		t.Errorf("delivered %d GPUs, %v; want 8 and no error", len(d.snapshot.GPUs), d.err)
	}
}

func TestWatch_NVMLHangs_ReportsHealthUnknown(t *testing.T) {
	for _, atStart := range []bool{false, true} {
		t.Run(fmt.Sprint("at start ", atStart), func(t *testing.T) {
			w := newWatch(t, nil)
			hang, gpus := make(chan struct{}), 0
			if atStart {
				w.lib.hang.Store(&hang)
				w.start()
			} else {
				w.start()
				gpus = len(w.next().snapshot.GPUs)
				w.lib.hang.Store(&hang)
				w.tick(pollsPerScan)
			}
			release := sync.OnceFunc(func() {
				w.lib.hang.Store(nil)
				close(hang)
			})
			t.Cleanup(release) // A failed test would wait for the call.
			w.send(w.late, pollsToUnknown-1)
			w.nothingDelivered()
			w.send(w.late, 1)
			if d := w.next(); len(d.snapshot.GPUs) != gpus || !errors.Is(d.err, ErrHealthUnknown) {
				t.Fatalf("%d GPUs, %v; want the last %d and ErrHealthUnknown", len(d.snapshot.GPUs), d.err, gpus)
			}
			w.stored(gpus)
			w.send(w.late, 2*pollsToUnknown)
			w.nothingDelivered()
			release()
			if d := w.next(); len(d.snapshot.GPUs) != 8 || d.err != nil {
				t.Errorf("delivered %d GPUs, %v; want 8 and no error", len(d.snapshot.GPUs), d.err)
			}
			w.stored(8)
		})
	}
}

func TestWatch_ModeSwitchedMeanwhile_ScansAgainButNotForLong(t *testing.T) {
	w := startWatch(t, nil)
	w.next()
	take := func(off bool) {
		simtest.Change(t, w.machine, func(s *engine.State) {
			if g := &s.GPUs[0]; off {
				s.Remove(g)
			} else {
				s.Add(g)
			}
		})
	}
	w.i.o.Switches.Lock("")
	take(true)
	w.tick(pollsPerScan + 2)
	w.nothingDelivered()
	take(false)
	w.i.o.Switches.Unlock("")
	w.tick(2)
	w.nothingDelivered()
	// A switch that hangs does not hide the other GPUs' changes for ever.
	w.i.o.Switches.Lock("")
	take(true)
	w.tick(pollsPerScan + pollsToUnknown)
	if d := w.next(); len(d.snapshot.GPUs) != 7 || d.err != nil {
		t.Errorf("delivered %d GPUs, %v; want 7", len(d.snapshot.GPUs), d.err)
	}
	simtest.Change(t, w.machine, func(s *engine.State) { s.GPUs[1].Lost = true })
	w.tick(pollsPerScan)
	if d := w.next(); len(d.snapshot.GPUs) != 6 || d.err != nil {
		t.Errorf("delivered %d GPUs, %v; want 6", len(d.snapshot.GPUs), d.err)
	}
}

func TestWatch_ContextEnds_ReturnsItsError(t *testing.T) {
	w := startWatch(t, nil)
	w.next()
	w.cancel()
	err := <-w.ended
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Watch: %v", err)
	}
	w.ended <- err // for the clean-up
}

// polls is a Health of the first GPU.
type polls struct {
	readings []*health.Reading
	noDriver int
	gpu      health.GPU
}

func (p *polls) Poll(g gpu.GPU, r *health.Reading) health.GPU {
	if g.PCIAddress != "0000:1b:00.0" {
		return health.GPU{}
	}
	p.readings = append(p.readings, r)
	if r != nil {
		p.gpu = p.gpu.Poll(*r)
	}
	return p.gpu
}

func (p *polls) NoDriver() { p.noDriver++ }

func TestWatch_FaultyGPU_IsPolledWithEachScan(t *testing.T) {
	w := newWatch(t, nil)
	p := &polls{}
	w.i.o.Health = p
	w.start()
	w.next()
	simtest.Change(t, w.machine, func(s *engine.State) { s.GPUs[0].Recovery = 1 })
	w.tick(pollsPerScan)
	if d := w.next(); len(d.snapshot.GPUs[0].Faults) != 1 || len(d.snapshot.GPUs[1].Faults) != 0 {
		t.Fatalf("faults %+v, %+v", d.snapshot.GPUs[0].Faults, d.snapshot.GPUs[1].Faults)
	}
	simtest.Change(t, w.machine, func(s *engine.State) { s.GPUs[0].Recovery, s.GPUs[0].RemapPending = 0, true })
	w.tick(pollsPerScan)
	if d := w.next(); len(d.snapshot.GPUs[0].Faults) != 1 || len(d.snapshot.GPUs[0].Advice) != 1 {
		t.Fatalf("faults %+v, advice %+v", d.snapshot.GPUs[0].Faults, d.snapshot.GPUs[0].Advice)
	}
	w.tick(1) // The next scan comes at once.
	if d := w.next(); len(d.snapshot.GPUs[0].Faults) != 0 {
		t.Fatalf("faults %+v", d.snapshot.GPUs[0].Faults)
	}
	simtest.Change(t, w.machine, func(s *engine.State) { s.DriverLoaded = false })
	w.tick(pollsPerScan)
	w.next()
	if len(p.readings) != 4 || p.noDriver != 1 {
		t.Errorf("%d readings, %d times without a driver", len(p.readings), p.noDriver)
	}
}

func TestScan_HealthQueryFails_KeepsGPUAndReadsNothing(t *testing.T) {
	machine := simtest.Machine(t, "hgx-h100")
	simtest.Change(t, machine, func(s *engine.State) {
		s.Faults = []engine.Fault{{Query: "nvmlDeviceGetFieldValues", Code: nvml.Timeout}}
	})
	p, none := &polls{}, t.TempDir()
	s, err := New(Options{Library: nvmlfake.New(machine), ProcRoot: none, SysRoot: none, DevRoot: none, Health: p}).Scan(t.Context())
	if err != nil || len(s.GPUs) != 8 || len(p.readings) != 1 || p.readings[0] != nil {
		t.Errorf("%d GPUs, readings %v, %v", len(s.GPUs), p.readings, err)
	}
}

// interconnects are recorded for the GPU with a UUID.
type interconnects map[string]gpu.Interconnect

func (i interconnects) RecordedInterconnect(g gpu.GPU) gpu.Interconnect { return i[g.UUID] }

func TestKeepInterconnects_GPUInMIGMode_KeepsItsNVLinks(t *testing.T) {
	i := New(Options{})
	scan := func(g gpu.GPU) []gpu.Link {
		gpus := []gpu.GPU{g}
		i.keepInterconnects(gpus)
		i.remember(gpus)
		return gpus[0].Links
	}
	g := gpu.GPU{PCIAddress: "0000:1b:00.0", UUID: "GPU-0", Interconnect: gpu.Interconnect{Links: []gpu.Link{{Peer: gpu.PeerSwitch}}}}
	cut := g
	cut.MIG.Enabled, cut.Links = true, nil
	other := cut
	other.UUID = "GPU-1"
	down := g
	down.Links = nil
	scan(g)
	for range 2 {
		if len(scan(cut)) != 1 {
			t.Error("a GPU that is cut left its group")
		}
	}
	if len(scan(down)) != 0 || len(scan(cut)) != 0 {
		t.Error("links that went down are still there")
	}
	if scan(g); len(scan(other)) != 0 {
		t.Error("another board in the slot has the links of the one before")
	}
	// A plugin that starts while the GPU is cut goes by what an earlier run noted.
	i = New(Options{Interconnects: interconnects{g.UUID: g.Interconnect}})
	for range 2 {
		if len(scan(cut)) != 1 {
			t.Error("a GPU that is cut when the plugin starts is in no group")
		}
	}
	if len(scan(down)) != 0 || len(scan(other)) != 0 {
		t.Error("what was noted goes before what is seen, or is taken for another's")
	}
}

// TestWatch_GPUInMIGMode_DeliversRecordedLinksOnce has a GPU in MIG mode when the plugin starts. The next scan, which
// does not see its links, is the same as the first one.
func TestWatch_GPUInMIGMode_DeliversRecordedLinksOnce(t *testing.T) {
	w := newWatch(t, func(s *engine.State) { s.GPUs[0].MIGEnabled, s.GPUs[0].MIGPending = true, true })
	s, err := w.machine.State()
	if err != nil {
		t.Fatal(err)
	}
	w.i.o.Interconnects = interconnects{s.GPUs[0].UUID: {Links: []gpu.Link{{Version: 4, Peer: gpu.PeerSwitch}}}}
	w.start()
	delivered := w.next().snapshot
	if n := len(delivered.GPUs[0].Links); n != 1 {
		t.Errorf("%d links", n)
	}
	if diff := cmp.Diff(delivered, w.i.Scans.Snapshot()); diff != "" {
		t.Errorf("the stored Snapshot (-delivered +stored):\n%s", diff)
	}
	w.tick(2 * pollsPerScan)
	w.nothingDelivered()
}

func TestWatch_DriverReplaced_KeepsStoredSnapshot(t *testing.T) {
	w := startWatch(t, nil)
	w.next()
	w.lib.replaced.Store(true)
	w.tick(pollsPerScan)
	if d := w.next(); !errors.Is(d.err, nvml.ErrReplaced) || len(w.i.Scans.Snapshot().GPUs) != 8 {
		t.Errorf("%v, %d GPUs are stored", d.err, len(w.i.Scans.Snapshot().GPUs))
	}
}
