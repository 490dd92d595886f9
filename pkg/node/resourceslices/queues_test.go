// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/testing/layouttest"
	"gpu-dra-driver/internal/testing/sharingtest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/sim/profiles"
)

// charge returns the charge of Kueue v0.19.2 for a device by the counter memory: the largest of its consumptions
// (computeCounterCharges in pkg/dra/counters.go). Without such a counter the workload stays pending.
func charge(d resourceapi.Device) (out int64) {
	for _, c := range d.ConsumesCounters {
		memory := c.Counters["memory"].Value
		out = max(out, memory.Value())
	}
	return out
}

// TestBuild_SimulatedBoards_KueueChargesMemory checks the charges of all devices of a whole board.
func TestBuild_SimulatedBoards_KueueChargesMemory(t *testing.T) {
	for _, name := range profiles.Names() {
		p, err := profiles.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		s := newScheduler(t, snapshot(t, name, len(p.Slots)), resourceslices.Options{})
		charged := map[string]bool{}
		for _, slice := range s.slices {
			for _, d := range slice.Spec.Devices {
				memory := d.Capacity["memory"].Value
				kind := *d.Attributes["type"].StringValue
				if len(d.ConsumesCounters) == 0 {
					continue // Kueue can count it, or its capacity.
				}
				charged[kind] = true
				want := memory.Value()
				if name == "h100-nvl-4" && kind == string(gpu.KindGroup) {
					want /= 2 // Kueue charges the larger of the two GPUs. docs/queues.md says so.
				}
				if got := charge(d); got == 0 || got != want {
					t.Errorf("%s: %s costs %d bytes, and Kueue charges %d", name, d.Name, want, got)
				}
			}
		}
		if name == "hgx-h100" && len(charged) != 3 {
			t.Errorf("%s: only devices of type %v are charged", name, charged)
		}
	}
}

// utilization is the arithmetic of cluster-autoscaler since 1.36.0 for one pool: the mean over its counter sets of each
// set's fullest counter. Without sets it is the part of the devices that claims hold. The documentation of
// cluster-autoscaler (docs/dra_support.md, "Node consolidation") is its source.
func (s *scheduler) utilization(pool string) float64 {
	devices, held, taken, sets := 0, 0, map[string]map[string]int64{}, []resourceapi.CounterSet{}
	for _, slice := range s.slices {
		if slice.Spec.Pool.Name != pool {
			continue
		}
		sets = append(sets, slice.Spec.SharedCounters...)
		for _, d := range slice.Spec.Devices {
			devices++
			if !s.allocated.Has(s.id(d.Name)) {
				continue
			}
			held++
			for _, c := range d.ConsumesCounters {
				if taken[c.CounterSet] == nil {
					taken[c.CounterSet] = map[string]int64{}
				}
				for name, n := range c.Counters {
					taken[c.CounterSet][name] += n.Value.Value()
				}
			}
		}
	}
	if len(sets) == 0 {
		return float64(held) / float64(max(devices, 1))
	}
	sum := 0.0
	for _, set := range sets {
		fullest := 0.0
		for name, n := range set.Counters {
			fullest = max(fullest, float64(taken[set.Name][name])/float64(n.Value.Value()))
		}
		sum += fullest
	}
	return sum / float64(len(sets))
}

// TestBuild_ClusterAutoscalersUtilization_IsKnown holds the numbers of docs/queues.md. Cluster-autoscaler removes a node
// with less than 0.5 if its pods can move.
func TestBuild_ClusterAutoscalersUtilization_IsKnown(t *testing.T) {
	whole := func(n int64) func(*scheduler) *resourceapi.ResourceClaim {
		return func(s *scheduler) *resourceapi.ResourceClaim { return s.claim("gpu.nvidia.com", n) }
	}
	group := func(n int) func(*scheduler) *resourceapi.ResourceClaim {
		return func(s *scheduler) *resourceapi.ResourceClaim { return s.group(n) }
	}
	cut := func(name string, n int64) func(*scheduler) *resourceapi.ResourceClaim {
		return func(s *scheduler) *resourceapi.ResourceClaim { return s.claim("mig.nvidia.com", n, profile(name)) }
	}
	h100 := func(t *testing.T) gpu.Snapshot { return snapshot(t, "hgx-h100", 8) }
	for _, c := range []struct {
		what   string
		board  func(*testing.T) gpu.Snapshot
		claims []func(*scheduler) *resourceapi.ResourceClaim
		want   float64
	}{
		{"HGX H100, eight GPUs", h100, []func(*scheduler) *resourceapi.ResourceClaim{whole(8)}, 1},
		{"HGX H100, one GPU", h100, []func(*scheduler) *resourceapi.ResourceClaim{whole(1)}, 2. / 9},
		{"HGX H100, three GPUs", h100, []func(*scheduler) *resourceapi.ResourceClaim{whole(3)}, 4. / 9},
		{"HGX H100, four GPUs", h100, []func(*scheduler) *resourceapi.ResourceClaim{whole(4)}, 5. / 9},
		{"HGX H100, a group of 8", h100, []func(*scheduler) *resourceapi.ResourceClaim{group(8)}, 1. / 9},
		{"HGX H100, two groups of 4", h100, []func(*scheduler) *resourceapi.ResourceClaim{group(4), group(4)}, 1. / 9},
		{"HGX H100, a group of 2", h100, []func(*scheduler) *resourceapi.ResourceClaim{group(2)}, 1. / 9},
		{"HGX H100, a partition 1g.10gb", h100, []func(*scheduler) *resourceapi.ResourceClaim{cut("1g.10gb", 1)}, (1 + 1./8) / 9},
		{"HGX H100, groups but no partitions, one GPU", h100, []func(*scheduler) *resourceapi.ResourceClaim{whole(1)}, 2. / 9},
		{"four bridged H100, a group of 2", func(*testing.T) gpu.Snapshot { return pairs(4, layouttest.H100()) },
			[]func(*scheduler) *resourceapi.ResourceClaim{group(2)}, 1. / 2},
		{"four bridged H100, two groups of 2", func(*testing.T) gpu.Snapshot { return pairs(4, layouttest.H100()) },
			[]func(*scheduler) *resourceapi.ResourceClaim{group(2), group(2)}, 1},
	} {
		o := resourceslices.Options{}
		if strings.Contains(c.what, "no partitions") { // The cluster asks for groups alone.
			o = withSharing(sharingtest.Source{PlacementsOf: func(gpu.GPU, string) sharing.Placements { return sharing.LaterPlacements }})
		}
		s := newScheduler(t, c.board(t), o)
		for _, claim := range c.claims {
			if len(s.allocate(claim(s))) == 0 {
				t.Fatalf("%s: no devices", c.what)
			}
		}
		if got := s.utilization(s.slices[0].Spec.Pool.Name); math.Abs(got-c.want) > 0.005 {
			t.Errorf("%s: %.3f, want %.3f", c.what, got, c.want)
		}
	}
}

// TestBuild_SimulatedBoardFull_ClusterAutoscalerSeesIt takes all GPUs of each board, whole: a full node has the
// utilization 1, and an empty one 0. With Auto, while no object asks for partitions and groups, each GPU adds to it.
func TestBuild_SimulatedBoardFull_ClusterAutoscalerSeesIt(t *testing.T) {
	one := func(gpu.GPU, string) sharing.Placements { return sharing.OnePlacement }
	later := func(gpu.GPU, string) sharing.Placements { return sharing.LaterPlacements }
	none := func(gpu.GPU) sharing.Placements { return sharing.NoPlacement }
	for _, name := range profiles.Names() {
		p, err := profiles.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		n := len(p.Slots)
		for setting, o := range map[string]resourceslices.Options{
			"All": {}, "Auto": withSharing(sharingtest.Source{PlacementsOf: one, GroupsOf: none}),
			"Auto, another node has the one": withSharing(sharingtest.Source{PlacementsOf: later, GroupsOf: none}),
		} {
			s := newScheduler(t, snapshot(t, name, n), o)
			var got []string
			for i := range n + 1 {
				got = append(got, fmt.Sprintf("%.2f", s.utilization(s.slices[0].Spec.Pool.Name)))
				if i < n && len(s.allocate(s.claim("gpu.nvidia.com", 1))) == 0 {
					t.Fatalf("%s: no GPU for claim %d", name, i)
				}
			}
			t.Logf("%s, %s: %s", name, setting, strings.Join(got, " "))
			if got[0] != "0.00" || got[n] != "1.00" || !slices.IsSorted(got) || setting != "All" && len(slices.Compact(got)) != n+1 {
				t.Errorf("%s, %s, by allocated GPUs: %s", name, setting, got)
			}
		}
	}
}

// TestBuild_DevicesThatKAICountsAsGPUs_AreKnown holds the numbers of docs/queues.md. KAI Scheduler counts each device of a
// driver whose name contains `gpu` (`populateDRAGPUs` in its package `cluster_info`).
func TestBuild_DevicesThatKAICountsAsGPUs_AreKnown(t *testing.T) {
	whole := resourceslices.Options{
		Settings: resourceslices.Settings{NoPartitions: true, NoMonitors: true},
		Sharing:  sharingtest.Source{GroupsOf: func(gpu.GPU) sharing.Placements { return sharing.NoPlacement }},
	}
	for name, want := range map[string][2]int{"hgx-h100": {223, 8}, "dgx-1-v100": {22, 8}, "l40s-4": {8, 4}, "a30": {8, 4}, "t4-1": {2, 1}} {
		p, err := profiles.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		var got [2]int
		for i, o := range []resourceslices.Options{{}, whole} {
			for _, slice := range newScheduler(t, snapshot(t, name, len(p.Slots)), o).slices {
				got[i] += len(slice.Spec.Devices)
			}
		}
		if got != want {
			t.Errorf("%s: %d devices, and %d without partitions, groups and monitors; want %d", name, got[0], got[1], want)
		}
	}
}
