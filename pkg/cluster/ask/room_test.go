// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package ask_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/pool"
)

const ofType = `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == %q`

func allClasses() ask.Asker {
	var out []*resourceapi.DeviceClass
	for name, kind := range map[string]string{"gpu": "gpu", "mig": "mig", "group": "nvlink-group"} {
		out = append(out, &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{
				CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf(ofType, kind)}}}}})
	}
	return ask.Of(out, "")
}

// request asks for devices of a class, or of a class and profile as "mig 1g.10gb".
func request(name, class, profile string, count int64) resourceapi.DeviceRequest {
	exact := &resourceapi.ExactDeviceRequest{DeviceClassName: class, Count: count,
		AllocationMode: resourceapi.DeviceAllocationModeExactCount}
	if profile != "" {
		exact.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: fmt.Sprintf(`device.attributes["gpu.nvidia.com"].profile == %q`, profile)}}}
	}
	return resourceapi.DeviceRequest{Name: name, Exactly: exact}
}

func claimOf(name string, requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}},
	}
}

// unbounded is the same claim for the allocator alone: alternatives have no bound.
func unbounded(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	c = c.DeepCopy()
	for i, q := range c.Spec.Devices.Requests {
		e := q.Exactly
		c.Spec.Devices.Requests[i] = resourceapi.DeviceRequest{Name: q.Name, FirstAvailable: []resourceapi.DeviceSubRequest{{
			Name: "only", DeviceClassName: e.DeviceClassName, Selectors: e.Selectors, AllocationMode: e.AllocationMode,
			Count: e.Count, Capacity: e.Capacity}}}
	}
	return c
}

func emptyNode(published []*resourceapi.ResourceSlice) *ask.Node {
	var all []*pool.Slice
	for _, s := range published {
		all = append(all, pool.Unshared(s))
	}
	return ask.Empty(pool.Of(all))
}

func TestTooFew_Together_SaysForHowManyThereIsRoom(t *testing.T) {
	asker := allClasses()
	board, err := slicetest.Scan("hgx-h100", "n1", 8)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		requests []resourceapi.DeviceRequest
		want     string
	}{
		"GPUs and partitions that fit": {
			requests: []resourceapi.DeviceRequest{request("a", "gpu", "", 5), request("b", "mig", "1g.10gb", 21)},
		},
		"one partition more": {
			requests: []resourceapi.DeviceRequest{request("a", "gpu", "", 5), request("b", "mig", "1g.10gb", 22)},
			want:     "has room for 21 of the 22 devices of request b beside the others",
		},
		"partitions before GPUs": {
			requests: []resourceapi.DeviceRequest{request("b", "mig", "1g.10gb", 22), request("a", "gpu", "", 5)},
			want:     "has room for 4 of the 5 devices of request a beside the others",
		},
		"large partitions leave parts that none of them fits": {
			requests: []resourceapi.DeviceRequest{request("a", "gpu", "", 5), request("b", "mig", "2g.20gb", 10)},
			want:     "has room for 9 of the 10 devices of request b beside the others",
		},
		"two profiles, of which one fills the rest of the other": {
			requests: []resourceapi.DeviceRequest{request("a", "mig", "3g.40gb", 16), request("b", "mig", "1g.10gb", 1)},
			want:     "has room for 0 of the 1 devices of request b beside the others",
		},
		"too many alone": {
			requests: []resourceapi.DeviceRequest{request("a", "mig", "1g.10gb", 57)},
			want:     "has room for 56 of the 57 devices of request a",
		},
	} {
		t.Run(name, func(t *testing.T) {
			for kind, settings := range map[string]string{"shareable": "",
				"exclusive": "publish: [{shareable: None}]"} {
				parsed, _, err := sharing.Parse([]byte(settings))
				if err != nil {
					t.Fatal(err)
				}
				node := emptyNode(slicetest.Slices(board, "n1", parsed))
				short, err := asker.TooFew(t.Context(), node, nil, asker.Requests(claimOf("c", test.requests...).Spec.Devices))
				got := ""
				if short != nil {
					got = short.String()
				}
				if got != test.want || err != nil {
					t.Errorf("%s: got %q, %v; want %q", kind, got, err, test.want)
				}
			}
		})
	}
}

// TestTooFew_RandomClaims_AgreesWithAllocator asks about claims on nodes that others use. A claim for which the
// allocator finds room is never too large. One for which it finds none, after it has tried everything, nearly always is.
func TestTooFew_RandomClaims_AgreesWithAllocator(t *testing.T) {
	asker := allClasses()
	var nodes []*ask.Node
	cases := 0
	for c := range slicetest.Cases() {
		if cases++; cases%61 == 0 {
			nodes = append(nodes, emptyNode(c.Slices()))
		}
	}
	fitted, refused, found := 0, 0, 0
	for seed := range seedtest.Each(t, 400) {
		r := rand.New(rand.NewPCG(seed, 0))
		node := nodes[r.IntN(len(nodes))]
		var profiles []string
		shared := false
		for _, s := range node.Slices {
			for _, d := range s.Spec.Devices {
				shared = shared || d.AllowMultipleAllocations != nil
				if p := d.Attributes["profile"].StringValue; p != nil && !slices.Contains(profiles, *p) {
					profiles = append(profiles, *p)
				}
			}
		}
		random := func(name string, most int) *resourceapi.ResourceClaim {
			var requests []resourceapi.DeviceRequest
			for i := range 1 + r.IntN(2) {
				q := request(fmt.Sprintf("r%d", i), "gpu", "", int64(1+r.IntN(most)))
				if r.IntN(8) == 0 {
					q.Exactly.DeviceClassName = "group"
				}
				if len(profiles) > 0 && r.IntN(2) == 0 {
					q = request(q.Name, "mig", profiles[r.IntN(len(profiles))], int64(1+r.IntN(2*most)))
				}
				if r.IntN(5) == 0 {
					q.Exactly.Capacity = &resourceapi.CapacityRequirements{
						Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("10Gi")}}
				}
				requests = append(requests, q)
			}
			return claimOf(name, requests...)
		}
		for i := range r.IntN(4) {
			held := random(fmt.Sprintf("held%d", i), 2)
			if placed := asker.Place(t.Context(), node, nil, []*resourceapi.ResourceClaim{held}); placed.Outcome == ask.Yes {
				held.Status.Allocation = &placed.Allocations[0]
				node = node.With(held)
			}
		}
		claim := random("claim", 3)
		short, err := asker.TooFew(t.Context(), node, nil, asker.Requests(claim.Spec.Devices))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := ask.WithProcessorTime(t.Context(), 50*time.Millisecond)
		outcome, text := asker.Allocate(ctx, node, nil, []*resourceapi.ResourceClaim{unbounded(claim)})
		cancel()
		switch {
		case outcome == ask.Fatal:
			t.Fatalf("seed %d: %s", seed, text)
		case outcome == ask.Yes && short != nil:
			t.Errorf("seed %d: the allocator has room for %v, but the node %s", seed, claim.Spec.Devices, short)
		case outcome == ask.Yes:
			fitted++
		case outcome == ask.No && !shared:
			refused++
			if short != nil {
				found++
			}
		}
	}
	t.Logf("%d claims fit; of %d others on nodes without shares, %d have too few devices", fitted, refused, found)
	if found*10 < refused*9 || fitted == 0 {
		t.Error("the bound finds too little")
	}
}

// TestTooFew_SetsOfOtherSizes_AreNotAlike has counter sets whose numbers are equal one after the other.
func TestTooFew_SetsOfOtherSizes_AreNotAlike(t *testing.T) {
	counters := func(all ...int64) map[string]resourceapi.Counter {
		out := map[string]resourceapi.Counter{}
		for i, n := range all {
			out[fmt.Sprint("c", i)] = resourceapi.Counter{Value: *resource.NewQuantity(n, resource.DecimalSI)}
		}
		return out
	}
	device := func(name, set string, uses ...int64) resourceapi.Device {
		kind := "gpu"
		return resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: &kind}},
			ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: set, Counters: counters(uses...)}}}
	}
	slice := func(name string, spec resourceapi.ResourceSliceSpec) *resourceapi.ResourceSlice {
		spec.Driver, spec.NodeName = "gpu.nvidia.com", new("n1")
		spec.Pool = resourceapi.ResourcePool{Name: "n1", Generation: 1, ResourceSliceCount: 2}
		return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	}
	node := emptyNode([]*resourceapi.ResourceSlice{
		slice("counters", resourceapi.ResourceSliceSpec{SharedCounters: []resourceapi.CounterSet{
			{Name: "a", Counters: counters(2)}, {Name: "b", Counters: counters(2, 1)}}}),
		slice("devices", resourceapi.ResourceSliceSpec{Devices: []resourceapi.Device{
			device("a0", "a", 1), device("a1", "a", 1), device("b0", "b", 1, 1)}}),
	})
	asker := allClasses()
	claim := claimOf("c", request("r", "gpu", "", 3))
	for range 20 { // The order of the sets is random.
		if short, err := asker.TooFew(t.Context(), node, nil, asker.Requests(claim.Spec.Devices)); short != nil || err != nil {
			t.Fatalf("%v, %v, but three devices are free", short, err)
		}
	}
	if outcome, text := asker.Allocate(t.Context(), node, nil, []*resourceapi.ResourceClaim{unbounded(claim)}); outcome != ask.Yes {
		t.Errorf("the allocator: %d, %s", outcome, text)
	}
}
