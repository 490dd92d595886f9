// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// TestOpenbMixes_Counts_EqualSource compares sums with those of the source, of which the tables have the parts.
func TestOpenbMixes_Counts_EqualSource(t *testing.T) {
	total, fractions := 0, 0
	for profile, n := range openbMixes[0].weights {
		if total += n; shareSize(profile) > 0 {
			fractions += n
		}
	}
	if total != 7064 || fractions != 3078 || len(openbFractions) != 20 {
		t.Errorf("%d tasks for GPUs, %d of them for one of %d fractions", total, fractions, len(openbFractions))
	}
	whole := 0
	for profile, n := range openbMixes[1].weights {
		if shareSize(profile) == 0 {
			whole += n
		}
	}
	if share := float64(whole) / float64(whole+fractions); math.Abs(share-0.16) > 0.001 {
		t.Errorf("%.2f %% are for whole GPUs", 100*share)
	}
}

func TestTrace_Openb_HasShape(t *testing.T) {
	requests := trace(openbMixes[0], 0.8, 256, 40000, 1)
	kinds, hours := map[string]int{}, [24]int{}
	var stays []float64
	used := 0.0
	for _, r := range requests {
		switch {
		case r.profile == "":
			kinds["whole"]++
		case groupSize(r.profile) > 0:
			kinds["group"]++
		default:
			kinds["fraction"]++
		}
		hours[int(r.arrives)%24]++
		stays = append(stays, 3600*(r.departs-r.arrives))
		used += (r.departs - r.arrives) * float64(milli(r.profile)) / wholeGPU
	}
	for kind, want := range map[string]float64{"whole": 55.4, "group": 1.06, "fraction": 43.6} {
		if got := 100 * float64(kinds[kind]) / float64(len(requests)); math.Abs(got-want) > 1 {
			t.Errorf("%.2f %% are %s, want %.2f %%", got, kind, want)
		}
	}
	slices.Sort(stays)
	for part, want := range map[float64]float64{0.1: 74, 0.5: 545, 0.9: 6260, 0.999: 114036} {
		if got := stays[int(part*float64(len(stays)))]; math.Abs(got/want-1) > 0.1 {
			t.Errorf("%.1f %% stay for %.0f s, want %.0f", 100*part, got, want)
		}
	}
	// The busiest hour has four times the arrivals of the quietest. The load is a mean over the time.
	if got := used / (requests[len(requests)-1].arrives * 256); math.Abs(got-0.8) > 0.05 {
		t.Errorf("load %.2f, want 0.8", got)
	}
	if ratio := float64(hours[18]) / float64(hours[14]); ratio < 3 || ratio > 5 {
		t.Errorf("hour 18 has %.1f times the arrivals of hour 14, want 1.65 / 0.41", ratio)
	}
	if !reflect.DeepEqual(requests, trace(openbMixes[0], 0.8, 256, 40000, 1)) || reflect.DeepEqual(requests, trace(openbMixes[0], 0.8, 256, 40000, 2)) {
		t.Error("the trace depends on more than its seed, or not on it")
	}
}

func TestLifeMean_Openb_EqualsDrawn(t *testing.T) {
	random, drawn := rand.New(rand.NewPCG(1, 1)), 0.0
	const n = 200000
	for range n {
		drawn += openbLife.stay(random) / n
	}
	if mean := openbLife.mean(); math.Abs(drawn/mean-1) > 0.02 {
		t.Errorf("mean %.3f h, drawn %.3f h", mean, drawn)
	}
}
