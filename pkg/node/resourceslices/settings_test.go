// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/layouttest"
	"gpu-dra-driver/internal/testing/sharingtest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
)

func withSharing(s sharing.Source) resourceslices.Options {
	return resourceslices.Options{Sharing: s}
}

// parsed returns the options of a settings file. No object asks for a profile or a group.
func parsed(t testing.TB, file string) resourceslices.Options {
	t.Helper()
	s, _, err := sharing.Parse([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	return withSharing(sharing.Node{Name: "n1", Settings: s, MPS: true, Demand: sharingtest.NoDemand{}})
}

// profilesOf counts the placements of each profile, and the devices that can be shared.
func profilesOf(s *scheduler) (placements map[string]int, shareable int) {
	placements = map[string]int{}
	for _, slice := range s.slices {
		for _, d := range slice.Spec.Devices {
			if p := d.Attributes["profile"].StringValue; p != nil {
				placements[*p]++
			}
			if d.AllowMultipleAllocations != nil && len(d.Taints) == 0 {
				shareable++
			}
		}
	}
	return placements, shareable
}

func TestBuild_PublishSettingsOfGroups_LeaveOutGroupsAndCounters(t *testing.T) {
	for file, want := range map[string]int{
		"":                         3,
		"publish: [{groups: All}]": 3,
		"publish: [{groups: None, profiles: None}]":           0,
		"publish: [{groups: Auto}]":                           0,
		"publish: [{products: ['*A100*'], groups: None}, {}]": 3,
	} {
		s := newScheduler(t, hgx(4, gpu.MIG{}), parsed(t, file))
		groups, counters := 0, 0
		for _, slice := range s.slices {
			counters += len(slice.Spec.SharedCounters)
			for _, d := range slice.Spec.Devices {
				if *d.Attributes["type"].StringValue == string(gpu.KindGroup) {
					groups++
				}
			}
		}
		if groups != want || counters != min(want, 1) {
			t.Errorf("%q: %d groups and %d sets of counters, want %d", file, groups, counters, want)
		}
	}
}

func TestBuild_PublishSettings_LeaveOutDevices(t *testing.T) {
	for file, want := range map[string]struct{ small, large, all, shareable int }{
		"":                                   {7, 2, 25, 26},
		"publish: [{nodes: [n2]}]":           {7, 2, 25, 26},
		"publish: [{profiles: All}]":         {7, 2, 25, 26},
		"publish: [{profiles: None}]":        {0, 0, 0, 1},
		"publish: [{profiles: [1g.10gb]}]":   {7, 0, 7, 8},
		"publish: [{profiles: ['?g.40gb']}]": {0, 2, 3, 4},
		"publish: [{profiles: Auto}]":        {1, 1, 7, 8},
		"publish: [{shareable: None}]":       {7, 2, 25, 0},
		"publish: [{shareable: GPUs}]":       {7, 2, 25, 1},
		"publish: [{shareable: Partitions}]": {7, 2, 25, 25},
		"publish: [{nodes: ['n?'], profiles: None, shareable: None}]":          {0, 0, 0, 0},
		"publish: [{profiles: [Auto, 1g.10gb, 3g.40gb]}]":                      {7, 2, 14, 15},
		"publish: [{products: ['*A100*'], profiles: None}, {shareable: None}]": {7, 2, 25, 0},
		"{sharing: {strategy: None}, publish: [{shareable: All}]}":             {7, 2, 25, 0},
	} {
		t.Run(file, func(t *testing.T) {
			got, shareable := profilesOf(newScheduler(t, mpsBoards(1, layouttest.H100()), parsed(t, file)))
			all := 0
			for _, n := range got {
				all += n
			}
			if got["1g.10gb"] != want.small || got["3g.40gb"] != want.large || all != want.all || shareable != want.shareable {
				t.Errorf("placements %v (%d), %d shareable, want %+v", got, all, shareable, want)
			}
		})
	}
}

// TestBuild_ProfileNoObjectAsksFor_OnePlacementOfTheNode also ends a profile: its claims, which the node does not know yet,
// keep their places meanwhile.
func TestBuild_ProfileNoObjectAsksFor_OnePlacementOfTheNode(t *testing.T) {
	snapshot := boards(3, layouttest.H100())
	placements := map[string]sharing.Placements{}
	o := withSharing(sharingtest.Source{PlacementsOf: func(_ gpu.GPU, profile string) sharing.Placements { return placements[profile] }})
	s := newScheduler(t, snapshot, o)
	one := profile("1g.10gb")
	s.want(s.claim("mig.nvidia.com", 1, one), "gpu-0000-10-00-0-mig-1g-10gb-0")
	s.want(s.claim("mig.nvidia.com", 1, one), "gpu-0000-10-00-0-mig-1g-10gb-1")
	placements["1g.10gb"] = sharing.EndingPlacements
	s.slices = newScheduler(t, snapshot, o).slices
	s.want(s.claim("mig.nvidia.com", 1, one))
	s.want(s.claim("gpu.nvidia.com", 2), "gpu-0000-11-00-0", "gpu-0000-12-00-0")
	s.want(s.claim("gpu.nvidia.com", 1)) // The first GPU is cut.
	if got, _ := profilesOf(s); got["1g.10gb"] != 21 {
		t.Errorf("%v", got)
	}
	placements["1g.10gb"] = sharing.OnePlacement
	for _, start := range []int{0, 1} {
		o.Held = append(o.Held, resourceslices.Held{
			Device: gpu.Device{Kind: gpu.KindMIG, PCIAddress: "0000:10:00.0", Profile: "1g.10gb", Start: start}, Size: 1, GPU: snapshot.GPUs[0],
		})
	}
	s.slices = newScheduler(t, snapshot, o).slices
	if got, _ := profilesOf(s); got["1g.10gb"] != 3 || got["3g.40gb"] != 6 {
		t.Errorf("%v, want the held ones and another one", got)
	}
	s.want(s.claim("gpu.nvidia.com", 1))
}

// TestBuild_SettingsChangeUnderClaims_NeverOverlap has claims of all kinds come and go while the settings change.
func TestBuild_SettingsChangeUnderClaims_NeverOverlap(t *testing.T) {
	files := []string{
		"", "publish: [{profiles: None}]", "publish: [{profiles: None, shareable: None}]", "publish: [{profiles: [1g.10gb], shareable: GPUs}]",
		"publish: [{profiles: [3g.40gb, 1g.10gb+me], shareable: Partitions}]", "publish: [{shareable: None}]",
		"publish: [{profiles: Auto}]", "publish: [{profiles: [Auto, 1g.10gb], shareable: None}]",
		"publish: [{groups: None}]", "publish: [{profiles: None, groups: None, shareable: None}]", "publish: [{profiles: Auto, groups: Auto}]",
	}
	m := layouttest.H100()
	for name, snapshot := range map[string]gpu.Snapshot{
		"alone": mpsBoards(3, m), "without MIG": mpsBoards(3, gpu.MIG{}), "linked": hgx(4, m), "linked without MIG": hgx(4, gpu.MIG{}),
	} {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seedtest.Base(t), uint64(len(name))))
			s := newScheduler(t, snapshot, resourceslices.Options{})
			var prepared []resourceapi.DeviceRequestAllocationResult
			given := 0
			for range seedtest.Count(300) {
				if r.IntN(3) == 0 { // The settings change, and the node publishes again.
					file := files[r.IntN(len(files))]
					o := parsed(t, file)
					if r.IntN(2) == 0 {
						o = elsewhere(t, file, lastGPUs(snapshot, r.IntN(len(snapshot.GPUs)+1))...)
					}
					for _, d := range prepared {
						o.Held = append(o.Held, heldBy(t, m, d)...)
					}
					s.slices = newScheduler(t, snapshot, o).slices
				}
				if len(prepared) > 0 && r.IntN(5) < 2 {
					n := r.IntN(len(prepared))
					s.end(prepared[n])
					prepared = slices.Delete(prepared, n, n+1)
					continue
				}
				c := []*resourceapi.ResourceClaim{
					s.claim("gpu.nvidia.com", 1), s.claim("mig.nvidia.com", 1), s.gpu("memory", "30Gi"), s.group(2),
					s.claim("mig.nvidia.com", 1, profile(m.Profiles[r.IntN(len(m.Profiles))].Name)),
					requesting(s.claim("mig.nvidia.com", 1), "memory", "4Gi"),
				}[r.IntN(6)]
				results, err := s.results(c)
				if err != nil || len(results) == 0 {
					continue
				}
				given++
				prepared = append(prepared, results[0])
				s.begin(results[0])
				failOnDoubleUse(t, m, prepared)
			}
			if !testing.Short() && given < 50 {
				t.Errorf("only %d claims got a device, which proves little", given)
			}
		})
	}
}

// begin and end keep the scheduler's state of an allocation.
func (s *scheduler) begin(d resourceapi.DeviceRequestAllocationResult) {
	if d.ShareID != nil {
		s.share(d)
		return
	}
	s.allocated.Insert(s.id(d.Device))
}

func (s *scheduler) end(d resourceapi.DeviceRequestAllocationResult) {
	if d.ShareID != nil {
		s.unshare(slices.IndexFunc(s.shares, func(one share) bool { return one.id == *d.ShareID }))
		return
	}
	s.release(d.Device)
}

// heldBy is the record of an allocation.
func heldBy(t *testing.T, m gpu.MIG, d resourceapi.DeviceRequestAllocationResult) (out []resourceslices.Held) {
	t.Helper()
	named, err := gpu.ParseName(d.Device)
	if err != nil {
		t.Fatal(err)
	}
	h := resourceslices.Held{Device: named, Share: d.ShareID != nil, GPU: gpu.GPU{PCIAddress: named.PCIAddress}}
	if p, ok := m.ProfileNamed(named.Profile); ok {
		h.Size, h.MemoryBytes = p.Placements[0].Size, p.MemoryBytes
	}
	if memory := d.ConsumedCapacity["memory"]; h.Share && memory.Value() <= 30<<30 {
		h.Shared = v1beta1.StrategyMPS
	}
	if named.Kind != gpu.KindGroup {
		return []resourceslices.Held{h}
	}
	for _, member := range slots(named) {
		h.GPU.PCIAddress = member
		out = append(out, h)
	}
	return out
}

// failOnDoubleUse fails if claims have overlapping devices, or more of a device than there is.
func failOnDoubleUse(t *testing.T, m gpu.MIG, prepared []resourceapi.DeviceRequestAllocationResult) {
	t.Helper()
	ids := sets.New[structured.DeviceID]()
	memory, claims, exclusive := map[string]int64{}, map[string]int{}, map[string]int{}
	for _, d := range prepared {
		ids.Insert(structured.MakeDeviceID(d.Driver, d.Pool, d.Device))
		claims[d.Device]++
		consumed := d.ConsumedCapacity["memory"]
		memory[d.Device] += consumed.Value()
		if d.ShareID == nil {
			exclusive[d.Device]++
		}
	}
	for device, n := range claims {
		limit := int64(81559 << 20)
		if named, _ := gpu.ParseName(device); named.Kind == gpu.KindMIG {
			p, _ := m.ProfileNamed(named.Profile)
			limit = int64(p.MemoryBytes)
		}
		if exclusive[device] > 0 && n > 1 || memory[device] > limit {
			t.Fatalf("%s has %d claims, %d of all of it, of %d bytes", device, n, exclusive[device], memory[device])
		}
	}
	failOnOverlap(t, m, ids)
}

// TestBuild_GroupsEnd_TaintedUntilTheyAreGone keeps a group that a claim holds, and its counters.
func TestBuild_GroupsEnd_TaintedUntilTheyAreGone(t *testing.T) {
	snapshot := hgx(4, gpu.MIG{})
	asked := sharing.AllPlacements
	o := withSharing(sharingtest.Source{GroupsOf: func(gpu.GPU) sharing.Placements { return asked }})
	s := newScheduler(t, snapshot, o)
	got := s.allocate(s.group(2))
	if len(got) != 1 {
		t.Fatalf("%v was allocated", got)
	}
	asked = sharing.EndingPlacements
	s.slices = newScheduler(t, snapshot, o).slices
	s.want(s.group(2)) // The other group of two is tainted; the claim's one still counts.
	if left := s.allocate(s.claim("gpu.nvidia.com", 3)); len(left) != 0 {
		t.Errorf("%v of a group's GPUs were allocated", left)
	}
	asked = sharing.NoPlacement
	o.Held = heldBy(t, gpu.MIG{}, resourceapi.DeviceRequestAllocationResult{Device: got[0]})
	s.slices = newScheduler(t, snapshot, o).slices
	if left := s.allocate(s.claim("gpu.nvidia.com", 3)); len(left) != 0 {
		t.Errorf("%v of a group's GPUs were allocated", left)
	}
	if left := s.allocate(s.claim("gpu.nvidia.com", 2)); len(left) != 2 {
		t.Errorf("%v were allocated, want the other two GPUs", left)
	}
}
