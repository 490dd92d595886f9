// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pool_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/sharingtest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
)

// elsewhere makes a node publish no placement of the profiles that no object asks for.
func elsewhere(node string, settings sharing.Settings) func(*resourceslices.Options) {
	return func(o *resourceslices.Options) {
		o.Sharing = sharing.Node{Name: node, Settings: settings, MPS: true, Demand: sharingtest.NoDemand{Elsewhere: true}}
	}
}

func parsed(t testing.TB, file string) sharing.Settings {
	t.Helper()
	settings, _, err := sharing.Parse([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	return settings
}

func scanned(t testing.TB, board, seed string) gpu.Snapshot {
	t.Helper()
	s, err := slicetest.Scan(board, seed, 0)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// pair returns the pools of two nodes of a board: one publishes a placement of each profile, the other only whole GPUs and
// what the settings name.
func pair(t testing.TB, shapes *pool.Shapes, board, file string) (sample, plain pool.Pool) {
	t.Helper()
	settings, s := parsed(t, file), scanned(t, board, "a")
	return poolOf(shapes, slicetest.Slices(s, "a", settings)), poolOf(shapes, slicetest.Slices(s, "b", settings, elsewhere("b", settings)))
}

func learns(x *pool.Samples, p pool.Pool) bool { return len(x.Learn(p)) > 0 }

func partitions(p pool.Pool) map[string]resourceapi.Device {
	out := map[string]resourceapi.Device{}
	for d, kind := range p.Devices() {
		if kind.Type == gpu.KindMIG && out[kind.Profile].Name == "" {
			out[kind.Profile] = d
		}
	}
	return out
}

// TestSamplesAdd_NodeWithoutPartitions_KnowsThoseOfTheSampleNode compares a node of whole GPUs, with the sample of another
// node, with the same node as a sample node.
func TestSamplesAdd_NodeWithoutPartitions_KnowsThoseOfTheSampleNode(t *testing.T) {
	for _, board := range []string{"hgx-h100", "h100-nvl-4", "hgx-b200", "rtx-pro-6000", "gb200-tray", "gh200"} {
		for _, file := range []string{
			"publish: [{profiles: Auto, groups: Auto, monitors: Auto}]", "publish: [{profiles: Auto, groups: All, shareable: None}]",
		} {
			sample, plain := pair(t, &pool.Shapes{}, board, file)
			if n := len(partitions(plain)); n != 0 {
				t.Fatalf("%s, %s: %d profiles are published", board, file, n)
			}
			samples := pool.NewSamples()
			if learns(samples, plain) || !learns(samples, sample) || learns(samples, sample) || !sample.Complete(plain.Layouts()[0]) || plain.Complete(plain.Layouts()[0]) {
				t.Fatalf("%s, %s: the sample of the first node is not learnt, once", board, file)
			}
			added := samples.Add(plain)
			if d := cmp.Diff(partitions(sample), partitions(added)); d != "" {
				t.Errorf("%s, %s: a sample node (-) and one with the sample (+):\n%s", board, file, d)
			}
			want, got := sample.Count(nil), added.Count(nil)
			want.Devices, got.Devices = nil, nil
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s, %s: a sample node (-) and one with the sample (+):\n%s", board, file, d)
			}
			if d := cmp.Diff(plain.Count(nil).Devices, added.Count(nil).Devices); d != "" {
				t.Errorf("%s, %s: devices that are not published count: %s", board, file, d)
			}
			if !added.OnDemand() || plain.OnDemand() || added.Whole != plain.Whole {
				t.Errorf("%s, %s: on demand: %v with the sample, %v without", board, file, added.OnDemand(), plain.OnDemand())
			}
			if again := samples.Add(added); len(again.Slices) != len(added.Slices) {
				t.Errorf("%s, %s: a partition is there twice", board, file)
			}
			if all := samples.Add(sample); len(all.Slices) != len(sample.Slices) {
				t.Errorf("%s, %s: the sample node gets its own sample", board, file)
			}
		}
	}
}

// TestSamplesAdd_ClaimsAndAskedProfiles_CountsOfASampleNode has random claims, and profiles that objects ask for.
func TestSamplesAdd_ClaimsAndAskedProfiles_CountsOfASampleNode(t *testing.T) {
	random := rand.New(rand.NewPCG(seedtest.Base(t), 2))
	names := slices.Sorted(maps.Keys(partitions(poolOf(&pool.Shapes{}, published(t, "hgx-h100", "a")))))
	for range seedtest.Count(20) {
		var asked []string
		for _, name := range names {
			if random.IntN(4) == 0 {
				asked = append(asked, name)
			}
		}
		file := "publish: [{profiles: [Auto], groups: None}]"
		if len(asked) > 0 {
			file = fmt.Sprintf("publish: [{profiles: [Auto, '%s'], groups: None}]", strings.Join(asked, "', '"))
		}
		sample, plain := pair(t, &pool.Shapes{}, "hgx-h100", file)
		samples := pool.NewSamples()
		samples.Learn(sample)
		added := samples.Add(plain)
		held := randomClaims(random, plain, asked)
		want, got := sample.Count(held), added.Count(held)
		want.Devices, got.Devices = nil, nil
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("asked %v, held %v: a sample node (-) and one with the sample (+):\n%s", asked, held, d)
		}
		_, largest := sample.Room(held)
		if _, got := added.Room(held); !maps.Equal(largest, got) {
			t.Fatalf("asked %v, held %v: room %v, want %v", asked, held, got, largest)
		}
	}
}

// TestSamplesAdd_NodesThatAreAlike_StayAlike also has a node with another driver: its partitions have its own version.
func TestSamplesAdd_NodesThatAreAlike_StayAlike(t *testing.T) {
	shapes, settings := &pool.Shapes{}, parsed(t, "publish: [{profiles: Auto, groups: None, monitors: None}]")
	samples := pool.NewSamples()
	samples.Learn(poolOf(shapes, slicetest.Slices(scanned(t, "hgx-h100", "a"), "a", settings)))
	at := func(node, version string) pool.Pool {
		s := scanned(t, "hgx-h100", node)
		s.Driver.Version = version
		return samples.Add(poolOf(shapes, slicetest.Slices(s, node, settings, elsewhere(node, settings))))
	}
	b, c, d := at("b", "580.1"), at("c", "580.1"), at("d", "999.1")
	first, _ := b.Shape()
	if second, _ := c.Shape(); first != second || b.Node == c.Node {
		t.Error("two nodes that are alike differ with the sample")
	}
	if version := pool.Text(partitions(d)["1g.10gb"], "driverVersion"); version != "999.1.0" {
		t.Errorf("a partition has the driver %s", version)
	}
	for _, s := range b.Slices {
		if s.Node != "b" || s.Pool.Name != "b/gpu" || s.Possible == (s == b.Slices[0]) {
			t.Errorf("%+v", s)
		}
	}
}

// TestSamplesLearn_WrongSample_IsIgnored has a node that publishes the name of another node's layout with other partitions.
func TestSamplesLearn_WrongSample_IsIgnored(t *testing.T) {
	settings := parsed(t, "publish: [{profiles: Auto, groups: None, monitors: None}]")
	_, plain := pair(t, &pool.Shapes{}, "hgx-h100", "publish: [{profiles: Auto, groups: None, monitors: None}]")
	for name, change := range map[string]func(*resourceapi.ResourceSliceSpec){
		"a profile less": func(s *resourceapi.ResourceSliceSpec) {
			s.Devices = slices.DeleteFunc(s.Devices, func(d resourceapi.Device) bool { return pool.Text(d, "profile") == "1g.10gb" })
		},
		"more of a profile's memory": func(s *resourceapi.ResourceSliceSpec) {
			for _, d := range s.Devices {
				if memory, ok := d.Capacity["memory"]; ok && pool.Text(d, "type") == "mig" {
					memory.Value.Add(memory.Value)
					d.Capacity["memory"] = memory
				}
			}
		},
		"another name": func(s *resourceapi.ResourceSliceSpec) {
			for i := range s.Devices {
				if pool.Text(s.Devices[i], "profile") == "7g.80gb" {
					s.Devices[i].Attributes["profile"] = resourceapi.DeviceAttribute{StringValue: new("9g.90gb")}
				}
			}
		},
		"two of one memory slice": func(s *resourceapi.ResourceSliceSpec) {
			for _, d := range s.Devices {
				for _, use := range d.ConsumesCounters {
					if second, ok := use.Counters["memory-slice-1"]; ok && pool.Text(d, "profile") == "2g.20gb" {
						second.Value.Add(second.Value)
						use.Counters["memory-slice-0"] = second
						delete(use.Counters, "memory-slice-1")
					}
				}
			}
		},
		"memory slices under one name": func(s *resourceapi.ResourceSliceSpec) {
			for _, set := range s.SharedCounters {
				all := set.Counters["memory-slice-0"]
				all.Value.Set(8)
				for i := range 8 {
					delete(set.Counters, fmt.Sprint("memory-slice-", i))
				}
				set.Counters["memory-slice-0"] = all
			}
		},
		"more counters": func(s *resourceapi.ResourceSliceSpec) {
			for _, set := range s.SharedCounters {
				set.Counters["memory-slice-8"] = resourceapi.Counter{Value: set.Counters["memory-slice-7"].Value}
			}
		},
	} {
		all := slicetest.Slices(scanned(t, "hgx-h100", "a"), "a", settings)
		for _, s := range all {
			change(&s.Spec)
		}
		samples := pool.NewSamples()
		bad := poolOf(&pool.Shapes{}, all)
		if learns(samples, bad) || bad.Complete(plain.Layouts()[0]) {
			t.Errorf("%s: the sample is learnt", name)
		}
		if added := samples.Add(plain); len(added.Slices) != len(plain.Slices) {
			t.Errorf("%s: another node has the partitions %v", name, slices.Sorted(maps.Keys(partitions(added))))
		}
	}
}

// TestSamplesLearn_AdministratorCutAGPU_TheOthersAreTheSample has external partitions on the first GPU.
func TestSamplesLearn_AdministratorCutAGPU_TheOthersAreTheSample(t *testing.T) {
	settings := parsed(t, "publish: [{profiles: Auto, groups: None}]")
	s := scanned(t, "hgx-h100", "a")
	external := func(o *resourceslices.Options) {
		o.Switched = map[string]bool{s.GPUs[0].PCIAddress: true}
		o.External = map[string][]gpu.Partition{s.GPUs[0].PCIAddress: {{
			Profile: "1g.10gb+me", Placement: gpu.Placement{Start: 6, Size: 1}, Devices: []gpu.PartitionDevice{{UUID: "MIG-1"}},
		}}}
	}
	s.GPUs[0].MIG.Enabled, s.GPUs[0].MIG.Pending = true, true
	sample := poolOf(&pool.Shapes{}, slicetest.Slices(s, "a", settings, external))
	samples := pool.NewSamples()
	if !learns(samples, sample) {
		t.Error("no sample is learnt")
	}
	samples.Keep(map[string]bool{sample.Layouts()[0]: true})
	if learns(samples, sample) {
		t.Error("a kept layout is forgotten")
	}
	samples.Keep(nil)
	if !learns(samples, sample) {
		t.Error("a layout of no node is kept")
	}
}
