// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"gpu-dra-driver/internal/testing/layouttest"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/sim/nvmlfake"
	"gpu-dra-driver/sim/profiles"
	"gpu-dra-driver/sim/simtest"
)

var update = flag.Bool("update", false, "write the goldens anew")

// snapshot returns the inventory's Snapshot of the first GPUs of a profile, in the profile's places.
func snapshot(t testing.TB, profile string, gpus int) gpu.Snapshot {
	t.Helper()
	p, err := profiles.Load(profile)
	if err != nil {
		t.Fatal(err)
	}
	none := t.TempDir()
	i := inventory.New(inventory.Options{Library: nvmlfake.New(simtest.Machine(t, profile)), ProcRoot: none, SysRoot: none, DevRoot: none})
	s, err := i.Scan(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	s.GPUs = s.GPUs[:gpus]
	for n := range s.GPUs {
		for _, slot := range p.Slots {
			if slot.Address == s.GPUs[n].PCIAddress {
				s.GPUs[n].PCIeRoot = slot.Path[0]
				if slot.NUMANode >= 0 {
					s.GPUs[n].NUMANode = &slot.NUMANode
				}
			}
		}
	}
	return s
}

// TestBuild_SimulatedBoards_MatchGoldens shows, for the first GPUs of each simulated machine, the Snapshot and the devices
// made of it.
func TestBuild_SimulatedBoards_MatchGoldens(t *testing.T) {
	for _, name := range profiles.Names() {
		t.Run(name, func(t *testing.T) {
			p, err := profiles.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			gpus := min(2, len(p.Slots))
			in := snapshot(t, name, gpus)
			pool, warnings := resourceslices.Build(in, nil, resourceslices.Options{Node: "node-1", Taints: true, SharedDevices: true, Counters: true, Sharing: shareable.Sharing})
			archive := &txtar.Archive{
				Comment: fmt.Appendf(nil, "The first %d GPUs of the simulator's profile %s: the inventory's Snapshot and the published pool.\n", gpus, name),
				Files: []txtar.File{
					{Name: "snapshot", Data: []byte(renderSnapshot(tree(in).(object)))},
					{Name: "pool", Data: []byte(renderPool(tree(pool).(object)))},
				},
			}
			if len(warnings) > 0 {
				archive.Files = append(archive.Files, txtar.File{Name: "warnings", Data: []byte(outline("", object{"warnings": tree(warnings)}))})
			}
			got := txtar.Format(archive)
			path := filepath.Join("testdata", name+".txtar")
			if *update {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
				t.Errorf("published devices changed; read the difference, then go test ./pkg/node/resourceslices -update (-golden +built):\n%s", diff)
			}
		})
	}
}

// TestRender_AnythingChanged_TextChanges changes every value of a pool and of a Snapshot, drops every field and element,
// swaps neighbours and moves the slices' boundaries: a golden must fail on each.
func TestRender_AnythingChanged_TextChanges(t *testing.T) {
	in := boards(2, gpu.MIG{})
	in.GPUs[1].MIG = layouttest.A30()
	for i := range in.GPUs {
		in.GPUs[i].Links = []gpu.Link{{Version: 3, Peer: gpu.PeerGPU, PeerAddress: in.GPUs[1-i].PCIAddress}}
		in.GPUs[i].MIG.Switchable, in.GPUs[i].MPSCapable = true, true
	}
	o := resourceslices.Options{Node: "n1", Taints: true, SharedDevices: true, Counters: true, Sharing: shareable.Sharing}
	// A held partition of no GPU has the taint of an unhealthy device.
	o.Held = []resourceslices.Held{{Device: gpu.Device{Kind: gpu.KindMIG, PCIAddress: "0000:20:00.0", Profile: "1g.6gb"}, Size: 1}}
	pool, _ := resourceslices.Build(in, nil, o)

	root := tree(pool).(object)
	built := renderPool(root)
	check := func(change string) {
		t.Helper()
		if renderPool(root) == built {
			t.Errorf("%s: the golden does not show it", change)
		}
	}
	kinds := map[string]int{}
	mutate(root, "", func(path string) {
		check(path)
		kinds[regexp.MustCompile(`\[\d+\]`).ReplaceAllString(path, "")]++
	})
	for _, kind := range []string{
		"Name changed", "Slices swapped", "Slices dropped", "Slices.devices swapped", "Slices.devices dropped", "Slices.devices.name changed",
		"Slices.devices.attributes.driverVersion.version changed", "Slices.devices.attributes.index.int changed",
		"Slices.devices.attributes.type.string changed", "Slices.devices.attributes.migCapable.bool changed",
		"Slices.devices.attributes.uuid dropped", "Slices.devices.capacity.memory.value changed",
		"Slices.devices.capacity.memory.requestPolicy.default changed", "Slices.devices.capacity.memory.requestPolicy.validRange.step dropped",
		"Slices.devices.capacity.shares.requestPolicy.validValues dropped", "Slices.devices.capacity.decoders.requestPolicy dropped",
		"Slices.devices.consumesCounters swapped", "Slices.devices.consumesCounters.counterSet changed",
		"Slices.devices.consumesCounters.counters.memory-slice-2.value changed", "Slices.devices.consumesCounters.counters.memory dropped",
		"Slices.devices.taints.value changed", "Slices.devices.taints.effect changed", "Slices.devices.allowMultipleAllocations dropped",
		"Slices.sharedCounters swapped", "Slices.sharedCounters.name changed", "Slices.sharedCounters.counters.memory.value changed",
	} {
		if kinds[kind] == 0 {
			t.Errorf("nothing was tried of %q", kind)
		}
	}
	list := root["Slices"].([]any)
	for n := range list[1:] {
		a, b := list[n].(object), list[n+1].(object)
		from, _ := a["devices"].([]any)
		to, _ := b["devices"].([]any)
		if len(from) > 0 && len(to) > 0 {
			a["devices"], b["devices"] = from[:len(from)-1], append([]any{from[len(from)-1]}, to...)
			check(fmt.Sprintf("the last device of slice %d in the next", n))
			a["devices"], b["devices"] = from, to
		}
	}
	for _, extra := range []object{{"nodeName": "n1"}, {"bindsToNode": true}, {"bindingConditions": []any{"a"}}} {
		device := list[0].(object)["devices"].([]any)[0].(object)
		for key, value := range extra {
			device[key] = value
			check("a device with " + key)
			delete(device, key)
		}
	}

	seen := tree(in).(object)
	read := renderSnapshot(seen)
	mutate(seen, "", func(path string) {
		if renderSnapshot(seen) == read {
			t.Errorf("%s: the golden does not show it", path)
		}
	})
}

// mutate changes a tree in one place at a time, reports the place and undoes the change.
func mutate(v any, path string, changed func(path string)) {
	switch v := v.(type) {
	case object:
		for _, key := range sortedKeys(v) {
			was, at := v[key], strings.TrimPrefix(path+"."+key, ".")
			delete(v, key)
			changed(at + " dropped")
			switch value := was.(type) {
			case string:
				v[key] = value + "x"
				changed(at + " changed")
			case float64:
				v[key] = value + 1
				changed(at + " changed")
			case bool:
				v[key] = !value
				changed(at + " changed")
			case []any:
				elements(value, at, func(list []any, path string) {
					v[key] = list
					changed(path)
				})
			}
			v[key] = was
			mutate(was, at, changed)
		}
	case []any:
		for i := range v {
			mutate(v[i], fmt.Sprintf("%s[%d]", path, i), changed)
		}
	}
}

// elements gives a list without each of its elements, and with each two neighbours that differ swapped.
func elements(list []any, path string, changed func(list []any, path string)) {
	for i := range list {
		changed(slices.Delete(slices.Clone(list), i, i+1), fmt.Sprintf("%s[%d] dropped", path, i))
		if i > 0 && flow(list[i]) != flow(list[i-1]) {
			other := slices.Clone(list)
			other[i], other[i-1] = other[i-1], other[i]
			changed(other, fmt.Sprintf("%s[%d] swapped", path, i))
		}
	}
}
