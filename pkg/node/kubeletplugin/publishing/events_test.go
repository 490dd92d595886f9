// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"fmt"
	"strings"
	"testing"

	"gpu-dra-driver/internal/notify/notifytest"
	"gpu-dra-driver/internal/testing/layouttest"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
)

// TestNode_FaultyGPUsWithManyDevices_OneReportForEach has GPUs whose claims have partitions or a group. The devices of one GPU
// would otherwise use up the Events that client-go lets through about a node.
func TestNode_FaultyGPUsWithManyDevices_OneReportForEach(t *testing.T) {
	var reports []error
	n := newNode(t, NodeOptions{})
	n.o.Reports = notifytest.Reporter(func(err error) { reports = append(reports, err) })
	s := linked(18, 18, 18)
	s.GPUs[0].MIG = layouttest.H100()
	var plans []plan.Plan
	for i := range 3 {
		name := gpu.Device{Kind: gpu.KindMIG, PCIAddress: s.GPUs[0].PCIAddress, Profile: "1g.10gb", Start: i}.Name()
		plans = append(plans, plan.Plan{Claim: plan.Claim{UID: fmt.Sprint("u-", i)}, Devices: []plan.Device{
			{Kind: gpu.KindMIG, Name: name, PCIAddress: s.GPUs[0].PCIAddress, UUID: s.GPUs[0].UUID, Partition: plan.Partition{Profile: "1g.10gb", Start: i, Size: 1}},
		}})
	}
	group := func(i int) plan.Device {
		return plan.Device{Kind: gpu.KindGroup, Name: "nvlink-2-0000-11-00-0", PCIAddress: s.GPUs[i].PCIAddress, UUID: s.GPUs[i].UUID}
	}
	n.o.Records = held{plans: append(plans, plan.Plan{Claim: plan.Claim{UID: "u-group"}, Devices: []plan.Device{group(1), group(2)}})}
	scan := func() (texts []string) {
		reports = nil
		if err := n.Found(t.Context(), s, nil); err != nil {
			t.Fatal(err)
		}
		if _, ok := n.build(allFeatures); !ok {
			t.Fatal("no slices")
		}
		for _, err := range reports {
			if claimerror.ReasonOf(err) == claimerror.DeviceNotReady {
				texts = append(texts, err.Error())
			}
		}
		return texts
	}
	scan()
	reset := []gpu.Fault{{State: health.Reset, Cause: "XID 79"}}
	s.GPUs[0].Faults, s.GPUs[2].Faults = reset, reset
	got := scan()
	if len(got) != 2 {
		t.Fatalf("%d reports of two GPUs:\n%s", len(got), strings.Join(got, "\n"))
	}
	for i, parts := range [][]string{
		{"gpu-0000-10-00-0:", "XID 79", "gpu-0000-10-00-0-mig-1g-10gb-0, ", "gpu-0000-10-00-0-mig-1g-10gb-2)"}, {"gpu-0000-12-00-0:", "XID 79"},
	} {
		for _, part := range parts {
			if !strings.Contains(got[i], part) {
				t.Errorf("%q lacks %q", got[i], part)
			}
		}
	}
	if again := scan(); len(again) > 0 {
		t.Errorf("the same is reported again: %q", again)
	}
}
