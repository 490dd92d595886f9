// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package layout_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/testing/layouttest"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/partition/layout"
)

// only are the profiles of some IDs.
func only(m gpu.MIG, ids ...int) []gpu.Profile {
	return slices.DeleteFunc(slices.Clone(m.Profiles), func(p gpu.Profile) bool { return !slices.Contains(ids, p.ID) })
}

func TestEach_Boards_CountsLayouts(t *testing.T) {
	for name, tc := range map[string]struct {
		profiles           []gpu.Profile
		reachable, maximal int
	}{
		"{1,2,3,4,7}g on 8 slices":  {only(layouttest.H100(), 19, 14, 9, 5, 0), 298, 19},
		"with 1g of double memory":  {only(layouttest.H100(), 19, 15, 14, 9, 5, 0), 723, 78},
		"4 slices":                  {layouttest.A30().Profiles, 26, 5},
		"one profile, one instance": {only(layouttest.H100(), 20), 8, 7},
		"nothing":                   {nil, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			reachable, maximal := 0, 0
			for set := range layouttest.Each(tc.profiles) {
				reachable++
				if layouttest.Maximal(tc.profiles, set) {
					maximal++
				}
			}
			if reachable != tc.reachable || maximal != tc.maximal {
				t.Errorf("%d layouts, %d of them maximal; want %d and %d", reachable, maximal, tc.reachable, tc.maximal)
			}
		})
	}
}

func starts(profiles []gpu.Profile) map[string][]int {
	out := map[string][]int{}
	for _, c := range layout.Order(profiles) {
		out[c.Profile.Name] = append(out[c.Profile.Name], c.Placement.Start)
	}
	return out
}

func TestOrder_Placements_KeepLargestPossible(t *testing.T) {
	want := map[string][]int{
		"1g.10gb": {0, 1, 2, 3, 4, 5, 6}, "1g.10gb+me": {0, 1, 2, 3, 4, 5, 6}, "1g.20gb": {6, 4, 0, 2}, "2g.20gb": {0, 2, 4},
		"3g.40gb": {4, 0}, "4g.40gb": {0}, "7g.80gb": {0},
	}
	if diff := cmp.Diff(want, starts(layouttest.H100().Profiles)); diff != "" {
		t.Errorf("starts in their order (-want +got):\n%s", diff)
	}
	mirrored := layouttest.H100().Profiles
	for i, p := range mirrored {
		for j, at := range p.Placements {
			mirrored[i].Placements[j].Start = 8 - at.End()
		}
	}
	if got := starts(mirrored); got["1g.10gb"][0] != 4 || got["3g.40gb"][0] != 0 || got["2g.20gb"][0] != 4 {
		t.Errorf("of a board with its 4g at the other end: %v", got)
	}
}

func TestOrder_Boards_OffersSmallestFirst(t *testing.T) {
	for _, m := range []gpu.MIG{layouttest.H100(), layouttest.A100(), layouttest.A30(), layouttest.RTXPRO6000()} {
		seen, last := map[string]bool{}, 0
		for _, c := range layout.Order(m.Profiles) {
			key := fmt.Sprint(c.Profile.Name, c.Placement.Start)
			if seen[key] || c.Placement.Size < last {
				t.Errorf("%s is offered twice or after a larger one", key)
			}
			seen[key], last = true, c.Placement.Size
		}
		n := 0
		for _, p := range m.Profiles {
			n += len(p.Placements)
		}
		if len(seen) != n {
			t.Errorf("%d of %d placements are offered", len(seen), n)
		}
	}
	order := layout.Order(layouttest.RTXPRO6000().Profiles)
	if order[0].Profile.Name != "1g.24gb-me" || order[len(order)-1].Placement.Size != 12 {
		t.Errorf("from %s to %s", order[0].Profile.Name, order[len(order)-1].Profile.Name)
	}
}

func TestBinding_Boards_NamesExhaustibleResources(t *testing.T) {
	wide := layouttest.H100().Profiles
	for i := range wide[:len(wide)-1] {
		wide[i].Multiprocessors = 40
	}
	limited := only(layouttest.H100(), 19, 0)
	limited[0].Instances = 3
	for name, tc := range map[string]struct {
		profiles []gpu.Profile
		want     []string
	}{
		"H100":                              {layouttest.H100().Profiles, []string{"ofa-engines"}},
		"H100 without media":                {only(layouttest.H100(), 19, 15, 14, 9, 5, 0), nil},
		"A100":                              {layouttest.A100().Profiles, []string{"ofa-engines"}},
		"A30":                               {layouttest.A30().Profiles, nil},
		"12 slices":                         {layouttest.RTXPRO6000().Profiles, []string{"jpeg-engines", "ofa-engines"}},
		"multiprocessors":                   {wide, []string{"multiprocessors", "ofa-engines"}},
		"fewer instances than have a place": {limited, []string{"instances-1g-10gb"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, r := range layout.Binding(tc.profiles) {
				got = append(got, r.Name)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestBinding_AllLayouts_CountersDecideAsTheBoard goes through all sets of partitions that slices and binding resources allow.
func TestBinding_AllLayouts_CountersDecideAsTheBoard(t *testing.T) {
	for name, m := range map[string]gpu.MIG{"H100": layouttest.H100(), "A100": layouttest.A100(), "A30": layouttest.A30(), "12 slices": layouttest.RTXPRO6000()} {
		t.Run(name, func(t *testing.T) {
			free := slices.Clone(m.Profiles)
			for i := range free { // Each sees to nothing but places.
				p := free[i]
				free[i] = gpu.Profile{ID: p.ID, Name: p.Name, Instances: 99, Placements: p.Placements}
			}
			binding := layout.Binding(m.Profiles)
			var memory uint64
			for set := range layouttest.Each(free) {
				var full []layout.Choice
				var sum uint64
				for _, c := range set {
					p, _ := m.ProfileNamed(c.Profile.Name)
					full = append(full, layout.Choice{Profile: p, Placement: c.Placement})
					sum += p.MemoryBytes
				}
				memory = max(memory, sum)
				counted := !slices.ContainsFunc(binding, func(r layout.Resource) bool {
					n := 0
					for _, c := range full {
						n += r.Of(c.Profile)
					}
					return n > r.Total
				})
				possible := true
				for i, c := range full {
					possible = possible && layouttest.Fits(m.Profiles, full[:i], c)
				}
				if counted != possible {
					t.Fatalf("counters allow %v: %v; the board: %v", set, counted, possible)
				}
			}
			if got := layout.Memory(m.Profiles); got != memory {
				t.Errorf("at most %d bytes, found %d", got, memory)
			}
		})
	}
}

func TestStranded_OccupiedPlacements_CountsUnusableSlices(t *testing.T) {
	profiles := layouttest.H100().Profiles
	at := func(places ...int) (out []gpu.Placement) {
		for i := 0; i < len(places); i += 2 {
			out = append(out, gpu.Placement{Start: places[i], Size: places[i+1]})
		}
		return out
	}
	for name, tc := range map[string]struct {
		occupied []gpu.Placement
		stranded int
	}{
		"empty":                      {nil, 0},
		"a 1g at the end":            {at(6, 1), 1},
		"a 1g at the start":          {at(0, 1), 0},
		"a 1g in each half":          {at(3, 1, 4, 1), 0},
		"a 1g in each pair":          {at(0, 1, 2, 1, 4, 1, 6, 1), 1},
		"only the last slice, alone": {at(0, 4, 4, 2, 6, 1), 1},
		"full":                       {at(0, 8), 0},
	} {
		t.Run(name, func(t *testing.T) {
			if stranded := layouttest.Stranded(profiles, tc.occupied); stranded != tc.stranded {
				t.Errorf("%d stranded, want %d", stranded, tc.stranded)
			}
		})
	}
}
