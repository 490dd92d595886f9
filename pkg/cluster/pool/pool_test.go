// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pool_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire"
)

func published(t testing.TB, profile, node string) []*resourceapi.ResourceSlice {
	t.Helper()
	out, err := slicetest.Node(profile, node, 0)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func poolOf(shapes *pool.Shapes, slices []*resourceapi.ResourceSlice) pool.Pool {
	var all []*pool.Slice
	for _, s := range slices {
		one := shapes.Trim(s.DeepCopy())
		all = append(all, &one)
	}
	return pool.Of(all)
}

func TestShapes_NodesOfOneModel_Shared(t *testing.T) {
	shapes := &pool.Shapes{}
	a := poolOf(shapes, published(t, "hgx-h100", "a"))
	known := shapes.Len()
	b := poolOf(shapes, published(t, "hgx-h100", "b"))
	if shapes.Len() != known {
		t.Errorf("a second node of the same make brought %d shapes", shapes.Len()-known)
	}
	keyA, okA := a.Shape()
	keyB, okB := b.Shape()
	if keyA != keyB || !okA || !okB {
		t.Error("their pools have different keys")
	}
	if c := poolOf(shapes, published(t, "a30", "c")); shapes.Len() == known || len(c.Slices) == 0 {
		t.Error("another model has the same shapes")
	}
	uuid := pool.Text(a.Slices[len(a.Slices)-1].Shape.Spec.Devices[0], "uuid")
	if parent := pool.Text(a.Slices[len(a.Slices)-1].Shape.Spec.Devices[0], "parentUUID"); uuid+parent == "" {
		t.Error("the first node's identities are gone from the shape")
	}
	runtime.KeepAlive(a)
	runtime.KeepAlive(b)
}

func TestShapes_NoReference_Forgotten(t *testing.T) {
	shapes := &pool.Shapes{}
	p := poolOf(shapes, published(t, "a30", "a"))
	if shapes.Len() == 0 || !p.Whole {
		t.Fatal("nothing is known")
	}
	p = pool.Pool{}
	for range 100 {
		runtime.GC()
		if shapes.Len() == 0 {
			return
		}
	}
	t.Errorf("%d shapes are kept", shapes.Len())
	runtime.KeepAlive(p)
}

func TestShapes_UnhealthyDevice_SameShape(t *testing.T) {
	for key, state := range map[string]pool.State{
		wire.UnhealthyTaint: pool.Unhealthy, wire.CordonTaint: pool.Cordoned, wire.ReservedTaint: pool.Cordoned,
	} {
		sameShape(t, key, state)
	}
}

func sameShape(t *testing.T, key string, state pool.State) {
	t.Helper()
	shapes := &pool.Shapes{}
	slices := published(t, "l40s-4", "a")
	first := poolOf(shapes, slices)
	known := shapes.Len()
	for _, s := range slices {
		for i := range s.Spec.Devices {
			s.Spec.Devices[i].Taints = append(s.Spec.Devices[i].Taints, resourceapi.DeviceTaint{Key: key, Value: "lost"})
		}
	}
	p := poolOf(shapes, slices)
	if shapes.Len() != known {
		t.Error("a taint makes a shape of its own")
	}
	counts := p.Count(nil)
	if n := counts.Devices[pool.KindState{Kind: l40s, State: state}]; n != 4 {
		t.Errorf("%d of 4 GPUs are %s: %v", n, state, counts.Devices)
	}
	runtime.KeepAlive(first)
}

var (
	l40s = pool.Kind{Type: gpu.KindGPU, Product: "NVIDIA L40S", GPUs: 1}
	h100 = pool.Kind{Type: gpu.KindGPU, Product: "NVIDIA H100 80GB HBM3", GPUs: 1}
)

func mig(profile string) pool.Kind {
	return pool.Kind{Type: gpu.KindMIG, Product: h100.Product, Profile: profile, GPUs: 1}
}

func TestCount_ClaimsHoldDevices_CountsFollow(t *testing.T) {
	shapes := &pool.Shapes{}
	a, b := poolOf(shapes, published(t, "hgx-h100", "a")), poolOf(shapes, published(t, "hgx-h100", "b"))
	var names []string
	for d, k := range a.Devices() {
		if k.Type == gpu.KindGPU {
			names = append(names, d.Name)
		}
	}
	for name, c := range map[string]struct {
		held             []string
		free, group      int
		smallest, slices int64
		broken           float64
	}{
		"nothing":         {nil, 16, 8, 2 * 8 * 7, 128, 0},
		"a GPU":           {names[:1], 15, 8, 15 * 7, 120, 0},
		"a partition":     {[]string{names[0] + "-mig-1g-10gb-0"}, 15, 8, 15*7 + 6, 127, 1 - 124.0/127},
		"a group of four": {[]string{"nvlink-4-" + strings.TrimPrefix(names[0], "gpu-")}, 12, 8, 12 * 7, 96, 0},
	} {
		t.Run(name, func(t *testing.T) {
			counts := pool.Count([]pool.Pool{a, b}, map[string][]string{"a": c.held})
			if n := counts.Devices[pool.KindState{Kind: h100, State: pool.Free}]; n != c.free {
				t.Errorf("%d GPUs are free, want %d", n, c.free)
			}
			if n := counts.LargestGroup[h100.Product]; n != c.group {
				t.Errorf("the largest group has %d, want %d", n, c.group)
			}
			if n := counts.Devices[pool.KindState{Kind: mig("1g.10gb"), State: pool.Free}]; int64(n) != c.smallest {
				t.Errorf("%d placements of 1g.10gb are free, want %d", n, c.smallest)
			}
			if n := counts.FreeSlices[h100.Product]; n != c.slices {
				t.Errorf("%d memory slices are free, want %d", n, c.slices)
			}
			if f := counts.Fragmentation(h100.Product); f-c.broken > 1e-9 || c.broken-f > 1e-9 {
				t.Errorf("fragmentation %v, want %v", f, c.broken)
			}
		})
	}
}

// TestCount_CountersOfAnySize_LeaveTheShape has a counter that no 64-bit integer with its unit holds.
func TestCount_CountersOfAnySize_LeaveTheShape(t *testing.T) {
	all := published(t, "hgx-h100", "a")
	for _, s := range all {
		for _, set := range s.Spec.SharedCounters {
			set.Counters["memory"] = resourceapi.Counter{Value: resource.MustParse("1Pi")}
		}
		for _, d := range s.Spec.Devices {
			for _, use := range d.ConsumesCounters {
				use.Counters["memory"] = resourceapi.Counter{Value: resource.MustParse("1Gi")}
			}
		}
	}
	p := poolOf(&pool.Shapes{}, all)
	var held []string
	for d, k := range p.Devices() {
		if k.Type == gpu.KindGPU {
			held = append(held, d.Name)
		}
	}
	p.Count(held)
	for i, s := range p.Published() {
		for _, set := range s.Spec.SharedCounters {
			if got := set.Counters["memory"].Value; got.Cmp(resource.MustParse("1Pi")) != 0 {
				t.Fatalf("slice %d: a count left %s of 1Pi", i, got.String())
			}
		}
	}
}

// TestCount_EqualBoardsWithOtherLinks_EachHasItsGroups has nodes without published groups. One has its GPUs connected in
// pairs, and one all of them.
func TestCount_EqualBoardsWithOtherLinks_EachHasItsGroups(t *testing.T) {
	scanned, err := slicetest.Scan("a100-pcie-4", "pairs", 0)
	if err != nil {
		t.Fatal(err)
	}
	settings, _, err := sharing.Parse([]byte("publish: [{groups: None}]"))
	if err != nil {
		t.Fatal(err)
	}
	all := slicetest.Slices(scanned, "all", settings)
	for _, s := range all {
		for _, d := range s.Spec.Devices {
			if _, ok := d.Attributes["nvlinkGroup"]; ok {
				d.Attributes["nvlinkGroup"] = resourceapi.DeviceAttribute{StringValue: new("nvlink-4-gpu-0000-1b-00-0")}
			}
		}
	}
	shapes := &pool.Shapes{}
	pairs, joined := poolOf(shapes, slicetest.Slices(scanned, "pairs", settings)), poolOf(shapes, all)
	for size, pools := range map[int][]pool.Pool{2: {pairs}, 4: {pairs, joined}} {
		for model, n := range pool.Count(pools, nil).LargestGroup {
			if n != size {
				t.Errorf("%s: the largest group of %d nodes has %d GPUs, want %d", model, len(pools), n, size)
			}
		}
	}
}

func TestPoolOf_SlicesMissing_NotWhole(t *testing.T) {
	shapes := &pool.Shapes{}
	slices := published(t, "hgx-h100", "a")
	if !poolOf(shapes, slices).Whole {
		t.Error("all slices are there, and the pool is not whole")
	}
	if poolOf(shapes, slices[1:]).Whole {
		t.Error("a slice is missing, and the pool is whole")
	}
	slices[0].Spec.Pool.Generation = 2
	if p := poolOf(shapes, slices); p.Whole || len(p.Slices) != 2 {
		t.Errorf("there are one slice of generation 2 and one of monitor devices, the pool has %d", len(p.Slices))
	}
	if p := pool.Of(nil); p.Whole {
		t.Error("a pool of nothing is whole")
	}
}

func TestDevices_TwoPools_KindsTellModelAndProfile(t *testing.T) {
	shapes, kinds := &pool.Shapes{}, map[pool.Kind]int{}
	for node, profile := range map[string]string{"a": "hgx-h200", "b": "l40s-4"} {
		for _, kind := range poolOf(shapes, published(t, profile, node)).Devices() {
			kinds[kind]++
		}
	}
	if diff := cmp.Diff(4, kinds[l40s]); diff != "" {
		t.Error(diff)
	}
	if kinds[pool.Kind{Type: gpu.KindMIG, Product: "NVIDIA H200", Profile: "1g.18gb", GPUs: 1}] == 0 {
		t.Errorf("no 1g.18gb in %v", kinds)
	}
}

func TestKindOf_ProductAsVersion_HasNone(t *testing.T) {
	d := published(t, "hgx-h200", "node")[0].Spec.Devices[0]
	d.Attributes["productName"] = resourceapi.DeviceAttribute{VersionValue: new("1.0.0")}
	if k := pool.KindOf(d); k.Product != "" {
		t.Errorf("a version is the model of %+v", k)
	}
}

// TestFold_KindsOfFaultyNodes_OneKind has a kind that only faulty nodes publish, and one beyond the limit.
func TestFold_KindsOfFaultyNodes_OneKind(t *testing.T) {
	kind := func(profile string) pool.Kind {
		return pool.Kind{Type: gpu.KindMIG, Product: "p", Profile: profile, GPUs: 1}
	}
	c := pool.DeviceCounts{Devices: map[pool.KindState]int{}, FreePlacements: map[pool.Kind]int{}}
	for _, profile := range []string{"good", "rare", "faulty"} {
		c.Devices[pool.KindState{kind(profile), pool.Free}], c.FreePlacements[kind(profile)] = 1, 2
	}
	c.Fold(map[pool.Kind]int{kind("good"): 2, kind("rare"): 1, kind("faulty"): 0}, 1)
	other := pool.Kind{Type: "other", Product: "other"}
	if d := cmp.Diff(map[pool.KindState]int{{kind("good"), pool.Free}: 1, {other, pool.Free}: 2}, c.Devices); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(map[pool.Kind]int{kind("good"): 2, other: 4}, c.FreePlacements); d != "" {
		t.Error(d)
	}
}
