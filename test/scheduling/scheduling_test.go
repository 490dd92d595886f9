// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"gpu-dra-driver/pkg/node/resourceslices/slicetest"
)

// TestSettings_PublishedDevices_ServeTheirWorkloads checks the number of devices, and that claims can hold some of them.
func TestSettings_PublishedDevices_ServeTheirWorkloads(t *testing.T) {
	scanned, err := slicetest.Scan(board, "n", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range settings {
		for _, percentage := range []int{0, 100} {
			if percentage > 0 && s.some == nil {
				continue
			}
			d := s.of(0, percentage)
			published, err := d.slicesOf("n", scanned)
			if err != nil {
				t.Fatalf("%s: %v", s.name, err)
			}
			if n := len(devicesOf(published, isWhole)); n != 8 {
				t.Errorf("%s: %d whole GPUs, want 8", s.name, n)
			}
			if (d.plain || d.noMonitors) && len(published) != 1 {
				t.Errorf("%s: nodes have %d slices, want 1", s.name, len(published))
			}
			if percentage == 0 && s.some != nil {
				continue // The other nodes serve its workloads.
			}
			for _, name := range s.workloads {
				for _, w := range workloads {
					if w.name == name && (len(devicesOf(published, w.uses)) < 8 || !w.servedBy(published)) {
						t.Errorf("%s: no devices to hold for %q", s.name, name)
					}
				}
			}
		}
	}
}

// TestSettings_PartOfTheNodes_HaveOtherDevices checks the number of these nodes and that they are spread.
func TestSettings_PartOfTheNodes_HaveOtherDevices(t *testing.T) {
	s := setting{devices: onlyGPUs, some: &devices{plain: true}}
	for _, test := range []struct{ nodes, percentage, want int }{{100, 0, 0}, {100, 10, 10}, {400, 5, 20}, {20, 5, 1}, {50, 100, 50}} {
		total, half := 0, 0
		for node := range test.nodes {
			if s.of(node, test.percentage).plain {
				total++
				if node < test.nodes/2 {
					half++
				}
			}
		}
		if total != test.want || half != test.want/2 {
			t.Errorf("%d %% of %d nodes are %d, %d in the first half, want %d and %d", test.percentage, test.nodes, total, half, test.want, test.want/2)
		}
	}
}

func TestHeld_PartOfTheCluster_HasTheRightSize(t *testing.T) {
	byName := map[string]workload{}
	for _, w := range workloads {
		byName[w.name] = w
	}
	for _, test := range []struct {
		workload             string
		use                  use
		devices, total, most int
	}{
		{"whole", uses[0], 8, 0, 0},
		{"whole", uses[1], 8, 400, 4},
		{"whole", uses[2], 8, 760, 8},
		{"1g", uses[2], 56, 5320, 54},
		{"group", uses[1], 8, 400, 4},
		{"group", uses[2], 8, 760, 8},
	} {
		total, most := 0, 0
		for node := range 100 {
			n := byName[test.workload].held(test.use, node, 100, test.devices)
			total, most = total+n, max(most, n)
		}
		if total != test.total || most != test.most {
			t.Errorf("%s, %s: claims hold %d devices and up to %d of a node, want %d and %d", test.workload, test.use.name, total, most, test.total, test.most)
		}
	}
}

func TestFormat_CellWithoutBoundPods_HasNoFigures(t *testing.T) {
	b := &bench{results: []result{
		{setting: "plain", workload: "whole", used: "half", wanted: 10, bound: 10, span: time.Second, p99: time.Second},
		{setting: "all", workload: "whole", used: "half", wanted: 10, bound: 5, span: time.Second, p99: time.Second},
		{setting: "all", workload: "share", used: "half", wanted: 10},
	}}
	for _, want := range []string{"10/10  10.0    1.00      1s", "5/10   5.0     0.50      > 1s", "0/10   0.0     -         > -"} {
		if got := b.format(); !strings.Contains(got, want) {
			t.Errorf("the table lacks %q:\n%s", want, got)
		}
	}
}
