// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
)

// TestSettings_PublishedDevices_ServeTheirWorkloads checks the number of devices, and that claims can hold some of them.
func TestSettings_PublishedDevices_ServeTheirWorkloads(t *testing.T) {
	scanned, err := scanBoard()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range settings {
		count := map[string]int{} // of the kinds of nodes that serve a workload
		for _, d := range append([]part{{devices: s.devices}}, s.some...) {
			published, err := d.slicesOf("n", scanned)
			if err != nil {
				t.Fatalf("%s: %v", s.name, err)
			}
			if n := len(devicesOf(published, isWhole)); n != 8 {
				t.Errorf("%s: %d whole GPUs, want 8", s.name, n)
			}
			if (d.plain || d.noMonitors) && len(devicesOf(published, func(d resourceapi.Device) bool { return attribute(d, "type") == "monitor" })) > 0 {
				t.Errorf("%s: nodes have monitors", s.name)
			}
			for _, w := range workloads {
				if n := len(devicesOf(published, w.uses)); (n >= 8 || d.serving > 0 && n > 0) && w.servedBy(published) {
					count[w.name]++
				}
			}
		}
		for _, name := range s.workloads {
			if name != mixed && count[name] == 0 {
				t.Errorf("%s: no devices to hold for %q", s.name, name)
			}
		}
	}
}

func TestSettings_NothingAsked_HaveOneSlice(t *testing.T) {
	scanned, err := scanBoard()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []devices{{plain: true}, onlyGPUs} {
		published, err := d.slicesOf("n", scanned)
		if err != nil {
			t.Fatal(err)
		}
		if len(published) != 1 || len(published[0].Spec.Devices) != 8 || len(devicesOf(published, isShareable)) > 0 {
			t.Errorf("%+v: %d slices, the first with %d devices, want one with eight exclusive GPUs", d, len(published), len(published[0].Spec.Devices))
		}
	}
}

// TestSettings_PartsOfTheNodes_HaveOtherDevices checks the numbers of these nodes and that they are spread.
func TestSettings_PartsOfTheNodes_HaveOtherDevices(t *testing.T) {
	one := setting{some: []part{{1, devices{file: "a"}}}}
	two := setting{some: []part{{1, devices{file: "a"}}, {3, devices{file: "b"}}}}
	for _, test := range []struct {
		setting           setting
		nodes, percentage int
		a, b              int
	}{
		{setting{}, 100, 10, 0, 0}, {one, 100, 0, 0, 0}, {one, 100, 10, 10, 0}, {one, 400, 5, 20, 0}, {one, 20, 5, 1, 0}, {one, 50, 100, 50, 0},
		{two, 100, 10, 10, 30}, {two, 200, 5, 10, 30}, {two, 500, 10, 50, 150}, {two, 20, 20, 4, 12},
	} {
		count, half := map[string]int{}, map[string]int{}
		for node := range test.nodes {
			file := test.setting.of(node, test.percentage).file
			count[file]++
			if node < test.nodes/2 {
				half[file]++
			}
		}
		if count["a"] != test.a || count["b"] != test.b || half["a"] != test.a/2 || half["b"] != test.b/2 {
			t.Errorf("%d %% of %d nodes: %v, %v in the first half, want %d of a and %d of b", test.percentage, test.nodes, count, half, test.a, test.b)
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

// TestTaken_PartOfTheNodes_LeavesSomeFree checks the devices that claims hold if only a part of the nodes serves the pods.
func TestTaken_PartOfTheNodes_LeavesSomeFree(t *testing.T) {
	scanned, err := scanBoard()
	if err != nil {
		t.Fatal(err)
	}
	s := settingNamed("some-all")
	bySetting := map[string][]*resourceapi.ResourceSlice{}
	for _, d := range []devices{s.devices, s.some[0].devices} {
		if bySetting[d.file], err = d.slicesOf("n", scanned); err != nil {
			t.Fatal(err)
		}
	}
	var published [][]*resourceapi.ResourceSlice
	for node := range 100 {
		published = append(published, bySetting[s.of(node, 10).file])
	}
	for _, test := range []struct {
		workload    string
		use         use
		total, free int
	}{
		{"whole", uses[1], 400, 400},
		{"1g", uses[0], 0, 560},
		{"1g", uses[1], 280, 280},
		{"1g", uses[2], 532, 28},
		{"share", uses[1], 40, 40},
		{"share", uses[2], 76, 4},
		{"group", uses[1], 40, 40},
		{"group", uses[2], 72, 8},
	} {
		taken, free := workloadNamed(test.workload).taken(test.use, published)
		total := 0
		for _, devices := range taken {
			total += len(devices)
		}
		if len(taken) != 100 || total != test.total || free != test.free {
			t.Errorf("%s, %s: claims hold %d devices and leave %d free, want %d and %d", test.workload, test.use.name, total, free, test.total, test.free)
		}
	}
}

func TestFormat_CellWithoutBoundPods_HasNoFigures(t *testing.T) {
	b := &bench{results: []result{
		{setting: "plain", workload: "whole", used: "half", wanted: 10, bound: 10, span: time.Second, p50: time.Second, p99: time.Second},
		{setting: "all", workload: "whole", used: "half", wanted: 10, bound: 5, span: time.Second, p50: time.Second, p99: time.Second},
		{setting: "all", workload: "share", used: "half", wanted: 10},
		{setting: "plain", workload: "four", used: "half", wanted: 10, bound: 10, span: 2 * time.Second},
		{setting: "all", workload: "group", like: "four", used: "half", wanted: 10, bound: 10, span: 8 * time.Second},
	}}
	for _, want := range []string{"10/10  10.0    1.00      1s   1s", "5/10   5.0     0.50      1s   > 1s", "0/10   0.0     -         -    > -", "10/10  1.2     0.25 "} {
		if got := b.format(); !strings.Contains(got, want) {
			t.Errorf("the table lacks %q:\n%s", want, got)
		}
	}
}
