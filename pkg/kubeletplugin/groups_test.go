// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"strings"
	"testing"

	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/plan"
)

func TestAClaimIsToldOnceThatItsGroupIsParted(t *testing.T) {
	var reports []error
	n := newNode("n", func(err error) { reports = append(reports, err) })
	n.changed = func() {}
	linked := func(links ...int) gpu.Snapshot {
		s := gpu.Snapshot{Driver: gpu.Driver{Version: "580.126.09"}}
		for i, count := range links {
			g := gpu.GPU{PCIAddress: "0000:1" + string('0'+rune(i)) + ":00.0", UUID: "GPU-" + string('a'+rune(i)), ProductName: "NVIDIA H100 80GB HBM3"}
			for l := range count {
				g.Links = append(g.Links, gpu.Link{Index: l, Peer: gpu.PeerSwitch})
			}
			s.GPUs = append(s.GPUs, g)
		}
		return s
	}
	member := func(i int, admin bool) plan.Device {
		return plan.Device{Kind: gpu.KindGroup, Name: "nvlink-2-0000-10-00-0", PCIAddress: "0000:1" + string('0'+rune(i)) + ":00.0", Admin: admin}
	}
	n.holder = holding{plans: []plan.Plan{
		{Claim: plan.Claim{Namespace: "ns", Name: "c", UID: "u-1"}, Devices: []plan.Device{member(0, false), member(1, false)}},
		{Claim: plan.Claim{Namespace: "ns", Name: "watcher", UID: "u-2"}, Devices: []plan.Device{member(0, true), member(1, true)}},
	}}
	said := func(s gpu.Snapshot) (texts []string) {
		reports = nil
		if err := n.found(t.Context(), s, nil); err != nil {
			t.Fatal(err)
		}
		n.build(allFeatures)
		for _, err := range reports {
			if claimerror.ReasonOf(err) == claimerror.NVLinkDown {
				texts = append(texts, err.Error())
			}
		}
		return texts
	}
	for i, step := range []struct {
		snapshot gpu.Snapshot
		told     bool
	}{
		{linked(18, 18), false}, {linked(18, 17), true}, {linked(18, 17), false}, {linked(18, 18), false},
		{linked(18, 0), true}, {gpu.Snapshot{}, false}, {linked(18, 18), false},
	} {
		got := said(step.snapshot)
		if (len(got) == 1) != step.told || len(got) > 1 {
			t.Errorf("look %d: told %q, want %v", i, got, step.told)
		}
		for _, text := range got {
			if !strings.Contains(text, "nvlink-2-0000-10-00-0 for claim ns/c") || !strings.Contains(text, "nvidia-smi nvlink") {
				t.Errorf("look %d: %q", i, text)
			}
		}
	}
}
