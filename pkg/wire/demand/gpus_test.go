// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"gpu-dra-driver/internal/seedtest"
)

func TestServingGPUs_Uses_ChooseTheLastFreeOnes(t *testing.T) {
	for name, c := range map[string]struct {
		// Each GPU is a letter: free, whole, part, share, closed. After a space they are of another kind.
		gpus, last string
		free       int
		sample     bool
		want       string
		stay       bool // It is not the time to shrink.
	}{
		"empty":                                {"ffffffff", "", 2, false, "67", false},
		"empty, a sample":                      {"ffffffff", "", 0, true, "7", false},
		"the last ones are in use":             {"fffffwww", "", 2, false, "34", false},
		"full":                                 {"wwwwwwww", "", 2, false, "", false},
		"full, a sample":                       {"wwwwwwww", "", 0, true, "7", false},
		"full, a sample that stays":            {"wwwwwwww", "2", 0, true, "2", false},
		"parts are further ones":               {"fffffpps", "", 2, false, "34567", false},
		"a part is a sample":                   {"fffpffff", "", 0, true, "3", false},
		"the choice stays":                     {"ffffffff", "01", 2, false, "01", false},
		"a part of the choice stays":           {"ffwwffff", "012", 2, false, "01", false},
		"a part of a larger choice stays":      {"ffffffff", "0123", 2, false, "23", false},
		"faulty ones come last":                {"ffffccff", "45", 3, false, "367", false},
		"faulty ones alone":                    {"cc", "", 1, false, "1", false},
		"the choice becomes faulty":            {"fffc", "3", 1, false, "2", false},
		"two kinds":                            {"ffff ffff", "", 2, false, "2367", false},
		"two kinds, a sample":                  {"ffwp ffff", "", 0, true, "37", false},
		"more than there are":                  {"fffw", "", 64, false, "012", false},
		"no GPU, as while the plugin starts":   {"", "12", 2, true, "", false},
		"the choice has what no longer exists": {"ff", "9", 1, false, "1", false},
		"a larger choice, not yet":             {"fffffwff", "03456", 2, false, "0346", true},
		"a larger choice of faulty ones":       {"ffffccff", "0456", 2, false, "06", true},
		"a faulty part and a sample":           {"wwwwwwwp", "", 0, true, "7", false},
	} {
		var all []GPU
		kind := "a"
		for _, letter := range c.gpus {
			if letter == ' ' {
				kind = "b"
				continue
			}
			all = append(all, GPU{Address: fmt.Sprint(len(all)), Kind: kind, Whole: letter == 'w' || letter == 's',
				Part: letter == 'p' || letter == 's', Closed: letter == 'c'})
		}
		got := ServingGPUs(strings.Split(c.last, ""), all, c.free, !c.stay, c.sample)
		if strings.Join(got, "") != c.want || got == nil {
			t.Errorf("%s: %q serve, want %q", name, got, c.want)
		}
	}
}

func TestServingGPUs_NodeInventsGPUs_OthersCanReadTheirs(t *testing.T) {
	for _, part := range []bool{false, true} {
		var all []GPU
		for i := range 3 * maxGPUs {
			all = append(all, GPU{Address: fmt.Sprintf("%04x:00:00.0", i), Kind: fmt.Sprint(i), Part: part})
		}
		s := State{Since: map[string]time.Time{}, Written: time.Now(), GPUs: map[string][]string{
			"n1": ServingGPUs(nil, all, leastFree, true, true), "n2": {"0000:1b:00.0"},
		}}
		if got, err := Decode(Encode(s)); err != nil || len(got.GPUs["n1"]) != maxGPUs || len(got.GPUs["n2"]) != 1 {
			t.Errorf("%d and %d GPUs, %v", len(got.GPUs["n1"]), len(got.GPUs["n2"]), err)
		}
	}
}

// TestServingGPUs_Random_AFreeOneServes has claims of all kinds that come and go.
func TestServingGPUs_Random_AFreeOneServes(t *testing.T) {
	for seed := range seedtest.Each(t, 300) {
		random := rand.New(rand.NewPCG(seed, 7))
		all := make([]GPU, 1+random.IntN(16))
		for i := range all {
			all[i] = GPU{Address: fmt.Sprintf("%02d", i), Kind: fmt.Sprint(random.IntN(2))}
		}
		var last []string
		for range 50 {
			g := &all[random.IntN(len(all))]
			use := random.IntN(4)
			g.Whole, g.Part, g.Closed = use == 1 || use == 2, use >= 2, random.IntN(8) == 0
			free := 1 + random.IntN(3)
			shrink := random.IntN(2) == 0
			got := ServingGPUs(last, all, free, shrink, false)
			if again := ServingGPUs(got, all, free, shrink, false); !slices.Equal(got, again) || !slices.IsSorted(got) {
				t.Fatalf("seed %d: %q, and then %q of %+v", seed, got, again, all)
			}
			for _, kind := range []string{"0", "1"} {
				serve, could := 0, 0
				for _, g := range all {
					serves := slices.Contains(got, g.Address)
					if g.Part && !serves || g.Whole && !g.Part && serves {
						t.Fatalf("seed %d: %+v serves: %v", seed, g, serves)
					}
					if g.Kind == kind && !g.Whole && !g.Part {
						could++
						if serves {
							serve++
						}
					}
				}
				if serve != min(could, free) && (shrink || serve < min(could, free)) {
					t.Fatalf("seed %d: %d of %d free GPUs of a kind serve, want %d", seed, serve, could, free)
				}
			}
			last = got
		}
	}
}

// TestFree_PodWaits_AllGPUsServeInTheEnd has a pod for which more nodes do not help.
func TestFree_PodWaits_AllGPUsServeInTheEnd(t *testing.T) {
	var s Serving
	all, now := nodesOf(300, 8), time.Now()
	nodes := map[string]Candidate{}
	for _, c := range all {
		nodes[c.Node] = c
	}
	var serves []string
	step := func(w Waiting) (least, most int) {
		s.Exhausted = false
		serves = s.Choose(serves, profile, all, nil, w, now)
		free, _ := s.Free(map[string][]string{profile: serves, Groups: {"n0029"}}, nodes, map[string]Waiting{profile: w}, now)
		least = maxGPUs
		for _, name := range serves {
			least, most = min(least, free[name]), max(most, free[name])
		}
		if len(free) != len(serves) {
			t.Errorf("%d nodes have free GPUs, and %d serve", len(free), len(serves))
		}
		return least, most
	}
	want := func(when string, w Waiting, least, most int) {
		t.Helper()
		if a, b := step(w); a != least || b != most {
			t.Errorf("%s: %d to %d GPUs of a node serve, want %d to %d", when, a, b, least, most)
		}
	}
	want("nothing waits", Waiting{}, 2, 2)
	want("a pod asks for five", Waiting{Devices: 5}, 2, 5)
	waits := Waiting{Unscheduled: true, Devices: 1}
	for range 3 {
		want("more nodes serve", waits, 2, 2)
		now = now.Add(Grow)
	}
	for range 6 {
		step(waits)
		now = now.Add(Grow)
	}
	if s.free != maxGPUs {
		t.Errorf("%d GPUs of each node serve in the end, want %d", s.free, maxGPUs)
	}
	now = now.Add(retention / 2)
	want("nothing waits for half an hour", Waiting{}, maxGPUs, maxGPUs)
	now = now.Add(retention)
	want("nothing waits for an hour", Waiting{}, 2, 2)
}
