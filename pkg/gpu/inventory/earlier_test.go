// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/nvmltest"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/nvmlfake"
	"gpu-dra-driver/sim/simtest"
)

// newKept is a machine whose plugin keeps its last Snapshot for the next one.
func newKept(t *testing.T) *hangEnv {
	t.Helper()
	w, dir := newHang(t), t.TempDir()
	boot := filepath.Join(dir, "boot")
	if err := os.WriteFile(boot, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.i.o.File, w.i.o.Host = filepath.Join(dir, "gpus.json"), host.New(host.Options{BootIDFile: boot})
	return w
}

// nextProcess is the next process on the machine. The first one gets no more ticks.
func (w *hangEnv) nextProcess() *hangEnv {
	w.t.Helper()
	n := newHang(w.t)
	n.machine, n.uuid, n.address = w.machine, w.uuid, w.address
	n.lib.Library = nvmlfake.WithHook(w.machine, n.calls.Do)
	n.i.o.File, n.i.o.Host = w.i.o.File, w.i.o.Host
	return n
}

// unknown lets time pass until the health of the GPUs is unknown.
func (w *hangEnv) unknown(ticks chan time.Time) gpu.Snapshot {
	w.t.Helper()
	late := time.After(30 * time.Second)
	for {
		select {
		case ticks <- time.Time{}:
		case d := <-w.seen:
			if errors.Is(d.err, ErrHealthUnknown) {
				return d.snapshot
			}
			if len(d.snapshot.GPUs) > 0 {
				w.t.Errorf("%d GPUs are delivered without an answer", len(d.snapshot.GPUs))
			}
		case <-late:
			w.t.Fatal("the health stays known")
		}
	}
}

func TestWatch_NVMLDoesNotAnswerAtStart_EarlierSnapshotStands(t *testing.T) {
	for name, c := range map[string]struct {
		between func(w *hangEnv)
		hangs   bool
		want    int
	}{
		"fails": {want: 8},
		"hangs": {hangs: true, want: 8},
		"of another boot": {between: func(w *hangEnv) {
			w.i.o.Host = host.New(host.Options{})
		}},
		"damaged": {between: func(w *hangEnv) {
			if err := os.WriteFile(w.i.o.File, []byte("{"), 0o600); err != nil {
				w.t.Fatal(err)
			}
		}},
		"no file": {between: func(w *hangEnv) {
			if err := os.Remove(w.i.o.File); err != nil {
				w.t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newKept(t)
			w.start()
			before := w.until("all", whole)
			w.tick(1) // It is saved.
			if c.between != nil {
				c.between(w)
			}
			n := w.nextProcess()
			ticks := n.ticks
			if c.hangs {
				hang := make(chan struct{})
				n.lib.hang.Store(&hang)
				defer close(hang) // Before the cleanup, which waits for the scan.
				ticks = n.late
			} else {
				simtest.Change(t, n.machine, func(s *engine.State) { s.Faults = []engine.Fault{{Query: "nvmlInit", Code: nvml.Unknown}} })
			}
			n.start()
			got := n.unknown(ticks)
			if len(got.GPUs) != c.want {
				t.Fatalf("%d GPUs, want %d", len(got.GPUs), c.want)
			}
			if diff := cmp.Diff(before, got); diff != "" && c.want > 0 {
				t.Errorf("the earlier process had other GPUs (-before +now):\n%s", diff)
			}
			n.stored(0)
			if c.hangs {
				return
			}
			simtest.Change(t, n.machine, func(s *engine.State) { s.Faults, s.GPUs[7].Lost = nil, true })
			n.until("the answer", func(s gpu.Snapshot) bool { return len(s.GPUs) == 7 })
		})
	}
}

// TestWatch_OneGPUHangsAtStart_KeepsItsEarlierState lets each call of a first scan hang for one GPU, after an earlier process
// had its answers. A GPU that was silent then is silent at once.
func TestWatch_OneGPUHangsAtStart_KeepsItsEarlierState(t *testing.T) {
	for _, query := range append(callsOfScan(t, false), "silent before") {
		t.Run(query, func(t *testing.T) {
			w := newKept(t)
			w.start()
			before := w.until("all", whole)
			hung := nvmltest.Of(query, w.uuid)
			if query == "silent before" {
				hung = nvmltest.On(w.uuid)
				w.calls.Hang(hung)
				before = w.until("it as silent", func(s gpu.Snapshot) bool { return len(s.GPUs) == 8 && s.GPUs[hangingIndex].Silent })
			}
			w.tick(1) // It is saved.
			n := w.nextProcess()
			n.calls.Hang(hung)
			n.start()
			if diff := cmp.Diff(before, n.next().snapshot); diff != "" {
				t.Errorf("the first answer (-before +now):\n%s", diff)
			}
			if !before.GPUs[hangingIndex].Silent {
				n.until("it as silent", func(s gpu.Snapshot) bool { return len(s.GPUs) == 8 && s.GPUs[hangingIndex].Silent })
			}
			n.calls.Clear()
			n.until("all, after the hang", whole)
		})
	}
}
