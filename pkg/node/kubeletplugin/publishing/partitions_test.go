// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/notify/notifytest"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/kubeletplugin/reporting"
	"gpu-dra-driver/pkg/node/resourceslices"
)

const (
	at      = "0000:1b:00.0"
	asWhole = "gpu-0000-1b-00-0"
	part    = asWhole + "-mig-1g-10gb-4"
	beside  = asWhole + "-mig-1g-10gb-5"
)

// cuttable is a GPU of two memory slices and one profile; its partitions are at the given starts.
func cuttable(enabled bool, starts ...int) gpu.Snapshot {
	m := gpu.MIG{Capable: true, Enabled: enabled, Pending: enabled, Switchable: true, Profiles: []gpu.Profile{{
		ID: 19, Name: "1g.10gb", Slices: 1, Instances: 2, MemoryBytes: 10 << 30, Multiprocessors: 16,
		Placements: []gpu.Placement{{Start: 4, Size: 1}, {Start: 5, Size: 1}},
	}}}
	for _, start := range starts {
		m.Partitions = append(m.Partitions, gpu.Partition{
			Profile: "1g.10gb", Placement: gpu.Placement{Start: start, Size: 1}, GPUInstance: start + 3,
			Devices: []gpu.PartitionDevice{{UUID: "MIG-" + string(rune('0'+start))}},
		})
	}
	return gpu.Snapshot{Driver: gpu.Driver{Version: "580.1"}, GPUs: []gpu.GPU{
		{PCIAddress: at, UUID: "GPU-a", ProductName: "NVIDIA H100", Architecture: "Hopper", MemoryBytes: 20 << 30, MIG: m},
	}}
}

// onPartition is the plan of a claim that holds the partition at slice 4.
func onPartition(uuid string) plan.Plan {
	return plan.Plan{Claim: plan.Claim{Namespace: "ns", Name: "c", UID: "u"}, Devices: []plan.Device{{
		Kind: gpu.KindMIG, Name: part, PCIAddress: at, UUID: "GPU-a",
		Partition: plan.Partition{Profile: "1g.10gb", Start: 4, Size: 1, UUID: uuid},
	}}}
}

func (n *Node) published(t *testing.T, s gpu.Snapshot) map[string]resourceapi.Device {
	t.Helper()
	if err := n.Found(t.Context(), s, nil); err != nil {
		t.Fatal(err)
	}
	slices, ok := n.build(allFeatures)
	if !ok {
		t.Fatal("nothing was built")
	}
	out := map[string]resourceapi.Device{}
	for _, s := range slices {
		for _, d := range s.Devices {
			out[d.Name] = d
		}
	}
	return out
}

func TestNode_PartitionOwnedBeforeOrAfterTheScan_IsNotExternal(t *testing.T) {
	n := newNode(t, NodeOptions{})
	external := func(d map[string]resourceapi.Device) bool { return d[part].Attributes["uuid"].StringValue != nil }

	n.o.Records, n.o.Modes = held{plans: []plan.Plan{onPartition("MIG-4")}}, switched{gpus: map[string]bool{at: true}}
	d := n.published(t, cuttable(true, 4))
	if external(d) || len(d[asWhole].ConsumesCounters) != 1 {
		t.Errorf("a partition that a claim holds: %+v", d)
	}
	// The claim is released after the scan that shows its partition, before the slices are built from it.
	n.o.Records, n.o.Modes = held{}, switched{}
	d = n.published(t, cuttable(true, 4, 5))
	if external(d) {
		t.Error("the partition of a claim that was just released passes for an administrator's")
	}
	if _, there := d[asWhole]; there {
		t.Error("the whole is offered beside an administrator's partition")
	}
	if d := n.published(t, cuttable(true, 4)); !external(d) {
		t.Error("a partition that outlived its claim is not external")
	}
	n.o.AdoptExternal = true
	if d := n.published(t, cuttable(true, 4)); external(d) || len(d[asWhole].ConsumesCounters) != 1 {
		t.Error("an adopted partition is in the way")
	}
}

func TestNode_ModeNeedsReset_WholeIsPublishedOnlyIfAllowed(t *testing.T) {
	for _, c := range []struct{ adopts, ours, allowed, want bool }{
		{true, false, false, false}, {true, false, true, true}, {false, true, false, false}, {false, true, true, true},
	} {
		n := newNode(t, NodeOptions{AdoptExternal: c.adopts})
		n.o.AllowReset = c.allowed
		if c.ours {
			n.o.Modes = switched{gpus: map[string]bool{at: true}}
		}
		s := cuttable(true)
		s.GPUs[0].MIG.Switchable = false
		if _, there := n.published(t, s)[asWhole]; there != c.want {
			t.Errorf("%+v: the whole GPU is published: %v", c, there)
		}
	}
}

// TestNode_StuckPartition_OnlyItsPlaceIsTainted has a partition of an ended claim that NVML does not destroy.
func TestNode_StuckPartition_OnlyItsPlaceIsTainted(t *testing.T) {
	for _, adopts := range []bool{false, true} {
		var reports []string
		n := newNode(t, NodeOptions{AdoptExternal: adopts})
		n.o.Reports = notifytest.Reporter(func(err error) { reports = append(reports, err.Error()) })
		n.o.Modes = switched{gpus: map[string]bool{at: true}, stuck: map[string][]gpu.Partition{at: {{Profile: "1g.10gb", Placement: gpu.Placement{Start: 4, Size: 1}}}}}
		s := cuttable(true, 4)
		s.GPUs[0].MIG.Profiles[0].Multiprocessors = 0 // Otherwise one partition takes all of them.
		d := n.published(t, s)
		for name, want := range map[string]string{part: "stuck-partition", asWhole: "stuck-partition", beside: ""} {
			state := ""
			for _, taint := range d[name].Taints {
				state = taint.Value
			}
			if _, there := d[name]; !there || state != want || d[name].Attributes["uuid"].StringValue != nil && name == part {
				t.Errorf("%s: published %v, taint %q, want %q", name, there, state, want)
			}
		}
		if len(reports) != 1 || !strings.Contains(reports[0], "1g.10gb at slice 4") {
			t.Errorf("reports %v", reports)
		}
		// It was destroyed since the scan, which still lists it: it is not an administrator's.
		n.o.Modes = switched{gpus: map[string]bool{at: true}}
		pools, _ := n.build(allFeatures)
		if !slices.ContainsFunc(pools[0].Devices, func(d resourceapi.Device) bool { return d.Name == asWhole }) {
			t.Error("after the destruction the whole GPU is withdrawn until the next scan")
		}
	}
}

func TestNode_SwitchedModesUnreadable_BuildsNothing(t *testing.T) {
	var reports []error
	n := newNode(t, NodeOptions{Modes: switched{err: errors.New("disk")}})
	n.o.Reports = notifytest.Reporter(func(err error) { reports = append(reports, err) })
	if err := n.Found(t.Context(), cuttable(true), nil); err != nil {
		t.Fatal(err)
	}
	if _, ok := n.build(allFeatures); ok || len(reports) != 1 || !strings.Contains(reports[0].Error(), "disk") {
		t.Errorf("built, or not reported: %v", reports)
	}
}

func TestNode_ServerWithoutCounters_BuildsNothingThatOverlaps(t *testing.T) {
	n := newNode(t, NodeOptions{})
	if d := n.published(t, cuttable(false)); len(d) < 4 {
		t.Fatalf("with counters: %v", d)
	}
	without := allFeatures
	without.counters = false
	slices, ok := n.build(without)
	if !ok || len(slices) != 2 || len(slices[0].Devices) != 1 || len(slices[1].Devices) != 1 || slices[0].Devices[0].Name != asWhole || len(slices[0].Devices[0].ConsumesCounters) != 0 {
		t.Errorf("without counters: %+v", slices)
	}
}

func TestNode_PartitionNotScanned_IsMissingOnceSettled(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	n := newNode(t, NodeOptions{})
	n.now = func() time.Time { return now }
	n.o.Records = held{plans: []plan.Plan{onPartition("MIG-4")}}
	for _, tc := range []struct {
		name  string
		after time.Duration
		scan  gpu.Snapshot
		want  int
	}{
		{"it is new", 0, cuttable(true), 0},
		{"the scan may be older than the partition", scanGrace - 1, cuttable(true), 0},
		{"it is there", scanGrace, cuttable(true, 4), 0},
		{"NVML does not list its device", 2 * scanGrace, func() gpu.Snapshot {
			s := cuttable(true, 4)
			s.GPUs[0].MIG.Partitions[0].Devices, s.GPUs[0].MIG.Partitions[0].Unlisted = nil, true
			return s
		}(), 0},
		{"it is gone", 2 * scanGrace, cuttable(true), 1},
		{"another is in its place", 2 * scanGrace, func() gpu.Snapshot {
			s := cuttable(true, 4)
			s.GPUs[0].MIG.Partitions[0].Devices[0].UUID = "MIG-other"
			return s
		}(), 1},
		{"its GPU's MIG cannot be read", 2 * scanGrace, func() gpu.Snapshot {
			s := cuttable(true)
			s.GPUs[0].MIG.Fault = "unknown error"
			return s
		}(), 0},
		{"its GPU is gone", 2 * scanGrace, gpu.Snapshot{Driver: gpu.Driver{Version: "580.1"}}, 0},
	} {
		now = time.Unix(1_700_000_000, 0).Add(tc.after)
		n.published(t, tc.scan)
		missing := take(t, n.Missing)
		if len(missing) != tc.want || tc.want == 1 && (missing[0].Devices[0] != part || missing[0].Plan.Claim.UID != "u") {
			t.Errorf("%s: %+v", tc.name, missing)
		}
	}
	// Prepare notifies the node, which need not have seen the partition in a record.
	fresh := newNode(t, NodeOptions{})
	fresh.now = func() time.Time { return now }
	fresh.Prepared([]devicestate.PreparedDevice{{Device: onPartition("MIG-4").Devices[0]}})
	fresh.o.Records = held{plans: []plan.Plan{onPartition("MIG-4")}}
	now = now.Add(scanGrace)
	fresh.published(t, cuttable(true))
	if missing := take(t, fresh.Missing); len(missing) != 1 {
		t.Errorf("a partition that vanished at once: %+v", missing)
	}
}

// TestNode_HeldGPUNotListed_IsLostUnlessDriverIsGone has a GPU that NVML does not list at all, as after a removal from the
// PCI bus. NVML lists a lost GPU, and cannot read it.
func TestNode_HeldGPUNotListed_IsLostUnlessDriverIsGone(t *testing.T) {
	driver := gpu.Driver{Version: "580.1"}
	for name, tc := range map[string]struct {
		scan   gpu.Snapshot
		taint  string
		effect resourceapi.DeviceTaintEffect
		faulty int
	}{
		"not listed":         {gpu.Snapshot{Driver: driver}, "lost", resourceapi.DeviceTaintEffectNoExecute, 1},
		"the driver is gone": {gpu.Snapshot{}, "absent", resourceapi.DeviceTaintEffectNoSchedule, 0},
		"a GPU without an address cannot be read": {
			gpu.Snapshot{Driver: driver, Problems: []gpu.Problem{{Message: "unknown error"}}}, "absent", resourceapi.DeviceTaintEffectNoSchedule, 0,
		},
		"it cannot be read": {
			gpu.Snapshot{Driver: driver, Problems: []gpu.Problem{{PCIAddress: at, Message: "unknown error"}}}, "unreadable", resourceapi.DeviceTaintEffectNoSchedule, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, NodeOptions{Settings: resourceslices.Settings{Evict: []string{"lost"}}})
			n.o.Records = held{plans: []plan.Plan{onPartition("MIG-4")}}
			n.published(t, cuttable(true, 4))
			take(t, n.Faulty)
			taints := n.published(t, tc.scan)[part].Taints
			if len(taints) != 1 || taints[0].Value != tc.taint || taints[0].Effect != tc.effect {
				t.Errorf("taints %+v", taints)
			}
			if faulty := take(t, n.Faulty); len(faulty) != tc.faulty {
				t.Errorf("claims with faults: %+v", faulty)
			}
		})
	}
}

// TestNode_PartitionsPreparedInARow_EachIsCheckedAfterItsGrace has a partition that vanishes before a scan shows it, so
// that no scan differs from the last one.
func TestNode_PartitionsPreparedInARow_EachIsCheckedAfterItsGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, NodeOptions{})
		prepare := func(uuid string) {
			n.Prepared([]devicestate.PreparedDevice{{Device: onPartition(uuid).Devices[0]}})
			n.o.Records = held{plans: []plan.Plan{onPartition(uuid)}}
		}
		n.published(t, cuttable(true))
		prepare("MIG-4")
		time.Sleep(scanGrace + time.Second)
		prepare("MIG-5")
		var missing []reporting.Missing
		for end := time.After(3 * scanGrace); len(missing) == 0; {
			select {
			case <-n.Changed:
				n.build(allFeatures)
				missing = take(t, n.Missing)
			case <-end:
				t.Fatal("the loss of the second one was not noticed")
			}
		}
		if uuid := missing[0].Plan.Devices[0].Partition.UUID; uuid != "MIG-5" {
			t.Errorf("%s is missing", uuid)
		}
	})
}
