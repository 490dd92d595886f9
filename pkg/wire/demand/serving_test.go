// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"gpu-dra-driver/internal/seedtest"
)

const profile = "1g.10gb"

func nodesOf(n, gpus int) (out []Candidate) {
	for i := range n {
		out = append(out, Candidate{Node: fmt.Sprintf("n%04d", i), GPUs: gpus})
	}
	return out
}

func TestServing_FirstAsk_AFewNodesServe(t *testing.T) {
	for nodes, want := range map[int]int{1: 1, 8: 8, 100: 8, 500: 25, 5000: 50} {
		for _, what := range []string{profile, Groups} {
			var s Serving
			if got := s.Choose(nil, what, nodesOf(nodes, 8), nil, Waiting{}, time.Now()); len(got) != want {
				t.Errorf("%d of %d nodes serve %s, want %d", len(got), nodes, what, want)
			}
		}
	}
}

// TestServing_Nodes_Preferred has eight nodes too many.
func TestServing_Nodes_Preferred(t *testing.T) {
	all := nodesOf(16, 8)
	all[1].Full, all[3].Partly, all[5].Full, all[7].Full, all[9].Cut, all[11].Open = 7, 3, 8, 6, true, true
	all[11].GPUs, all[5].Open = 0, true
	for what, want := range map[string][]string{
		// A node with counters, then the fewest free GPUs.
		profile: {"n0000", "n0001", "n0002", "n0003", "n0004", "n0006", "n0007", "n0009"},
		Groups:  {"n0000", "n0002", "n0004", "n0006", "n0008", "n0009", "n0010", "n0012"},
	} {
		var s Serving
		if got := s.Choose(nil, what, all, nil, Waiting{}, time.Now()); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
}

func TestServing_NodesFillUp_ReserveStays(t *testing.T) {
	var s Serving
	all, now := nodesOf(100, 8), time.Now()
	first := s.Choose(nil, profile, all, nil, Waiting{}, now)
	for i := range all {
		if slices.Contains(first, all[i].Node) {
			all[i].Partly = 8
		}
	}
	if got := s.Choose(first, profile, all, first, Waiting{}, now); len(got) != 16 {
		t.Errorf("%d nodes serve after the first 8 are in use, want 16", len(got))
	}
}

// TestServing_NodesFillUp_OnlyHoldersStay has claims that take whole GPUs of the reserve, again and again.
func TestServing_NodesFillUp_OnlyHoldersStay(t *testing.T) {
	var s Serving
	all, now := nodesOf(100, 8), time.Now()
	got := s.Choose(nil, profile, all, nil, Waiting{}, now)
	holders := got[:1]
	for range 6 {
		for i := range all {
			if slices.Contains(got, all[i].Node) {
				all[i].Full = 8
			}
		}
		got = s.Choose(got, profile, all, holders, Waiting{}, now)
		if now = now.Add(noRoomTimeout / 2); len(s.Choose(got, profile, all, holders, Waiting{}, now)) < len(got) {
			t.Fatal("a node stops serving at once")
		}
		now = now.Add(noRoomTimeout / 2)
		if got = s.Choose(got, profile, all, holders, Waiting{}, now); len(got) != 9 || !slices.Contains(got, holders[0]) {
			t.Errorf("%q serve, want the holder and a reserve of 8", got)
		}
	}
}

// TestServing_ClaimsOfFullNodeChange_ItServes has a node that is full at each choice, and had room between them.
func TestServing_ClaimsOfFullNodeChange_ItServes(t *testing.T) {
	var s Serving
	all, now := nodesOf(1, 8), time.Now()
	got := s.Choose(nil, profile, all, nil, Waiting{}, now)
	all[0].Full = 8
	for range 5 {
		all[0].Changed += 2
		if got = s.Choose(got, profile, all, nil, Waiting{}, now); len(got) != 1 {
			t.Fatal("it stops serving, although its claims have changed")
		}
		now = now.Add(noRoomTimeout)
	}
	if got = s.Choose(got, profile, all, nil, Waiting{}, now); len(got) != 0 {
		t.Error("it serves, although it was full for long")
	}
}

// TestServing_PodWaits_EachNodeWithRoomServesInTheEnd has a pod that can run on one node alone, of random clusters.
func TestServing_PodWaits_EachNodeWithRoomServesInTheEnd(t *testing.T) {
	for seed := range seedtest.Each(t, 300) {
		random := rand.New(rand.NewPCG(seed, 0))
		what := []string{profile, Groups}[seed%2]
		all := nodesOf(1+random.IntN(600), 1+random.IntN(8))
		for i := range all {
			c := &all[i]
			c.Full = random.IntN(c.GPUs + 1)
			c.Partly, c.Open = random.IntN(c.GPUs-c.Full+1), random.IntN(20) == 0
		}
		only := all[random.IntN(len(all))]
		var s Serving
		now, steps, serves := time.Now(), 0, []string(nil)
		for ; steps <= 5 && !slices.Contains(serves, only.Node); steps++ {
			serves = s.Choose(serves, what, all, nil, Waiting{Unscheduled: true}, now)
			again := s.Choose(serves, what, all, nil, Waiting{Unscheduled: true}, now.Add(Grow/2))
			if !slices.Equal(serves, again) {
				t.Fatalf("seed %d: grown twice within %s", seed, Grow)
			}
			now = now.Add(Grow)
		}
		if room := only.has(what); room != slices.Contains(serves, only.Node) {
			t.Errorf("seed %d: %d nodes after %d steps, and %+v, which has room: %v, serves: %v", seed, len(all), steps, only, room, !room)
		}
	}
}

// TestServing_PodForSomeNodes_OneServesAtOnce has pods that may run on few nodes of random clusters, before the scheduler has
// tried them, and while other nodes serve already.
func TestServing_PodForSomeNodes_OneServesAtOnce(t *testing.T) {
	for seed := range seedtest.Each(t, 300) {
		random := rand.New(rand.NewPCG(seed, 1))
		what := []string{profile, Groups, Shares}[seed%3]
		all := nodesOf(1+random.IntN(600), 2+random.IntN(7))
		for i := range all {
			all[i].Full = random.IntN(all[i].GPUs + 1)
		}
		var s Serving
		now := time.Now()
		serves := s.Choose(nil, what, all, nil, Waiting{}, now)
		var w Waiting
		for range 1 + random.IntN(3) {
			may := map[string]bool{}
			for range 1 + random.IntN(3) {
				may[all[random.IntN(len(all))].Node] = true
			}
			w.Nodes = append(w.Nodes, may)
		}
		before := len(serves)
		serves = s.Choose(serves, what, all, nil, w, now)
		for _, may := range w.Nodes {
			room, served := false, false
			for _, c := range all {
				if may[c.Node] && c.reserve(what) {
					room, served = true, served || slices.Contains(serves, c.Node)
				}
			}
			if room && !served {
				t.Errorf("seed %d: none of %v serves %s", seed, may, what)
			}
		}
		if most := before + leastReserve*len(w.Nodes); len(serves) > most {
			t.Errorf("seed %d: %d nodes serve, want %d at most", seed, len(serves), most)
		}
	}
}

// TestServing_Limit_HoldersAndNodesWithCountersCount has nodes that publish other partitions.
func TestServing_Limit_HoldersAndNodesWithCountersCount(t *testing.T) {
	s := Serving{Most: 5}
	all, now := nodesOf(100, 8), time.Now()
	for i := range 3 {
		all[i].Cut = true
	}
	var got []string
	for range 5 {
		got = s.Choose(got, profile, all, []string{"n0099"}, Waiting{Unscheduled: true}, now)
		now = now.Add(Grow)
	}
	if want := []string{"n0000", "n0001", "n0002", "n0003", "n0099"}; !slices.Equal(got, want) || !s.Limited {
		t.Errorf("%q serve, want %q; limited: %v", got, want, s.Limited)
	}
	s.Limited = false
	w := Waiting{Unscheduled: true, Nodes: []map[string]bool{{"n0050": true}}}
	if got = s.Choose(got, profile, all, nil, w, now); slices.Contains(got, "n0050") || !s.Limited {
		t.Errorf("%q serve, limited: %v", got, s.Limited)
	}
	// Without a waiting pod the limit keeps none.
	s.Limited, s.Most = false, 2
	if got = s.Choose(nil, Groups, all, nil, Waiting{}, now); len(got) != 3 || s.Limited {
		t.Errorf("%q serve groups, limited: %v", got, s.Limited)
	}
}

// TestServing_PodWaits_NodesForItComeFirst has a pod that waits although one of its nodes serves.
func TestServing_PodWaits_NodesForItComeFirst(t *testing.T) {
	var s Serving
	all, now := nodesOf(600, 8), time.Now()
	may := map[string]bool{}
	for i := 500; i < 560; i++ {
		may[all[i].Node] = true
	}
	w := Waiting{Unscheduled: true, Nodes: []map[string]bool{may}}
	serves := s.Choose(nil, profile, all, nil, w, now)
	serves = s.Choose(serves, profile, all, nil, w, now.Add(Grow))
	for node := range may {
		if !slices.Contains(serves, node) {
			t.Errorf("%d nodes serve, and not %s", len(serves), node)
		}
	}
}

func TestServing_RoomAppearsLater_NodeServes(t *testing.T) {
	var s Serving
	all, now := nodesOf(1, 8), time.Now()
	all[0].Full = 8
	for range 10 {
		if got := s.Choose(nil, profile, all, nil, Waiting{Unscheduled: true}, now); len(got) != 0 {
			t.Fatalf("%q serve without room", got)
		}
		now = now.Add(Grow)
	}
	all[0].Full = 7
	if got := s.Choose(nil, profile, all, nil, Waiting{Unscheduled: true}, now); len(got) != 1 {
		t.Errorf("%q serve once there is room", got)
	}
}

// TestServing_NobodyWaitsForAnHour_HoldersAndReserveStay restarts the controller at each step.
func TestServing_NobodyWaitsForAnHour_HoldersAndReserveStay(t *testing.T) {
	all, now, holder := nodesOf(200, 8), time.Now(), "n0150"
	for _, restart := range []bool{false, true} {
		var s Serving
		var got []string
		for range 4 {
			got = s.Choose(got, profile, all, nil, Waiting{Unscheduled: true}, now)
			now = now.Add(Grow)
		}
		if len(got) != 200 {
			t.Fatalf("%d nodes serve while a pod waits, want all", len(got))
		}
		if restart {
			s = Serving{}
			s.Choose(got, profile, all, []string{holder}, Waiting{}, now)
		}
		now = now.Add(retention - 2*Grow)
		if got = s.Choose(got, profile, all, []string{holder}, Waiting{}, now); len(got) != 200 {
			t.Errorf("%d nodes serve within the hour", len(got))
		}
		now = now.Add(10 * time.Second)
		if got = s.Choose(got, profile, all, []string{holder}, Waiting{}, now); len(got) > 11 || !slices.Contains(got, holder) {
			t.Errorf("%q serve after the hour, want 10 and %s", got, holder)
		}
	}
}

func TestServing_NodeGoes_IsForgottenUnlessAClaimHoldsIt(t *testing.T) {
	var s Serving
	all, now := nodesOf(3, 8), time.Now()
	got := s.Choose(nil, profile, all, nil, Waiting{}, now)
	if got = s.Choose(got, profile, all[:1], []string{"n0002"}, Waiting{}, now); !slices.Equal(got, []string{"n0000", "n0002"}) {
		t.Errorf("%q serve", got)
	}
	s.Keep(map[string]bool{Groups: true})
	if len(s.of) != 0 {
		t.Error("the nodes of what is not published are kept")
	}
}
