// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"gpu-dra-driver/internal/seedtest"
)

// TestFirstFit_Partitions_PlacesLikeAllocator compares the model of partitions with the scheduler's allocator.
func TestFirstFit_Partitions_PlacesLikeAllocator(t *testing.T) {
	for _, m := range mixes {
		requests := trace(m, 0.9, 2, 150, 3)
		real, err := replay(newAllocator(2, orders[0]), 2, requests)
		if err != nil {
			t.Fatal(err)
		}
		model, err := replay(&firstFit{starts: ourStarts(), masks: make([]uint16, 2)}, 2, requests)
		if err != nil || !slices.Equal(real.log, model.log) {
			t.Errorf("mix %s: %v\nallocator %q\nmodel     %q", m.name, err, real.log, model.log)
		}
		if n := accepted(ourStarts(), 2, requests); n != real.accepted {
			t.Errorf("mix %s: counted %d, the allocator accepted %d", m.name, n, real.accepted)
		}
	}
}

// TestLinkedFit_Groups_PlacesLikeAllocator compares the model of groups with the scheduler's allocator over the
// published slices.
func TestLinkedFit_Groups_PlacesLikeAllocator(t *testing.T) {
	for _, m := range groupMixes {
		requests := trace(m, 0.7, gpus, 150, 3)
		real, err := replayGroups(newLinked(gpus, 18, orders[0]), nil, requests)
		if err != nil {
			t.Fatal(err)
		}
		model, err := replayGroups(newLinkedFit(groupOrders[0].starts(0)), nil, requests)
		if err != nil || !slices.Equal(real.log, model.log) {
			t.Errorf("mix %s: %v\nallocator %q\nmodel     %q", m.name, err, real.log, model.log)
		}
	}
}

func TestOptimum_SmallTraces_NeverBelowFixedOrders(t *testing.T) {
	for seed := range seedtest.Each(t, 10) {
		requests := trace(mixes[1], 1.1, 1, 12, seed)
		best, tried := bestFixed(mixes[1], 1, [][]request{requests})
		if most := optimum(requests); best > most || accepted(ourStarts(), 1, requests) > best || tried != 3780 {
			t.Errorf("seed %d: ours %d, best of %d orders %d, optimum %d", seed, accepted(ourStarts(), 1, requests), tried, best, most)
		}
	}
}

func TestOrders_Each_KeepsAllDevices(t *testing.T) {
	want := len(newAllocator(2, orders[0]).slices)
	for _, o := range orders {
		n := 0
		a := newAllocator(2, o)
		for _, s := range a.slices {
			n += len(s.Spec.Devices)
		}
		if n != 2*27 || len(a.slices) < want {
			t.Errorf("%s: %d devices in %d slices", o.name, n, len(a.slices))
		}
	}
}

func TestDraw_AllMixes_WritesPlot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.svg")
	charts := map[string][]series{}
	for _, m := range mixes {
		charts[m.name] = []series{{"ours", []float64{99, 90}}}
	}
	if err := draw(path, []float64{0.8, 0.9}, charts); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err != nil || len(b) < 1000 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

func TestDifference_TwoTraces_MeanAndDeviation(t *testing.T) {
	if mean, deviation := difference([]int{3, 5}, []int{1, 1}); mean != 3 || deviation != 1 {
		t.Errorf("%f, %f", mean, deviation)
	}
}
