// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/sharing"
)

// TestSharedFit_Shares_PlacesLikeAllocator compares the model of shares, groups and whole GPUs with the scheduler's
// allocator over the published slices.
func TestSharedFit_Shares_PlacesLikeAllocator(t *testing.T) {
	for seed := range seedtest.Each(t, 4) {
		m := openbMixes[seed%2]
		requests := trace(m, 0.9, gpus, 200, seed)
		real, err := replayGroups(newSharing(gpus, 18, orders[0], sharing.Node{MPS: true}), nil, requests)
		if err != nil {
			t.Fatal(err)
		}
		model, err := replayGroups(newSharedFit(), nil, requests)
		if err != nil || !slices.Equal(real.log, model.log) {
			t.Errorf("mix %s, seed %d: %v\nallocator %q\nmodel     %q", m.name, seed, err, real.log, model.log)
		}
	}
}

// TestSharedFit_RandomRequests_FitsEqualsPlace checks that nothing is left after all devices are released, too.
func TestSharedFit_RandomRequests_FitsEqualsPlace(t *testing.T) {
	random, n := rand.New(rand.NewPCG(seedtest.Base(t), 2)), newSharedFit()
	var profiles []string
	for _, m := range slices.Concat(openbMixes, mixes, groupMixes) {
		for p := range m.weights {
			profiles = append(profiles, p)
		}
	}
	slices.Sort(profiles)
	var devices []func()
	for range 3000 {
		if random.IntN(2) == 0 && len(devices) > 0 {
			i := random.IntN(len(devices))
			devices[i]()
			devices = slices.Delete(devices, i, i+1)
			continue
		}
		profile := profiles[random.IntN(len(profiles))]
		fits := n.fits(profile)
		d, ok, err := n.place(profile)
		if err != nil || ok != fits {
			t.Fatalf("%q: fits %v, placed %v, %v", profile, fits, ok, err)
		}
		if ok {
			devices = append(devices, func() { n.release(d) })
		}
	}
	for _, release := range devices {
		release()
	}
	if n.used.free() != gpus || n.used.sum() != 0 || n.held != 0 || slices.Max(n.masks) != 0 || slices.Max(n.shares) != 0 {
		t.Errorf("after the end of all: %+v", n)
	}
}

// placeAll places requests on a cluster of two nodes, and returns their nodes.
func placeAll(t *testing.T, s scoring, p policy, profiles ...string) (nodes []int, c *cluster) {
	t.Helper()
	c = newCluster(2, s, p, 1)
	for i, profile := range profiles {
		node, _, _, err := c.place(request{profile, float64(i), 1000})
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, node)
	}
	return nodes, c
}

func TestCluster_Spread_TakesLessUsedNode(t *testing.T) {
	nodes, _ := placeAll(t, spread, policies[0], "nvlink-4", "", "share-470", "")
	if nodes[1] == nodes[0] || nodes[2] == nodes[0] || nodes[3] == nodes[0] {
		t.Errorf("nodes %v", nodes)
	}
}

func TestCluster_Pack_TakesMoreUsedNodeWithRoom(t *testing.T) {
	nodes, _ := placeAll(t, pack, policies[0], "", "nvlink-4", "nvlink-4", "share-470")
	if nodes[1] != nodes[0] || nodes[2] == nodes[0] || nodes[3] != nodes[0] {
		t.Errorf("nodes %v", nodes)
	}
}

func TestCluster_FewNodes_OnlyPartsAreRestricted(t *testing.T) {
	for _, p := range policies[1:] {
		nodes, c := placeAll(t, spread, p, "1g.10gb", "", "share-470", "1g.10gb")
		if nodes[2] != nodes[0] || nodes[3] != nodes[0] || nodes[1] == nodes[0] || len(c.offering.needed) != 1 {
			t.Errorf("%s: nodes %v, %+v", p.name, nodes, c.offering)
		}
	}
}

func TestCluster_FewNodesAreFull_GrowsForRequest(t *testing.T) {
	for _, p := range policies[1:] {
		nodes, c := placeAll(t, spread, p, "1g.10gb", "nvlink-8")
		for range 8*7 - 1 {
			if node, _, waited, err := c.place(request{"1g.10gb", 3, 1000}); node < 0 || waited || err != nil {
				t.Fatalf("%s: node %d, waited %v, %v", p.name, node, waited, err)
			}
		}
		if node, _, waited, err := c.place(request{"1g.10gb", 3, 1000}); node >= 0 || waited || err != nil {
			t.Errorf("%s: with both nodes full: node %d, waited %v, %v", p.name, node, waited, err)
		}
		c.nodes[nodes[1]].release(gpu.Device{Kind: gpu.KindGroup, PCIAddress: address(0), Size: 8})
		if node, _, waited, err := c.place(request{"1g.10gb", 3, 1000}); node != nodes[1] || !waited || err != nil {
			t.Errorf("%s: node %d, waited %v, %v", p.name, node, waited, err)
		}
	}
}

func TestCluster_EqualNodes_TakesEachByChance(t *testing.T) {
	taken, base := [4]int{}, seedtest.Base(t)
	for n := range uint64(400) {
		node, _, _, err := newCluster(4, spread, policies[0], base+n).place(request{"", 0, 1})
		if err != nil {
			t.Fatal(err)
		}
		taken[node]++
	}
	if slices.Min(taken[:]) < 60 {
		t.Errorf("taken %v times, want about 100 each", taken)
	}
}

// TestReplayCluster_PartsEnd_NodesLeave has a partition for one hour in a trace of eight: its node is cut for two hours.
func TestReplayCluster_PartsEnd_NodesLeave(t *testing.T) {
	requests := []request{{"", 0, 0.5}, {"1g.10gb", 0, 1}}
	for minute := range 6 * 80 {
		requests = append(requests, request{"", float64(minute) / 60, float64(minute+1) / 60})
	}
	slices.SortStableFunc(requests, func(a, b request) int { return cmp.Compare(a.arrives, b.arrives) })
	requests = slices.Insert(requests, 0, make([]request, len(requests)/3)...)
	for _, p := range policies[1:] {
		s, err := replayCluster(newCluster(3, spread, p, 1), requests)
		if err != nil || math.Abs(s.cut-2) > 0.1 || s.time < 7.5 {
			t.Errorf("%s: cut for %.2f of %.2f hours, %v", p.name, s.cut, s.time, err)
		}
	}
}

// TestReplayCluster_Trace_MeasuresAfterFirstQuarter has two nodes. One of them has a partition in the second and third
// hour of three that count.
func TestReplayCluster_Trace_MeasuresAfterFirstQuarter(t *testing.T) {
	requests := []request{{"nvlink-8", 0, 0.5}, {"nvlink-4", 1, 2}, {"1g.10gb", 2, 9}, {"nvlink-8", 4, 5}}
	s, err := replayCluster(newCluster(2, spread, policies[2], 1), requests)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.ReplaceAll(s.String(), "\t", "|")
	if want := "100.00 %|100.0 %|8.00 (8)|4.2 %|1.0|0.7|33.33 %|"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestReplayCluster_NoPartsAsked_CutsNoNode(t *testing.T) {
	requests := trace(groupMixes[1], 0.8, 4*gpus, 400, 1)
	all, err := replayCluster(newCluster(4, spread, policies[0], 1), requests)
	if err != nil {
		t.Fatal(err)
	}
	few, err := replayCluster(newCluster(4, spread, policies[2], 1), requests)
	if err != nil || few.cut != 0 || few.waited != 0 || few.accepted != all.accepted || few.fragments != all.fragments {
		t.Errorf("few nodes %+v\nall nodes %+v, %v", few, all, err)
	}
}

func TestEvaluateNodes_FewNodesAreWorse_ReturnsError(t *testing.T) {
	same := clusterResult{refused: []int{10, 12, 11, 13}, blocked: []int{100, 110, 105, 111}}
	if err := evaluateNodes("here", same, same); err != nil {
		t.Error(err)
	}
	worse := clusterResult{refused: []int{15, 17, 17, 18}, blocked: []int{150, 161, 154, 160}}
	if err := evaluateNodes("here", same, worse); err == nil || !strings.Contains(err.Error(), "refuse 5.2") || !strings.Contains(err.Error(), "block 0.50") {
		t.Error(err)
	}
	if err := evaluateNodes("here", worse, same); err != nil {
		t.Error(err)
	}
}
