// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"gpu-dra-driver/internal/seedtest"
)

var noon = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

// roomy has nodes with eight free GPUs, on which each request fits.
func roomy(n int) (out []candidate) {
	for i := range n {
		out = append(out, candidate{name: fmt.Sprintf("n%02d", i), free: 8, fits: true})
	}
	return out
}

func names(o offering) string { return strings.Join(slices.Sorted(maps.Keys(o.needed)), " ") }

func TestOfferingGrow_NothingAskedBefore_OneNodeJoins(t *testing.T) {
	for _, g := range []growth{doubled, stepped} {
		o := offering{growth: g}.grow(roomy(4), noon)
		if names(o) != "n00" || !o.has("n00") || o.has("n01") || !o.grown.Equal(noon) {
			t.Errorf("%s: %+v", g, o)
		}
	}
}

func TestOfferingGrow_SeldomAsked_DoublesOrAddsOne(t *testing.T) {
	for g, want := range map[growth][]int{doubled: {1, 2, 4, 8, 16, 20, 20}, stepped: {1, 2, 3, 4, 5, 6, 7}} {
		o, sizes := offering{growth: g}, []int(nil)
		for i := range want {
			o = o.grow(roomy(20), noon.Add(time.Duration(i)*burst))
			sizes = append(sizes, len(o.needed))
		}
		if !slices.Equal(sizes, want) {
			t.Errorf("%s: sizes %v, want %v", g, sizes, want)
		}
	}
}

// TestOfferingGrow_Burst_ReachesAllNodesInFewSteps has a pod a second for which the set must grow, then a quiet minute.
func TestOfferingGrow_Burst_ReachesAllNodesInFewSteps(t *testing.T) {
	o, sizes := offering{growth: stepped}, []int(nil)
	for i := range 6 {
		o = o.grow(roomy(100), noon.Add(time.Duration(i)*time.Second))
		sizes = append(sizes, len(o.needed))
	}
	o = o.grow(roomy(100), noon.Add(5*time.Second+burst))
	if sizes = append(sizes, len(o.needed)); !slices.Equal(sizes, []int{1, 3, 7, 15, 31, 63, 64}) {
		t.Errorf("sizes %v", sizes)
	}
}

func TestOfferingGrow_SomeNodesFit_FullestJoinFirst(t *testing.T) {
	nodes := roomy(5)
	nodes[0].free, nodes[0].fits = 0, false
	nodes[3].free, nodes[4].free = 2, 1
	o := offering{growth: doubled}
	for i, want := range []string{"n04", "n03 n04", "n01 n02 n03 n04"} {
		if o = o.grow(nodes, noon); names(o) != want {
			t.Errorf("growth %d: %s, want %s", i, names(o), want)
		}
	}
}

func TestOfferingGrow_FitsNowhere_StaysUnchanged(t *testing.T) {
	before := offering{growth: stepped}.grow(roomy(1), noon)
	nodes := roomy(3)
	nodes[1].fits, nodes[2].fits = false, false
	if after := before.grow(nodes, noon.Add(time.Second)); names(after) != "n00" || !after.grown.Equal(noon) || after.step != 1 {
		t.Errorf("%+v", after)
	}
}

func TestOfferingUpdate_NodeIdle_LeavesAfterAnHour(t *testing.T) {
	o := offering{growth: doubled}.grow(roomy(2), noon)
	nodes := roomy(2)
	for minute, want := range map[int]string{0: "n00", 59: "n00", 60: "", 61: ""} {
		if got := names(o.update(nodes, noon.Add(time.Duration(minute)*time.Minute))); got != want {
			t.Errorf("minute %d: %q, want %q", minute, got, want)
		}
	}
	// A claim until minute 90.
	nodes[0].held = 1
	for minute := range 91 {
		o = o.update(nodes, noon.Add(time.Duration(minute)*time.Minute))
	}
	nodes[0].held = 0
	for minute := 91; minute < 200; minute++ {
		o = o.update(nodes, noon.Add(time.Duration(minute)*time.Minute))
		if o.has("n00") != (minute < 90+60) {
			t.Errorf("minute %d: offers %v", minute, o.has("n00"))
		}
	}
}

func TestOfferingUpdate_NodeHoldsClaim_OffersInAnyCase(t *testing.T) {
	nodes := roomy(3)
	nodes[1].held = 2
	o := offering{growth: stepped}.update(nodes, noon)
	if names(o) != "n01" || o.growth != stepped {
		t.Errorf("%+v", o)
	}
	if o = o.update(nodes, noon.Add(100*time.Hour)); names(o) != "n01" {
		t.Errorf("after 100 hours %+v", o)
	}
}

func TestOfferingUpdate_NodeGoneFromCluster_Leaves(t *testing.T) {
	o := offering{growth: doubled}.grow(roomy(1), noon)
	if o = o.update(roomy(3)[1:], noon); names(o) != "" {
		t.Errorf("%+v", o)
	}
}

func TestOffering_Value_IsNotChangedByItsMethods(t *testing.T) {
	o := offering{growth: doubled}.grow(roomy(3), noon)
	_ = o.grow(roomy(3), noon.Add(time.Hour))
	_ = o.update(nil, noon.Add(2*time.Hour))
	if names(o) != "n00" || !o.needed["n00"].Equal(noon) || !o.grown.Equal(noon) {
		t.Errorf("%+v", o)
	}
}

// TestOffering_RandomCluster_NeverExcludesClaimsAndAlwaysServes checks the rule after each of many random steps.
func TestOffering_RandomCluster_NeverExcludesClaimsAndAlwaysServes(t *testing.T) {
	for seed := range seedtest.Each(t, 200) {
		random := rand.New(rand.NewPCG(seed, 3))
		o, now := offering{growth: []growth{doubled, stepped}[seed%2]}, noon
		for range 100 {
			now = now.Add(time.Duration(random.IntN(4000)) * time.Second)
			nodes, fitting := roomy(1+random.IntN(20)), false
			for i := range nodes {
				nodes[i].held, nodes[i].free, nodes[i].fits = max(0, random.IntN(8)-5), random.IntN(9), random.IntN(3) == 0
				fitting = fitting || nodes[i].fits
			}
			o = o.update(nodes, now)
			served := func() bool {
				return slices.ContainsFunc(nodes, func(n candidate) bool { return n.fits && o.has(n.name) })
			}
			if !served() {
				o = o.grow(nodes, now)
			}
			if fitting && !served() {
				t.Fatalf("seed %d: a request that fits is not served: %+v, %+v", seed, nodes, o)
			}
			for _, n := range nodes {
				if n.held > 0 && !o.has(n.name) {
					t.Fatalf("seed %d: %s holds claims and does not offer: %+v", seed, n.name, o)
				}
			}
		}
	}
}
