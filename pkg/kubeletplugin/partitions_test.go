// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"errors"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/plan"
)

const (
	at      = "0000:1b:00.0"
	asWhole = "gpu-0000-1b-00-0"
	part    = asWhole + "-mig-1g-10gb-4"
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

// cutting is a node of one GPU.
func cutting(t *testing.T) (*node, *[]suspicion) {
	t.Helper()
	var heard []suspicion
	n := newNode("n1", func(err error) { t.Log(err) })
	n.changed = func() {}
	n.suspect = func(s []suspicion) { heard = s }
	n.mig.Switched = func() (map[string]bool, error) { return nil, nil }
	n.holder = holding{}
	return n, &heard
}

func (n *node) published(t *testing.T, s gpu.Snapshot) map[string]resourceapi.Device {
	t.Helper()
	if err := n.found(t.Context(), s, nil); err != nil {
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

func TestAPartitionIsForeignOnlyIfNoRecordOwnsItBeforeOrAfterTheLook(t *testing.T) {
	switched := map[string]bool{}
	n, _ := cutting(t)
	n.mig.Switched = func() (map[string]bool, error) { return switched, nil }
	foreign := func(d map[string]resourceapi.Device) bool { return d[part].Attributes["uuid"].StringValue != nil }

	n.holder, switched[at] = holding{plans: []plan.Plan{onPartition("MIG-4")}}, true
	d := n.published(t, cuttable(true, 4))
	if foreign(d) || len(d[asWhole].ConsumesCounters) != 1 {
		t.Errorf("a partition that a claim holds: %+v", d)
	}
	// The claim is released after the look that shows its partition, before the slices are built from it.
	n.holder, switched = holding{}, map[string]bool{}
	d = n.published(t, cuttable(true, 4, 5))
	if foreign(d) {
		t.Error("the partition of a claim that was just released passes for an administrator's")
	}
	if _, there := d[asWhole]; there {
		t.Error("the whole is offered beside an administrator's partition")
	}
	if d := n.published(t, cuttable(true, 4)); !foreign(d) {
		t.Error("a partition that outlived its claim is nobody's")
	}
	n.mig.AdoptForeign = true
	if d := n.published(t, cuttable(true, 4)); foreign(d) || len(d[asWhole].ConsumesCounters) != 1 {
		t.Error("an adopted partition is in the way")
	}
}

func TestWithoutKnowingWhoseModesTheyAreNothingIsPublished(t *testing.T) {
	var reports []error
	n, _ := cutting(t)
	n.report = func(err error) { reports = append(reports, err) }
	n.mig.Switched = func() (map[string]bool, error) { return nil, errors.New("disk") }
	if err := n.found(t.Context(), cuttable(true), nil); err != nil {
		t.Fatal(err)
	}
	if _, ok := n.build(allFeatures); ok || len(reports) != 1 || !strings.Contains(reports[0].Error(), "disk") {
		t.Errorf("built, or not reported: %v", reports)
	}
}

func TestAServerWithoutCountersGetsNothingThatOverlaps(t *testing.T) {
	n, _ := cutting(t)
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

func TestAPartitionIsMissedOnceLooksHadTheTimeToShowIt(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	n, heard := cutting(t)
	n.now = func() time.Time { return now }
	n.holder = holding{plans: []plan.Plan{onPartition("MIG-4")}}
	for _, tc := range []struct {
		name  string
		after time.Duration
		look  gpu.Snapshot
		want  int
	}{
		{"it is new", 0, cuttable(true), 0},
		{"a look may still be older than it", settled - 1, cuttable(true), 0},
		{"it is there", settled, cuttable(true, 4), 0},
		{"it is gone", 2 * settled, cuttable(true), 1},
		{"another is in its place", 2 * settled, func() gpu.Snapshot {
			s := cuttable(true, 4)
			s.GPUs[0].MIG.Partitions[0].Devices[0].UUID = "MIG-other"
			return s
		}(), 1},
		{"its GPU's MIG cannot be read", 2 * settled, func() gpu.Snapshot {
			s := cuttable(true)
			s.GPUs[0].MIG.Fault = "unknown error"
			return s
		}(), 0},
		{"its GPU is gone", 2 * settled, gpu.Snapshot{Driver: gpu.Driver{Version: "580.1"}}, 0},
	} {
		now = time.Unix(1_700_000_000, 0).Add(tc.after)
		n.published(t, tc.look)
		if len(*heard) != tc.want || tc.want == 1 && ((*heard)[0].devices[0] != part || (*heard)[0].plan.Claim.UID != "u") {
			t.Errorf("%s: %+v", tc.name, *heard)
		}
	}
	// Told of it by Prepare, the node need not have seen it in a record.
	fresh, heard := cutting(t)
	fresh.now = func() time.Time { return now }
	fresh.holds([]devicestate.PreparedDevice{{Device: onPartition("MIG-4").Devices[0]}})
	fresh.holder = holding{plans: []plan.Plan{onPartition("MIG-4")}}
	now = now.Add(settled)
	if fresh.published(t, cuttable(true)); len(*heard) != 1 {
		t.Errorf("a partition that vanished at once: %+v", *heard)
	}
}

func TestCountersThatAServerDropsAreNoticed(t *testing.T) {
	set := resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{SharedCounters: []resourceapi.CounterSet{{Name: "s"}}}}
	device := resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Devices: []resourceapi.Device{{
		Name: "d", ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: "s"}},
	}}}}
	for name, sent := range map[string]resourceapi.ResourceSlice{"shared": set, "consumed": device} {
		if got := kept(&sent, &sent); !got.counters {
			t.Errorf("%s counters that were kept count as dropped", name)
		}
		dropped := sent.DeepCopy()
		dropped.Spec.SharedCounters = nil
		for i := range dropped.Spec.Devices {
			dropped.Spec.Devices[i].ConsumesCounters = nil
		}
		if got := kept(&sent, dropped); got.counters || !got.taints {
			t.Errorf("%s counters: %+v", name, got)
		}
	}
	if f := allFeatures.and(features{taints: true}); f.counters || f.sharedDevices || !f.taints {
		t.Errorf("%+v", f)
	}
}

func TestAGPUKeepsItsNVLinksWhileItIsCut(t *testing.T) {
	n := newNode("n", func(error) {})
	n.changed = func() {}
	look := func(g gpu.GPU) []gpu.Link {
		t.Helper()
		if err := n.found(t.Context(), gpu.Snapshot{GPUs: []gpu.GPU{g}}, nil); err != nil {
			t.Fatal(err)
		}
		return n.current().GPUs[0].Links
	}
	g := gpu.GPU{PCIAddress: "0000:1b:00.0", UUID: "GPU-0", Interconnect: gpu.Interconnect{Links: []gpu.Link{{Peer: gpu.PeerSwitch}}}}
	cut := g
	cut.MIG.Enabled, cut.Links = true, nil
	other := cut
	other.UUID = "GPU-1"
	down := g
	down.Links = nil
	look(g)
	for range 2 {
		if len(look(cut)) != 1 {
			t.Error("a GPU that is cut left its group")
		}
	}
	if len(look(down)) != 0 || len(look(cut)) != 0 {
		t.Error("links that went down are still there")
	}
	if look(g); len(look(other)) != 0 {
		t.Error("another board in the slot has the links of the one before")
	}
	// A plugin that starts while the GPU is cut goes by what an earlier run noted.
	n = newNode("n", func(error) {})
	n.changed = func() {}
	n.mig.RecordedInterconnect = func(is gpu.GPU) gpu.Interconnect {
		if is.UUID != g.UUID {
			return gpu.Interconnect{}
		}
		return g.Interconnect
	}
	for range 2 {
		if len(look(cut)) != 1 {
			t.Error("a GPU that is cut when the plugin starts is in no group")
		}
	}
	if len(look(down)) != 0 || len(look(other)) != 0 {
		t.Error("what was noted goes before what is seen, or is taken for another's")
	}
}
