// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"testing"

	"gpu-dra-driver/pkg/gpu"
)

func TestOccupancy_DevicesOfAllKinds_CountsFreeAndBlocked(t *testing.T) {
	o := make(occupancy, 8)
	devices := []gpu.Device{
		{Kind: gpu.KindGPU, PCIAddress: address(0)},
		{Kind: gpu.KindMIG, PCIAddress: address(1), Profile: "3g.40gb", Start: 0},
		{Kind: gpu.KindMIG, PCIAddress: address(1), Profile: "3g.40gb", Start: 4},
		{Kind: gpu.KindMIG, PCIAddress: address(2), Profile: "1g.10gb", Start: 6},
		{Kind: gpu.KindGPU, PCIAddress: address(3), Profile: "share-470"},
		{Kind: gpu.KindGPU, PCIAddress: address(3), Profile: "share-330"},
		{Kind: gpu.KindGroup, PCIAddress: address(4), Size: 2},
	}
	for _, d := range devices {
		o.add(d, 1)
	}
	if got := fmt.Sprint(o, o.free(), o.blocked(), o.sum()); got != "[1000 1000 125 800 1000 1000 0 0] 2 2 4925" {
		t.Error(got)
	}
	for _, d := range devices {
		o.add(d, -1)
	}
	if o.free() != 8 || o.blocked() != 0 || o.sum() != 0 {
		t.Errorf("%v after the end of all", o)
	}
}

func TestFragments_TwoTraces_MeanOverTimeAndMinimum(t *testing.T) {
	var a, b, zero fragments
	a.account(3, 8, 0)
	a.account(0, 1, 1)
	a.account(1, 4, 0.5)
	b.account(4, 3, 0.25)
	if got := a.String(); got != "7.00 (4)\t12.5 %" {
		t.Errorf("one trace: %q", got)
	}
	zero.merge(a)
	zero.merge(b)
	if got := zero.String(); got != "5.00 (3)\t18.8 %" {
		t.Errorf("two traces: %q", got)
	}
}

// TestReplay_TwoGPUs_MeasuresFragments has a partition in the last of three hours, and a whole GPU in the first.
func TestReplay_TwoGPUs_MeasuresFragments(t *testing.T) {
	s, err := replay(&firstFit{starts: ourStarts(), masks: make([]uint16, 2)}, 2, []request{
		{"", 0, 1}, {"1g.10gb", 2, 9}, {"", 3, 4},
	})
	if got := s.fragments.String(); err != nil || got != "1.33 (1)\t16.7 %" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestReplayGroups_OneNode_MeasuresFragments(t *testing.T) {
	s, err := replayGroups(newLinkedFit(groupOrders[0].starts(0)), nil, []request{
		{"nvlink-4", 0, 1}, {"1g.10gb", 2, 9}, {"", 4, 5},
	})
	if got := s.fragments.String(); err != nil || got != "6.50 (4)\t6.2 %" {
		t.Errorf("%q, %v", got, err)
	}
}
