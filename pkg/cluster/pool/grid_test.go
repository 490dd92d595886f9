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

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/sharingtest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
)

// TestCount_OnePlacementOfEachProfile_SameCapacity compares nodes that publish one placement of most profiles, and no
// groups, with the same nodes that publish all devices, while random claims hold GPUs and partitions. The second are
// counted by their devices, which come from NVML.
func TestCount_OnePlacementOfEachProfile_SameCapacity(t *testing.T) {
	for _, board := range []string{"hgx-h100", "hgx-h200", "hgx-b200", "rtx-pro-6000", "gb200-tray"} {
		t.Run(board, func(t *testing.T) {
			scanned, err := slicetest.Scan(board, "n", 0)
			if err != nil {
				t.Fatal(err)
			}
			every := poolOf(&pool.Shapes{}, slicetest.Slices(scanned, "n", sharing.Settings{}))
			profiles := map[string]bool{}
			for _, kind := range every.Devices() {
				profiles[kind.Profile] = true
			}
			delete(profiles, "")
			if every.OnDemand() {
				t.Error("a node that publishes all devices counts as one that does not")
			}
			last := scanned.GPUs[len(scanned.GPUs)-1].PCIAddress
			if serving := poolOf(&pool.Shapes{}, slicetest.Slices(scanned, "n", sharing.Settings{}, func(o *resourceslices.Options) {
				o.Sharing = sharingtest.Source{PlacementsOf: func(g gpu.GPU, _ string) sharing.Placements {
					if g.PCIAddress == last {
						return sharing.AllPlacements
					}
					return sharing.LaterPlacements
				}}
			})); !serving.OnDemand() {
				t.Error("a node of which one GPU has all partitions counts as one that publishes all devices")
			}
			random := rand.New(rand.NewPCG(seedtest.Base(t), uint64(len(board))))
			for range seedtest.Count(20) {
				names := slices.Sorted(maps.Keys(profiles))
				asked := names[:0:0]
				for _, name := range names {
					if random.IntN(4) == 0 {
						asked = append(asked, name)
					}
				}
				listed := ""
				for _, name := range asked {
					listed += fmt.Sprintf(", %q", name)
				}
				settings, _, err := sharing.Parse([]byte("publish: [{profiles: [Auto" + listed + "], groups: None}]"))
				if err != nil {
					t.Fatal(err)
				}
				some := poolOf(&pool.Shapes{}, slicetest.Slices(scanned, "n", settings))
				if !some.OnDemand() && len(asked) == 0 && len(profiles) > 0 {
					t.Error("one placement of each profile counts as all of them")
				}
				held := randomClaims(random, every, asked)
				want, got := every.Count(held), some.Count(held)
				if d := cmp.Diff(want.FreePlacements, got.FreePlacements) + cmp.Diff(want.FreeSlices, got.FreeSlices) +
					cmp.Diff(want.UsableSlices, got.UsableSlices); d != "" {
					t.Fatalf("asked %v, held %v: all devices (-) and some (+):\n%s", asked, held, d)
				}
				for k, n := range want.FreePlacements {
					if devices := want.Devices[pool.KindState{Kind: k, State: pool.Free}]; n != devices {
						t.Fatalf("held %v: %d placements of %s are free, but %d devices", held, n, k.Profile, devices)
					}
				}
				for model, n := range want.LargestGroup {
					if got.LargestGroup[model] < n {
						t.Fatalf("held %v: the largest group of %s has %d GPUs, want at least %d", held, model, got.LargestGroup[model], n)
					}
				}
			}
		})
	}
}

// randomClaims allocates GPUs and partitions of the asked profiles, as long as their counters suffice.
func randomClaims(random *rand.Rand, p pool.Pool, asked []string) (held []string) {
	var names []string
	for d, kind := range p.Devices() {
		if kind.Type == gpu.KindGPU || slices.Contains(asked, kind.Profile) && !strings.HasSuffix(kind.Profile, "+me") {
			names = append(names, d.Name)
		}
	}
	random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names[:random.IntN(len(names)/2+1)] {
		if states, _ := p.Room(held); states[name] == pool.Free {
			held = append(held, name)
		}
	}
	return held
}
