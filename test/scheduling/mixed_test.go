// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/internal/testing/whytest"
	"gpu-dra-driver/pkg/gpu"
)

func settingNamed(name string) setting {
	return settings[slices.IndexFunc(settings, func(s setting) bool { return s.name == name })]
}

func TestChurn_Kinds_HaveTheirShares(t *testing.T) {
	_, arrivals := churn(1, 80, 1000, settingNamed("some-mixed").serving)
	count := map[string]int{}
	for _, a := range arrivals {
		count[a.workload.name]++
	}
	want := map[string]int{"whole": 780, "1g": 80, "3g": 20, "share": 100, "group": 20}
	if !reflect.DeepEqual(count, want) {
		t.Errorf("kinds of 1000 pods: %v, want %v", count, want)
	}
}

func TestChurn_PlainCluster_GetsTheSamePodsWithWholeGPUs(t *testing.T) {
	_, other := churn(1, 80, 500, settingNamed("some-mixed").serving)
	_, plain := churn(1, 80, 500, settingNamed("plain").serving)
	instead := map[string]string{"whole": "whole", "1g": "whole", "3g": "whole", "share": "whole", "group": "four"}
	for i, a := range plain {
		if wants := other[i].workload.name; a.workload.name != instead[wants] || a.name != other[i].name {
			t.Errorf("%s asks for %q in place of %q, want %q", a.name, a.workload.name, wants, instead[wants])
		}
	}
}

func TestChurn_Seed_SelectsThePods(t *testing.T) {
	serving := settingNamed("some-mixed").serving
	names := func(seed uint64) (out [][]string) {
		residents, arrivals := churn(seed, 80, 200, serving)
		for _, a := range append(residents, arrivals...) {
			out = append(out, append([]string{a.name, a.workload.name}, a.leave...))
		}
		return out
	}
	if !reflect.DeepEqual(names(1), names(1)) {
		t.Error("a seed gives different pods")
	}
	if reflect.DeepEqual(names(1), names(2)) {
		t.Error("two seeds give the same pods")
	}
}

// TestChurn_UsedGPUs_StayBelowTheLevel checks also that each pod leaves once, after it arrived.
func TestChurn_UsedGPUs_StayBelowTheLevel(t *testing.T) {
	for _, s := range []string{"plain", "some-mixed"} {
		const level, group = 80, 4
		residents, arrivals := churn(1, level, 2000, settingNamed(s).serving)
		present, used := map[string]float64{}, 0.0
		for _, a := range residents {
			present[a.name] = a.workload.gpus
			used += a.workload.gpus
		}
		for _, a := range arrivals {
			for _, name := range a.leave {
				gpus, ok := present[name]
				if !ok {
					t.Fatalf("%s: %s leaves, but is not there", s, name)
				}
				used -= gpus
				delete(present, name)
			}
			used += a.workload.gpus
			present[a.name] = a.workload.gpus
			// A large pod makes room for a small one when it leaves.
			if used > level+1e-6 || used < level-group-1 {
				t.Fatalf("%s: %.2f GPUs are used when %s is there, want nearly %d", s, used, a.name, level)
			}
		}
	}
}

// fleetOf is a node with devices.
func fleetOf(t *testing.T, node int, d devices) whytest.Fleet {
	t.Helper()
	scanned, err := scanBoard()
	if err != nil {
		t.Fatal(err)
	}
	published, err := d.slicesOf(nodeName(node), scanned)
	if err != nil {
		t.Fatal(err)
	}
	return newFleet(node, published)
}

var scanBoard = sync.OnceValues(func() (gpu.Snapshot, error) { return slicetest.Scan(board, "n", 0) })

// TestSettings_MixedPods_FindDevices checks that a part of the nodes serves each kind of pods, and that no other does.
func TestSettings_MixedPods_FindDevices(t *testing.T) {
	for _, s := range settings {
		if !slices.Contains(s.workloads, mixed) {
			continue
		}
		for _, k := range kinds {
			w, found := s.serving(k.name), false
			for _, p := range append([]part{{devices: s.devices}}, s.some...) {
				f := fleetOf(t, 0, p.devices)
				found = f.Start(w.claim("c"), nodeName(0)) || found
			}
			if !found {
				t.Errorf("%s: a pod that asks for %q in place of %q finds no device", s.name, w.name, k.name)
			}
		}
	}
}

func TestShare_ExclusiveGPUs_AreNotAllocated(t *testing.T) {
	f := fleetOf(t, 0, onlyGPUs)
	if f.Start(workloadNamed("share").claim("c"), nodeName(0)) {
		t.Error("a share got an exclusive GPU")
	}
}

// TestPlace_HalfUsedCluster_HasRoomForAll checks that enough nodes publish the devices of the mixed cluster.
func TestPlace_HalfUsedCluster_HasRoomForAll(t *testing.T) {
	const nodes = 20
	for _, s := range settings {
		if !slices.Contains(s.workloads, mixed) {
			continue
		}
		var published [][]*resourceapi.ResourceSlice
		for i := range nodes {
			published = append(published, fleetOf(t, i, s.of(i, 10)).Slices)
		}
		pods, _ := churn(1, gpusOfNode*nodes/2, 0, s.serving)
		perNode := map[string]int{}
		there := place(pods, published)
		for _, p := range there {
			perNode[p.node]++
		}
		if len(there) != len(pods) || len(perNode) != nodes {
			t.Errorf("%s: %d of %d pods have room, on %d nodes", s.name, len(there), len(pods), len(perNode))
		}
	}
}

func TestAttemptsIn_Log_EachTakesUntilTheNext(t *testing.T) {
	got, err := attemptsIn(`I1126 23:59:59.900000   12 eventhandlers.go:214] "Add event for unscheduled pod" pod="default/a"
I1126 23:59:59.900100   12 schedule_one.go:117] "Attempting to schedule pod" pod="default/a"
I1126 23:59:59.950100   12 schedule_one.go:117] "Attempting to schedule pod" pod="default/b-1"
I1126 23:59:59.960000   12 schedule_one.go:117] "Attempting to schedule pod" pod="other/c"
E1126 23:59:59.970000   12 schedule_one.go:1000] "Error" pod="default/b-1"
I1127 00:00:00.150100   12 schedule_one.go:117] "Attempting to schedule pod" pod="default/a"
`)
	if err != nil {
		t.Fatal(err)
	}
	if want := []attempt{{"a", 50 * time.Millisecond}, {"b-1", 200 * time.Millisecond}}; !slices.Equal(got, want) {
		t.Errorf("attempts: %v, want %v", got, want)
	}
	if got, err := attemptsIn("no attempts"); err != nil || len(got) > 0 {
		t.Errorf("attempts of a log without any: %v, %v", got, err)
	}
}

func TestByKind_Attempts_BelongToTheirPods(t *testing.T) {
	arrivals := append(alike("a", workloadNamed("whole"), 2), alike("b", workloadNamed("1g"), 3)...)
	bindings := []binding{
		{"a-0", 100 * time.Millisecond}, {"b-0", 300 * time.Millisecond}, {"b-2", 200 * time.Millisecond}, {"a-1", 120 * time.Millisecond},
	}
	attempts := []attempt{
		{"warm-0", time.Second}, {"a-0", 10 * time.Millisecond}, {"b-0", 70 * time.Millisecond}, {"b-2", 20 * time.Millisecond},
		{"b-1", 30 * time.Millisecond}, {"a-1", 30 * time.Millisecond},
	}
	all := result{setting: "some-mixed", workload: mixed, used: "50 %", cpuPerPod: time.Millisecond, megabytes: 100}
	got := map[string]result{}
	for _, r := range byKind(all, arrivals, bindings, attempts) {
		got[r.workload] = r
	}
	want := map[string]result{
		"mixed: whole": {wanted: 2, bound: 2, span: 40 * time.Millisecond, p50: 120 * time.Millisecond, p99: 120 * time.Millisecond},
		"mixed: 1g":    {like: "mixed: whole", wanted: 3, bound: 2, span: 120 * time.Millisecond, p50: 300 * time.Millisecond, p99: 300 * time.Millisecond},
	}
	if len(got) != len(want) {
		t.Errorf("%d kinds, want %d", len(got), len(want))
	}
	for name, r := range want {
		if r.setting, r.workload, r.used = "some-mixed", name, "50 %"; got[name] != r {
			t.Errorf("%s: %+v, want %+v", name, got[name], r)
		}
	}
}

func TestFormat_MixedCluster_ComparesKindsWithPlain(t *testing.T) {
	b := &bench{results: []result{
		{setting: "plain", workload: "mixed", used: "50 %", wanted: 10, bound: 10, span: time.Second, p50: time.Second, p99: time.Second, cpuPerPod: 5 * time.Millisecond, megabytes: 100},
		{setting: "plain", workload: "mixed: whole", used: "50 %", wanted: 5, bound: 5, span: time.Second, p50: time.Second, p99: time.Second},
		{setting: "some-mixed", workload: "mixed", used: "50 %", wanted: 10, bound: 10, span: 2 * time.Second, p50: time.Second, p99: 3 * time.Second, cpuPerPod: 9 * time.Millisecond, megabytes: 110},
		{setting: "some-mixed", workload: "mixed: whole", used: "50 %", wanted: 5, bound: 4, span: time.Second, p50: time.Second, p99: 2 * time.Second},
		{setting: "some-mixed", workload: "mixed: 1g", like: "mixed: whole", used: "50 %", wanted: 5, bound: 1, span: time.Second, p50: time.Second, p99: 2 * time.Second},
	}}
	got := strings.Join(strings.Fields(b.format()), " ")
	for _, want := range []string{
		"some-mixed mixed 50 % 10/10 5.0 0.50 1s 3s 9.0 ms, 1.8 x 110 MB 0.0 s",
		"some-mixed mixed: whole 50 % 4/5 4.0 0.80 1s > 2s - - -",
		"some-mixed mixed: 1g 50 % 1/5 1.0 0.20 1s > 2s - - -",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the table lacks %q:\n%s", want, b.format())
		}
	}
}
