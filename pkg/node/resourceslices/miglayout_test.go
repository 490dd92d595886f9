// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices_test

import (
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/testing/layouttest"
	"gpu-dra-driver/internal/testing/sharingtest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
)

// elsewhere is parsed for a node that publishes no placement of profiles that no object asks for.
func elsewhere(t testing.TB, file string, serving ...string) resourceslices.Options {
	t.Helper()
	s, _, err := sharing.Parse([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	return withSharing(sharing.Node{Name: "n1", Settings: s, MPS: true, Demand: sharingtest.NoDemand{
		Elsewhere: true, Serving: serving, Profiles: []string{"1g.10gb"},
	}})
}

// layoutsOf returns the migLayout of each whole GPU.
func (s *scheduler) layoutsOf() (out []string) {
	for _, slice := range s.slices {
		for _, d := range slice.Spec.Devices {
			if *d.Attributes["type"].StringValue == string(gpu.KindGPU) {
				name := ""
				if a, ok := d.Attributes[wire.MIGLayoutAttribute]; ok {
					name = *a.StringValue
				}
				out = append(out, name)
			}
		}
	}
	return out
}

func TestBuild_AnotherNodeHasTheOnePlacement_PlainGPUs(t *testing.T) {
	board := snapshot(t, "hgx-h100", 8)
	for file, want := range map[string]struct{ devices, sets, partitions int }{
		"publish: [{profiles: Auto, groups: Auto, monitors: Auto}]":            {8, 0, 0},
		"publish: [{profiles: Auto, groups: All, monitors: None}]":             {15, 9, 0},
		"publish: [{profiles: [Auto, 3g.40gb], groups: Auto, monitors: None}]": {24, 8, 16},
	} {
		s := newScheduler(t, board, elsewhere(t, file))
		devices, sets := 0, 0
		for _, slice := range s.slices {
			devices, sets = devices+len(slice.Spec.Devices), sets+len(slice.Spec.SharedCounters)
			for _, d := range slice.Spec.Devices {
				if want.sets == 0 && len(d.ConsumesCounters) > 0 {
					t.Errorf("%s: %s has counters", file, d.Name)
				}
			}
		}
		partitions := 0
		placements, _ := profilesOf(s)
		for _, n := range placements {
			partitions += n
		}
		if devices != want.devices || sets != want.sets || partitions != want.partitions {
			t.Errorf("%s: %d devices, %d sets of counters and %d partitions, want %+v", file, devices, sets, partitions, want)
		}
	}
}

// TestBuild_PlacementsOfThreeGPUs_FollowTheDemand counts the published partitions 1g.10gb, and those that a claim can get.
func TestBuild_PlacementsOfThreeGPUs_FollowTheDemand(t *testing.T) {
	cut := boards(3, layouttest.H100())
	for n := range cut.GPUs {
		cut.GPUs[n].MIG.Enabled, cut.GPUs[n].MIG.Pending = true, true // By an administrator, so that no whole GPU exists.
	}
	for name, want := range map[string]struct {
		board               gpu.Snapshot
		placements          sharing.Placements
		published, toClaims int
	}{
		"all":                     {boards(3, layouttest.H100()), sharing.AllPlacements, 21, 21},
		"ending":                  {boards(3, layouttest.H100()), sharing.EndingPlacements, 21, 1},
		"ending, none stays":      {boards(3, layouttest.H100()), sharing.EndingAllPlacements, 21, 0},
		"one":                     {boards(3, layouttest.H100()), sharing.OnePlacement, 1, 1},
		"the one is ending":       {boards(3, layouttest.H100()), sharing.EndingOnePlacement, 1, 0},
		"later":                   {boards(3, layouttest.H100()), sharing.LaterPlacements, 0, 0},
		"later, GPUs only in MIG": {cut, sharing.LaterPlacements, 1, 1},
		"by no means":             {boards(3, layouttest.H100()), sharing.NoPlacement, 0, 0},
	} {
		o := withSharing(sharingtest.Source{PlacementsOf: func(gpu.GPU, string) sharing.Placements { return want.placements }})
		published, toClaims := 0, 0
		for _, slice := range newScheduler(t, want.board, o).slices {
			for _, d := range slice.Spec.Devices {
				if p := d.Attributes["profile"].StringValue; p == nil || *p != "1g.10gb" {
					continue
				}
				published++
				if len(d.Taints) == 0 {
					toClaims++
				}
			}
		}
		if published != want.published || toClaims != want.toClaims {
			t.Errorf("%s: %d partitions, %d to claims, want %d and %d", name, published, toClaims, want.published, want.toClaims)
		}
	}
}

// TestBuild_MIGLayout_NamesWhatANodeCouldPublish compares nodes with one of eight H100 that no object asks anything of.
func TestBuild_MIGLayout_NamesWhatANodeCouldPublish(t *testing.T) {
	const file = "publish: [{profiles: Auto}]"
	board := func() gpu.Snapshot { return mpsBoards(2, layouttest.H100()) }
	first := newScheduler(t, board(), parsed(t, file)).layoutsOf()
	if len(first) != 2 || first[0] == "" || first[0] != first[1] {
		t.Fatalf("layouts %q", first)
	}
	held := elsewhere(t, file)
	held.Held = []resourceslices.Held{{
		Device: gpu.Device{Kind: gpu.KindMIG, PCIAddress: "0000:10:00.0", Profile: "1g.10gb", Start: 3}, Size: 1, GPU: board().GPUs[0],
		Share: true, Shared: "MPS",
	}}
	external := elsewhere(t, file)
	external.External = map[string][]gpu.Partition{"0000:11:00.0": {{Profile: "1g.10gb+me", Placement: gpu.Placement{Start: 6, Size: 1}}}}
	model, newer, smaller := board(), board(), board()
	for n := range model.GPUs {
		model.GPUs[n].ProductName += " PCIe"
		smaller.GPUs[n].MIG.Profiles = slices.Clone(smaller.GPUs[n].MIG.Profiles)
		smaller.GPUs[n].MIG.Profiles[0].MemoryBytes -= 1 << 20
	}
	newer.Driver.Version = "999.1.1"
	unlike := elsewhere(t, "{sharing: {strategy: None}, "+file+"}")
	for name, c := range map[string]struct {
		board gpu.Snapshot
		o     resourceslices.Options
		same  bool
	}{
		"another node publishes the one":   {board(), elsewhere(t, file), true},
		"all are published":                {board(), parsed(t, "publish: []"), true},
		"a claim holds a share":            {board(), held, true},
		"an administrator cut a GPU":       {board(), external, true},
		"another driver":                   {newer, elsewhere(t, file), true},
		"another model":                    {model, elsewhere(t, file), false},
		"another size":                     {smaller, elsewhere(t, file), false},
		"other settings of shares":         {board(), unlike, false},
		"a profile is always published":    {board(), elsewhere(t, "publish: [{profiles: [Auto, 1g.10gb]}, {}]"), true},
		"other profiles":                   {board(), elsewhere(t, "publish: [{profiles: [1g.10gb]}]"), false},
		"only the GPU is shared":           {board(), elsewhere(t, "publish: [{profiles: Auto, shareable: GPUs}]"), false},
		"no partitions":                    {board(), elsewhere(t, "publish: [{profiles: None}]"), false},
		"no partitions, whatever is asked": {mpsBoards(2, gpu.MIG{}), elsewhere(t, file), false},
	} {
		got := newScheduler(t, c.board, c.o).layoutsOf()
		if len(got) != 2 || (got[0] == first[0]) != c.same || (got[1] == first[0]) != c.same {
			t.Errorf("%s: layouts %q, as before: want %v", name, got, c.same)
		}
		if none := strings.HasPrefix(name, "no partitions"); none != (got[0] == "") {
			t.Errorf("%s: layout %q", name, got[0])
		}
	}
}

// TestMIGLayout_PublishedPartitions_HaveTheNameOfTheirGPU finds a layout in slices as readers of a cluster do.
func TestMIGLayout_PublishedPartitions_HaveTheNameOfTheirGPU(t *testing.T) {
	for _, file := range []string{"publish: []", "publish: [{profiles: Auto}]", "publish: [{profiles: [Auto, 3g.40gb], shareable: None}]"} {
		s := newScheduler(t, mpsBoards(2, layouttest.H100()), parsed(t, file))
		want := s.layoutsOf()[0]
		var l resourceslices.MIGLayout
		seen := map[string]bool{}
		for _, slice := range s.slices {
			for _, set := range slice.Spec.SharedCounters {
				l.Counters = set.Counters
			}
			for _, d := range slice.Spec.Devices {
				if p := d.Attributes["profile"].StringValue; p != nil && !seen[*p] {
					seen[*p] = true
					l.Partitions = append(l.Partitions, d)
				}
			}
		}
		if got := l.Name(); got != want {
			t.Errorf("%s: %s, want %s", file, got, want)
		}
		changed := l
		changed.Partitions = slices.Clone(l.Partitions)
		changed.Partitions[0].Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{}
		if changed.Name() == want || (resourceslices.MIGLayout{Counters: l.Counters, Partitions: l.Partitions[1:]}).Name() == want {
			t.Errorf("%s: another content has the same name", file)
		}
	}
}

// TestBuild_MIGMode_SettingsSeeTheAdministrators has GPUs whose MIG mode claims and an administrator switched on.
func TestBuild_MIGMode_SettingsSeeTheAdministrators(t *testing.T) {
	board := boards(3, layouttest.H100())
	for i := range 2 {
		board.GPUs[i].MIG.Enabled, board.GPUs[i].MIG.Pending = true, true
	}
	seen := map[string]bool{}
	o := withSharing(sharingtest.Source{PlacementsOf: func(g gpu.GPU, _ string) sharing.Placements {
		seen[g.PCIAddress] = seen[g.PCIAddress] || g.MIG.Enabled
		return sharing.AllPlacements
	}})
	o.Switched = map[string]bool{board.GPUs[0].PCIAddress: true}
	newScheduler(t, board, o)
	for i, want := range []bool{false, true, false} {
		if got := seen[board.GPUs[i].PCIAddress]; got != want {
			t.Errorf("GPU %d counts as cut by an administrator: %v", i, got)
		}
	}
}
