// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"strings"
	"testing"

	"gpu-dra-driver/internal/notify/notifytest"
	"gpu-dra-driver/internal/testing/sharingtest"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
)

// linked returns GPUs with so many links to switches.
func linked(links ...int) gpu.Snapshot {
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

func member(i int, admin bool) plan.Device {
	return plan.Device{Kind: gpu.KindGroup, Name: "nvlink-2-0000-10-00-0", PCIAddress: "0000:1" + string('0'+rune(i)) + ":00.0", Admin: admin}
}

func TestNode_GroupsSwitchedOff_PublishesHeldGroupUntilRelease(t *testing.T) {
	n := newNode(t, sharingAs(sharingtest.Source{GroupsOf: func(gpu.GPU) sharing.Placements { return sharing.NoPlacement }}))
	if err := n.Found(t.Context(), linked(18, 18), nil); err != nil {
		t.Fatal(err)
	}
	n.fired()
	for _, step := range []struct {
		plans []plan.Plan
		want  int // Groups and sets of counters.
	}{
		{[]plan.Plan{{Claim: plan.Claim{UID: "u-1"}, Devices: []plan.Device{member(0, false), member(1, false)}}}, 1}, {nil, 0},
	} {
		n.o.Records = held{plans: step.plans}
		built, ok := n.build(allFeatures)
		groups, counters := 0, 0
		for _, s := range built {
			counters += len(s.SharedCounters)
			for _, d := range s.Devices {
				if d.Name == "nvlink-2-0000-10-00-0" {
					groups++
				}
			}
		}
		if !ok || groups != step.want || counters != step.want {
			t.Errorf("%d groups and %d sets of counters (%v), want %d", groups, counters, ok, step.want)
		}
		n.Released()
		if fired := n.fired(); fired != (step.want > 0) {
			t.Errorf("a release triggers a build: %v", fired)
		}
	}
}

func TestNode_GroupIsSplit_NotifiesTheClaimOnce(t *testing.T) {
	var reports []error
	n := newNode(t, NodeOptions{})
	n.o.Reports = notifytest.Reporter(func(err error) { reports = append(reports, err) })
	n.o.Records = held{plans: []plan.Plan{
		{Claim: plan.Claim{Namespace: "ns", Name: "c", UID: "u-1"}, Devices: []plan.Device{member(0, false), member(1, false)}},
		{Claim: plan.Claim{Namespace: "ns", Name: "watcher", UID: "u-2"}, Devices: []plan.Device{member(0, true), member(1, true)}},
	}}
	notified := func(s gpu.Snapshot) (texts []string) {
		reports = nil
		if err := n.Found(t.Context(), s, nil); err != nil {
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
	// The second GPU hangs, and was never read.
	silent := linked(18)
	silent.Problems = []gpu.Problem{{PCIAddress: member(1, false).PCIAddress, Index: 1, Silent: true, Message: gpu.SilentText}}
	for i, step := range []struct {
		snapshot gpu.Snapshot
		notified bool
	}{
		{silent, false},
		{linked(18, 18), false}, {linked(18, 17), true}, {linked(18, 17), false}, {linked(18, 18), false},
		{linked(18, 0), true}, {gpu.Snapshot{}, false}, {linked(18, 18), false},
	} {
		got := notified(step.snapshot)
		if (len(got) == 1) != step.notified || len(got) > 1 {
			t.Errorf("scan %d: notified %q, want %v", i, got, step.notified)
		}
		for _, text := range got {
			if !strings.Contains(text, "nvlink-2-0000-10-00-0 of claim ns/c") || !strings.Contains(text, "nvidia-smi nvlink") {
				t.Errorf("scan %d: %q", i, text)
			}
		}
	}
}
