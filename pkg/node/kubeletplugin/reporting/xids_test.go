// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package reporting

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	env "gpu-dra-driver/internal/testing/kubeletplugintest"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/health/watcher"
)

// TestAffectedDevices_Partitions_OnlyThoseAtFault has two GPUs: one with partitions and a monitor, and a whole one.
func TestAffectedDevices_Partitions_OnlyThoseAtFault(t *testing.T) {
	partition := func(name string, instance int) plan.Device {
		return plan.Device{Name: name, Kind: gpu.KindMIG, PCIAddress: "0000:10:00.0", UUID: "GPU-0", Partition: plan.Partition{GPUInstance: instance}}
	}
	p := plan.Plan{Devices: []plan.Device{
		partition("one", 1), partition("two", 2),
		{Name: "monitor", Kind: gpu.KindMonitor, PCIAddress: "0000:10:00.0", UUID: "GPU-0"},
		{Name: "admin", Kind: gpu.KindGPU, Admin: true, PCIAddress: "0000:10:00.0", UUID: "GPU-0"},
		{Name: "whole", Kind: gpu.KindGPU, PCIAddress: "0000:11:00.0", UUID: "GPU-1"},
	}}
	first, second := gpu.GPU{PCIAddress: "0000:10:00.0", UUID: "GPU-0"}, gpu.GPU{PCIAddress: "0000:11:00.0", UUID: "GPU-1"}
	for name, tc := range map[string]struct {
		event watcher.Event
		want  []string
	}{
		"a partition":           {watcher.Event{GPU: first, GPUInstance: 2}, []string{"two"}},
		"the GPU":               {watcher.Event{GPU: first, GPUInstance: -1}, []string{"one", "two"}},
		"a partition that left": {watcher.Event{GPU: first, GPUInstance: 3}, nil},
		"another GPU":           {watcher.Event{GPU: second, GPUInstance: -1}, []string{"whole"}},
		"an instance of it":     {watcher.Event{GPU: second, GPUInstance: 0}, nil},
		"the slot's next board": {watcher.Event{GPU: gpu.GPU{PCIAddress: "0000:10:00.0", UUID: "GPU-2"}, GPUInstance: -1}, nil},
	} {
		if diff := cmp.Diff(tc.want, affectedDevices(p, tc.event)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestXIDs_Repetitions_OncePerMinuteAndBounded(t *testing.T) {
	x := NewXIDs(Claims{}, nil)
	now := time.Now()
	due := func(code uint64, at time.Time) bool { return x.due(watcher.Key{UUID: "GPU-0", XID: code}, at) }
	if !due(31, now) || due(31, now.Add(xidInterval-1)) || !due(13, now) || !due(31, now.Add(xidInterval)) {
		t.Error("an XID is due once a minute")
	}
	for code := range uint64(2 * maxXIDs) {
		due(1000+code, now)
	}
	if len(x.last) > maxXIDs || due(5000, now) || !due(5000, now.Add(xidInterval)) {
		t.Errorf("%d XIDs are remembered", len(x.last))
	}
}

// TestClaimStatus_XIDsOfEndedClaims_Forgotten reports XIDs after Unprepared.
func TestClaimStatus_XIDsOfEndedClaims_Forgotten(t *testing.T) {
	e := env.New(t)
	w := NewClaimStatus(e.Client, env.Driver, e.Metrics)
	for i := range 100 {
		w.setXID(types.UID(fmt.Sprint(i)), "gpu-0", 13, "text")
	}
	w.keepXIDs([]plan.Plan{{Claim: plan.Claim{UID: "7"}}, {Claim: plan.Claim{UID: "none"}}})
	if len(w.xids) != 1 || w.xids["7"] == nil {
		t.Errorf("XIDs of %d claims are remembered, want only those of the prepared one", len(w.xids))
	}
}
