// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/notify/notifytest"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
)

// TestCause_FaultsOfGPUs_NamesXIDs has two GPUs with the same state and one with another one. A group does not name its
// GPUs, so its cause is specific only if there is one.
func TestCause_FaultsOfGPUs_NamesXIDs(t *testing.T) {
	n := newNode(t, NodeOptions{})
	n.snapshot = &gpu.Snapshot{GPUs: []gpu.GPU{
		{PCIAddress: "0000:1b:00.0", Faults: []gpu.Fault{{State: health.Reset, Cause: "XID 46, GPU timeout"}}},
		{PCIAddress: "0000:1c:00.0", Faults: []gpu.Fault{{State: health.Reset, Cause: "XID 62, microcontroller halt"}}},
		{PCIAddress: "0000:1d:00.0", Faults: []gpu.Fault{{State: health.Lost, Cause: "XID 79, GPU off the bus"}}},
		{PCIAddress: "0000:1e:00.0"},
	}}
	for _, tc := range []struct{ device, state, want string }{
		{"gpu-0000-1b-00-0", health.Reset, "XID 46, GPU timeout"},
		{"gpu-0000-1b-00-0-mig-1g-10gb-0", health.Reset, "XID 46, GPU timeout"},
		{"gpu-0000-1c-00-0", health.Reset, "XID 62, microcontroller halt"},
		{"nvlink-2-0000-1b-00-0", health.Reset, "the driver asks for a reset of the GPU"},
		{"nvlink-2-0000-1d-00-0", health.Lost, "XID 79, GPU off the bus"},
		{"gpu-0000-1e-00-0", health.Lost, "the GPU has fallen off the bus"},
		{"gpu-0000-1b-00-0", "withheld", ""},
		{"odd", health.Reset, "the driver asks for a reset of the GPU"},
	} {
		if got := n.cause(tc.device, tc.state); got != tc.want {
			t.Errorf("cause(%s, %s) = %q, want %q", tc.device, tc.state, got, tc.want)
		}
	}
}

func TestFound_Advice_IsReportedOnce(t *testing.T) {
	n := newNode(t, NodeOptions{})
	var reports []string
	n.o.Reports = notifytest.Reporter(func(err error) { reports = append(reports, err.Error()) })
	a, b := gpu.GPU{PCIAddress: "0000:1b:00.0", UUID: "GPU-a"}, gpu.GPU{PCIAddress: "0000:1c:00.0", UUID: "GPU-b"}
	slow := a
	slow.Advice = []gpu.Fault{{State: health.SlowClocks, Cause: "heat"}}
	blind := b
	blind.Unmonitored = "no events"
	for _, gpus := range [][]gpu.GPU{{a, b}, {slow, b}, {slow, blind}, {slow, blind}, {a, b}, {slow, b}} {
		if err := n.Found(t.Context(), gpu.Snapshot{GPUs: gpus}, nil); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, r := range reports {
		device, _, _ := strings.Cut(strings.TrimPrefix(r, "health check failed for "), ":")
		got = append(got, device)
	}
	if diff := cmp.Diff([]string{"gpu-0000-1b-00-0", "gpu-0000-1c-00-0", "gpu-0000-1b-00-0"}, got); diff != "" {
		t.Errorf("reports (-want +got):\n%s\n%q", diff, reports)
	}
}
