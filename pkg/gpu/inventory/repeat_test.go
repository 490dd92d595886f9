// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/nvmltest"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/nvmlfake"
)

// newFaulty is a Watch of a machine whose kernel lists its GPUs and whose calls of NVML can fail. GPU 3 has a partition.
func newFaulty(t *testing.T) (*env, *nvmltest.Calls, string) {
	t.Helper()
	w := newWatch(t, func(s *engine.State) { s.GPUs[3].MIGEnabled, s.GPUs[3].MIGPending = true, true })
	partition(t, w.machine, 19, 0, false)
	s, err := w.machine.State()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range s.GPUs {
		w.write("driver/nvidia/gpus/" + g.Address + "/information")
	}
	calls := new(nvmltest.Calls)
	w.lib.Library = nvmlfake.WithHook(w.machine, calls.Do)
	return w, calls, s.GPUs[3].UUID
}

// scanCalls are the calls of a scan, each once: those about the GPU with the UUID, and those about none.
func scanCalls(t *testing.T) (out []nvmltest.Call) {
	t.Helper()
	w, calls, uuid := newFaulty(t)
	calls.Answer(0, nvmltest.Nth(0))
	w.start()
	w.next()
	met := map[nvmltest.Call]bool{}
	for _, c := range calls.Clear() {
		if (c.GPU == uuid || c.GPU == "") && !met[c] {
			out, met[c] = append(out, c), true
		}
	}
	if len(out) < 20 {
		t.Fatalf("calls %v", out)
	}
	return out
}

// deliveries returns what was delivered until now.
func (w *env) deliveries() (out []delivery) {
	for {
		select {
		case d := <-w.seen:
			out = append(out, d)
		default:
			return out
		}
	}
}

// kinds are codes that the driver handles in different ways.
var kinds = []nvml.Code{
	nvml.NotSupported, nvml.NotFound, nvml.DriverNotLoaded, nvml.GPUIsLost, nvml.LibRMMismatch, nvml.GPUNotFound, nvml.Unknown,
}

// TestWatch_AnyCallFails_OtherGPUsAndDriverStay makes each call of a scan fail with each code. The call is about one GPU, or
// about none. It fails in one scan, in the first scan after the plugin's start, or for good.
func TestWatch_AnyCallFails_OtherGPUsAndDriverStay(t *testing.T) {
	for _, c := range scanCalls(t) {
		for _, code := range nvmltest.Codes(t, c.Query) {
			if !slices.Contains(kinds, code) {
				continue
			}
			for _, when := range []string{"once", "once at start", "for good"} {
				t.Run(fmt.Sprint(c, ", ", int(code), ", ", when), func(t *testing.T) {
					t.Parallel()
					w, calls, uuid := newFaulty(t)
					want := scan(t, New(w.i.o))
					fails := nvmltest.Of(c.Query, c.GPU)
					strike := func() {
						scans := 0
						calls.Answer(code, func(n int, other nvmltest.Call) bool {
							if other.Query == "nvmlInit_v2" {
								scans++
							}
							return fails(n, other) && (scans == 1 || when == "for good")
						})
					}
					if when == "once at start" {
						strike()
					}
					w.start()
					if when != "once at start" {
						w.next()
						strike()
					}
					w.tick(pollsPerScan + 3)
					last := delivery{snapshot: want}
					for _, d := range w.deliveries() {
						if errors.Is(d.err, ErrNoDriver) {
							t.Error("the kernel has the driver:", d.err)
						}
						if len(d.snapshot.GPUs) == 0 && d.err != nil && when == "once at start" {
							continue // NVML has not answered yet.
						}
						if len(d.snapshot.GPUs) != 8 && when != "for good" {
							t.Errorf("%d GPUs, problems %+v, %v", len(d.snapshot.GPUs), d.snapshot.Problems, d.err)
						}
						if diff := cmp.Diff(want, d.snapshot); diff != "" && when == "once" {
							t.Errorf("(-before +delivered) with %v:\n%s", d.err, diff)
						}
						for _, g := range want.GPUs {
							if now, ok := d.snapshot.ByAddress(g.PCIAddress); g.UUID != uuid && c.GPU != "" && (!ok || now.MIG.Fault != "") {
								t.Errorf("GPU %s: %+v", g.PCIAddress, now)
							}
						}
						last = d
					}
					if when == "once at start" { // The links of GPU 3 were unknown before.
						want.GPUs[3].Interconnect = last.snapshot.GPUs[3].Interconnect
					}
					if diff := cmp.Diff(want, last.snapshot); (diff != "" || last.err != nil) && when != "for good" {
						t.Errorf("in the end (-before +delivered) with %v:\n%s", last.err, diff)
					}
				})
			}
		}
	}
}
