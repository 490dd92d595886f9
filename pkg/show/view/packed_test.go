// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/show/view"
)

// TestNodes_PackedSlices_EqualsWholeSlices gives each node UUIDs, a fabric, partitions and faults of its own.
func TestNodes_PackedSlices_EqualsWholeSlices(t *testing.T) {
	boards, shared := []string{"hgx-h100", "a30", "l40s-4"}, 0
	text := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }
	for seed := range seedtest.Each(t, 60) {
		r := rand.New(rand.NewPCG(seed, 73))
		var all []*resourceapi.ResourceSlice
		var claims []resourceapi.ResourceClaim
		for n := range 3 + r.IntN(5) {
			node := fmt.Sprintf("n%d", n)
			for _, s := range published(t, boards[r.IntN(len(boards))], node, 2) {
				s = s.DeepCopy()
				s.Spec.Pool.Generation = int64(r.IntN(3))
				s.UID, s.ResourceVersion = "id-of-"+s.UID, fmt.Sprint(r.IntN(9))
				for i := range s.Spec.Devices {
					d := &s.Spec.Devices[i]
					for _, name := range []resourceapi.QualifiedName{"uuid", "parentUUID"} {
						if a, ok := d.Attributes[name]; ok {
							d.Attributes[name] = text(*a.StringValue + node)
						}
					}
					switch r.IntN(12) {
					case 0:
						d.Attributes["uuid"] = text([]string{"MIG-" + node, ""}[r.IntN(2)])
					case 1:
						d.Attributes["fabricClusterUUID"], d.Attributes["cliqueID"] = text("fabric"), text(fmt.Sprint(r.IntN(3)))
					case 2:
						d.Attributes["uuid"] = resourceapi.DeviceAttribute{IntValue: new(int64)} // Another program's.
					case 3:
						claims = append(claims, claim(d.Name, 1, device(node, d.Name)))
					}
				}
				all = append(all, s)
			}
		}
		if r.IntN(2) == 0 {
			taint(all, "gpu-0000-1b-00-0", "lost")
		}
		whole := objects(all, claims...)
		slim := view.Objects{Driver: slicetest.Driver, Claims: claims}
		var shapes pool.Shapes
		seen := map[*pool.Shape]bool{}
		for i, s := range all {
			raw, err := s.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			one, err := shapes.Pack(raw)
			if err != nil {
				t.Fatal(err)
			}
			seen[one.Shape] = true
			slim.Slices = append(slim.Slices, one)
			if diff := cmp.Diff(whole.Slices[i], one, cmp.AllowUnexported(pool.Slice{}), cmp.Comparer(func(a, b *pool.Shape) bool {
				return len(a.Spec.Devices) == len(b.Spec.Devices) && cmp.Equal(a.Kinds, b.Kinds)
			})); diff != "" {
				t.Fatalf("seed %d: slice %s (-whole, +packed)\n%s", seed, s.Name, diff)
			}
		}
		shared += len(all) - len(seen)
		if diff := cmp.Diff(view.Nodes(whole), view.Nodes(slim)); diff != "" {
			t.Fatalf("seed %d: (-whole slices, +packed slices)\n%s", seed, diff)
		}
	}
	if !testing.Short() && shared == 0 {
		t.Error("no slices share a Shape")
	}
}
