// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/nvml/nvmltest"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/nvmlfake"
	"gpu-dra-driver/sim/simtest"
)

// hangEnv is a machine of eight GPUs, of which the one at an index can hang. Its kernel lists the GPUs.
type hangEnv struct {
	*env
	calls *nvmltest.Calls
	uuid  string
	// address is the GPU's.
	address string
}

const hangingIndex = 3

func newHang(t *testing.T) *hangEnv {
	t.Helper()
	w := &hangEnv{env: newWatch(t, func(s *engine.State) {
		for i := range s.GPUs {
			s.GPUs[i].MIGEnabled, s.GPUs[i].MIGPending = i == hangingIndex, i == hangingIndex
		}
		_, _ = s.CreateInstance(&s.GPUs[hangingIndex], 19, 4)
	}), calls: new(nvmltest.Calls)}
	w.answerInterval = 50 * time.Millisecond
	w.lib.Library = nvmlfake.WithHook(w.machine, w.calls.Do)
	w.i.o.Health = &polls{}
	s, err := w.machine.State()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range s.GPUs {
		if err := os.MkdirAll(filepath.Join(w.dir, "driver/nvidia/gpus", g.Address), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w.uuid, w.address = s.GPUs[hangingIndex].UUID, s.GPUs[hangingIndex].Address
	return w
}

func (w *hangEnv) start() {
	w.env.start()
	w.t.Cleanup(func() { w.calls.Clear() })
}

// until lets time pass until Watch delivers it. The polls follow each other at once, so a healthy GPU that answers slowly on a
// machine under load can count as silent, and there can be other deliveries before.
func (w *hangEnv) until(what string, ok func(gpu.Snapshot) bool) gpu.Snapshot {
	w.t.Helper()
	late := time.After(30 * time.Second)
	var last delivery
	for {
		select {
		case w.ticks <- time.Time{}:
		case last = <-w.seen:
			if last.err == nil && ok(last.snapshot) {
				return last.snapshot
			}
		case <-late:
			w.t.Fatalf("%s: last delivered %d GPUs, problems %+v, %v", what, len(last.snapshot.GPUs), last.snapshot.Problems, last.err)
		}
	}
}

// answered returns once the calls that hung have returned: their session is closed then. Polls are five seconds apart, and
// the test's are not, so the GPU would miss more scans.
func (w *hangEnv) answered() {
	w.t.Helper()
	for began := time.Now(); w.lib.opened.Load() != w.lib.closed.Load(); time.Sleep(time.Millisecond) {
		if time.Since(began) > 30*time.Second {
			w.t.Fatal("a session stays open")
		}
	}
}

func whole(s gpu.Snapshot) bool {
	return len(s.GPUs) == 8 && len(s.Problems) == 0 && !slices.ContainsFunc(s.GPUs, func(g gpu.GPU) bool { return g.Silent })
}

// callsOfScan returns the functions of NVML that the first or a later scan calls for the GPU.
func callsOfScan(t *testing.T, later bool) (queries []string) {
	w := newHang(t)
	for range map[bool]int{false: 1, true: 2}[later] {
		w.calls.Answer(0, nvmltest.Nth(-1))
		if _, err := w.i.Scan(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range w.calls.Clear() {
		if c.GPU == w.uuid {
			queries = append(queries, c.Query)
		}
	}
	slices.Sort(queries)
	if queries = slices.Compact(queries); len(queries) < 15 {
		t.Fatalf("a scan calls %v", queries)
	}
	return queries
}

// TestWatch_OneGPUHangs_OthersDelivered lets each call of a scan hang for one GPU of eight, from the start or later.
func TestWatch_OneGPUHangs_OthersDelivered(t *testing.T) {
	for _, query := range callsOfScan(t, false) {
		t.Run(query+" at start", func(t *testing.T) {
			w := newHang(t)
			w.calls.Hang(nvmltest.Of(query, w.uuid))
			w.start()
			want := []gpu.Problem{{PCIAddress: w.address, Index: hangingIndex, Silent: true, Message: gpu.SilentText}}
			w.until("the others", func(s gpu.Snapshot) bool { return len(s.GPUs) == 7 && cmp.Equal(want, s.Problems) })
			w.calls.Clear()
			w.until("all, after the hang", whole)
		})
	}
	for _, query := range callsOfScan(t, true) {
		t.Run(query+" later", func(t *testing.T) {
			w := newHang(t)
			w.start()
			first := w.until("all", whole)
			w.calls.Hang(nvmltest.Of(query, w.uuid))
			silent := w.until("the GPU alone as silent", func(s gpu.Snapshot) bool {
				return !slices.ContainsFunc(s.GPUs, func(g gpu.GPU) bool { return g.Silent != (g.UUID == w.uuid) })
			})
			silent.GPUs[hangingIndex].Silent = false
			if diff := cmp.Diff(first, silent); diff != "" {
				t.Errorf("a GPU that hangs changes (-before +meanwhile):\n%s", diff)
			}
			simtest.Change(t, w.machine, func(s *engine.State) { s.GPUs[1].Lost = true })
			w.until("another lost GPU", func(s gpu.Snapshot) bool { return len(s.GPUs) == 7 && len(s.Problems) == 1 && s.Problems[0].Lost })
			simtest.Change(t, w.machine, func(s *engine.State) { s.GPUs[1].Lost = false })
			w.calls.Clear()
			w.until("all, after the hang", whole)
		})
	}
}

// TestWatch_ShortHang_DeliversNothing has a GPU that answers again before it counts as silent.
func TestWatch_ShortHang_DeliversNothing(t *testing.T) {
	w := newHang(t)
	w.start()
	w.until("all", whole)
	hung := w.calls.Hang(nvmltest.On(w.uuid))
	for len(hung) == 0 {
		w.tick(1)
	}
	for range pollsToUnknown - 3 {
		w.tick(1)
	}
	w.calls.Clear()
	w.answered()
	for range 3 * pollsPerScan {
		w.tick(1)
	}
	w.nothingDelivered()
}

// TestWatch_PeerQueryHangs_KeepsLastAnswer lets the question for the peers of one GPU hang.
func TestWatch_PeerQueryHangs_KeepsLastAnswer(t *testing.T) {
	for _, atStart := range []bool{false, true} {
		t.Run(fmt.Sprint("at start ", atStart), func(t *testing.T) {
			w := newHang(t)
			s, err := w.machine.State()
			if err != nil {
				t.Fatal(err)
			}
			hang := func() { w.calls.Hang(nvmltest.Of("nvmlDeviceGetP2PStatus", s.GPUs[7].UUID)) }
			if atStart {
				hang()
			}
			w.start()
			unreachable := map[bool]int{false: 0, true: 6}[atStart]
			w.until("all", func(s gpu.Snapshot) bool { return whole(s) && len(s.GPUs[7].Unreachable) == unreachable })
			if !atStart {
				hang()
				for range 2 * pollsPerScan {
					w.tick(1)
				}
				w.nothingDelivered()
				simtest.Change(t, w.machine, func(s *engine.State) { s.GPUs[1].Lost = true })
				w.until("another lost GPU", func(s gpu.Snapshot) bool { return len(s.GPUs) == 7 })
				simtest.Change(t, w.machine, func(s *engine.State) { s.GPUs[1].Lost = false })
			}
			w.calls.Clear()
			w.until("all, after the hang", func(s gpu.Snapshot) bool { return whole(s) && len(s.GPUs[7].Unreachable) == 0 })
		})
	}
}
