// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
)

// TestCollectHealth_GPUsAndProblems_HaveStates has a well GPU, a faulty one without a reading, a lost one, an unknown one, one that hangs
// and two GPUs with one UUID. Claims have a GPU that is not listed, and one that an administrator watches. A value that the driver does not have is absent.
func TestCollectHealth_GPUsAndProblems_HaveStates(t *testing.T) {
	m := New(Options{Node: "n1"})
	last := map[string]health.Reading{
		"a": {Corrected: 7, CorrectedRows: -1, UncorrectedRows: 2}, "c": {}, "d": {Recovery: health.NoRecovery, Corrected: -1, Uncorrected: -1, CorrectedRows: -1, UncorrectedRows: -1},
	}
	s := gpu.Snapshot{
		Driver: gpu.Driver{Version: "580.1"},
		GPUs: []gpu.GPU{
			{PCIAddress: "a", UUID: "GPU-a", Advice: []gpu.Fault{{State: health.RemapPending}}},
			{PCIAddress: "b", UUID: "GPU-b", Faults: []gpu.Fault{{State: health.Reset}, {State: health.Memory}}, Unmonitored: "no events"},
			{PCIAddress: "d", UUID: "GPU-d"},
			{PCIAddress: "j", UUID: "GPU-j", Silent: true},
		},
		Problems: []gpu.Problem{
			{PCIAddress: "c", Lost: true}, {PCIAddress: "i"}, {PCIAddress: "e", UUID: "GPU-e"}, {PCIAddress: "f", UUID: "GPU-e"},
		},
	}
	records := fakeRecords{plans: []plan.Plan{{Devices: []plan.Device{
		{PCIAddress: "g", UUID: "GPU-g"}, {PCIAddress: "g", UUID: "GPU-g"}, {PCIAddress: "h", UUID: "GPU-h", Admin: true}, {PCIAddress: "a", UUID: "GPU-a"},
	}}}}
	m.CollectHealth(scan(s), records, func(address string) (string, health.Reading, bool) {
		r, ok := last[address]
		return "GPU-" + address, r, ok
	})
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	var got, named []string
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "gpu_dra_gpu_info") {
			named = append(named, strings.TrimSpace(line))
		}
		if strings.HasPrefix(line, "gpu_dra_device_") && !strings.HasPrefix(line, "gpu_dra_device_plugin") {
			got = append(got, strings.TrimPrefix(strings.TrimSpace(line), "gpu_dra_device_"))
		}
	}
	slices.Sort(got)
	want := []string{
		`ecc_errors_total{type="corrected",uuid="GPU-a"} 7`,
		`ecc_errors_total{type="uncorrected",uuid="GPU-a"} 0`,
		`health{state="healthy",uuid="GPU-a"} 1`,
		`health{state="healthy",uuid="GPU-d"} 1`,
		`health{state="lost",uuid="GPU-c"} 1`,
		`health{state="lost",uuid="GPU-g"} 1`,
		`health{state="memory",uuid="GPU-b"} 1`,
		`health{state="remap-pending",uuid="GPU-a"} 1`,
		`health{state="reset",uuid="GPU-b"} 1`,
		`health{state="unmonitored",uuid="GPU-b"} 1`,
		`health{state="unreadable",uuid="GPU-e"} 1`,
		`health{state="unreadable",uuid="GPU-j"} 1`,
		`recovery_action{uuid="GPU-a"} 0`,
		`remapped_rows{cause="uncorrected",uuid="GPU-a"} 2`,
	}
	// Each UUID has its names once, for queries that join them.
	if len(named) != 7 || !slices.Contains(named, `gpu_dra_gpu_info{device="gpu-b",model="",node="n1",uuid="GPU-b"} 1`) {
		t.Errorf("names of GPUs: %q", named)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
