// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package allocators

import (
	"maps"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/wire/schedulerfault"
)

// onNode are errors that concern one node: the scheduler goes on with the others.
const onNode = "invalid resource pools were encountered"

// TestAllocators_SlicesThatThePolicyAllows_SchedulerGoesOn has the newest patch of each minor version allocate every
// documented claim, over slices with each value of each field that the policy own-slices lets a plugin write. An error of
// the allocator ends the scheduling of the pod on all nodes, and a crash that of every pod. The test of the chart checks
// which changes the policy denies.
func TestAllocators_SlicesThatThePolicyAllows_SchedulerGoesOn(t *testing.T) {
	w := worlds(t)[0]
	byName := map[string]*resourceapi.DeviceClass{}
	for _, c := range classes() {
		byName[c.Name] = c
	}
	newest := map[int]allocator{}
	for _, a := range allocators(t) {
		newest[a.minor.version] = a
	}
	for _, version := range slices.Sorted(maps.Keys(newest)) {
		a := newest[version]
		served := a.served()[len(a.served())-1]
		left := schedulerfault.Without(schedulerfault.Of(a.versions()[len(a.patches)-1], served))
		base, _ := slicetest.Few(w.slices(served, left, nil))
		in := input{Node: "n1", Classes: classes(), Slices: map[string][]*resourceapi.ResourceSlice{}}
		var names []string
		for _, c := range slicetest.Changes() {
			if !seedtest.Chosen(c.Name) || c.Denied || c.Repeated && version == 34 { // SECURITY.md names this as not bounded.
				continue
			}
			changed := make([]*resourceapi.ResourceSlice, len(base))
			for i, s := range base {
				changed[i] = s.DeepCopy()
				c.Do(changed[i])
			}
			in.Slices[c.Name] = changed
			s := scenario{Shares: served.Shares && !left.Shares, Counters: served.Counters && !left.Counters}
			last := []string(nil)
			documented := slicetest.Documented(byName)
			for _, name := range slices.Sorted(maps.Keys(documented)) {
				spec := documented[name]
				if c.NotWhole && slicetest.All(spec) {
					continue
				}
				one := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: "uid"}}
				one.Spec.Devices = spec
				s.Steps = append(s.Steps, step{Slices: c.Name, Allocate: []*resourceapi.ResourceClaim{one}, Release: last})
				last = []string{name}
			}
			in.Scenarios, names = append(in.Scenarios, s), append(names, c.Name)
		}
		allocated := 0
		for i, results := range a.run(t, in) {
			for j, r := range results {
				claim := in.Scenarios[i].Steps[j].Allocate[0].Name
				if r.Panic != "" || r.Error != "" && !strings.Contains(r.Error, onNode) {
					t.Errorf("%s: %s: %s: %s%s", a, names[i], claim, r.Error, r.Panic)
				}
				allocated += len(r.Devices)
			}
		}
		if len(names) < seedtest.Count(200) || allocated < len(names) {
			t.Errorf("%s: %d changes and %d allocated claims are too few for this test", a, len(names), allocated)
		}
	}
}
