// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/sharingtest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/show/view"
)

func board(t testing.TB, profile, name string) []*resourceapi.ResourceSlice {
	t.Helper()
	out, err := slicetest.Node(profile, name, 2)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func heldClaim(name string, results ...resourceapi.DeviceRequestAllocationResult) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name}, Status: resourceapi.ResourceClaimStatus{
		Allocation:  &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}},
		ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod-" + name}},
	}}
}

func held(pool, name string) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{Driver: slicetest.Driver, Pool: pool, Device: name}
}

func newTestCluster() *Cluster { return NewCluster("test", slicetest.Driver, Slices, Claims) }

// listed ends the first reading.
func listed(t *testing.T, c *Cluster) {
	t.Helper()
	for _, resource := range []string{Slices, Claims} {
		c.Done(resource)
	}
	if err := c.refresh(); err != nil {
		t.Fatal(err)
	}
}

// reader is the page's model of a feed.
type reader struct {
	version uint64
	nodes   map[string]node
	claims  map[string]view.Claim
	status  status
}

func (r *reader) read(t *testing.T, f *feed) {
	t.Helper()
	b := f.since(r.version)
	if r.version = b.version; r.nodes == nil || b.reset {
		r.nodes, r.claims = map[string]node{}, map[string]view.Claim{}
	}
	for _, text := range b.lines {
		var m message
		if err := json.Unmarshal(text, &m); err != nil {
			t.Fatal(err)
		}
		switch {
		case m.Status != nil:
			r.status = *m.Status
		case m.Node != nil:
			r.nodes[m.Node.Name] = *m.Node
		case m.Claim != nil:
			r.claims[m.Claim.String()] = *m.Claim
		case m.Gone.Claim != nil:
			delete(r.claims, m.Gone.Claim.String())
		default:
			delete(r.nodes, m.Gone.Node)
		}
	}
}

// world is all that a randomized test has put into a cluster.
type world struct {
	slices  map[string]*resourceapi.ResourceSlice
	claims  map[string]*resourceapi.ResourceClaim
	rules   map[string]*resourceapi.DeviceTaintRule
	classes map[string]*resourceapi.DeviceClass
}

func (w world) objects() view.Objects {
	o, shapes := view.Objects{Driver: slicetest.Driver}, &pool.Shapes{}
	for _, name := range slices.Sorted(maps.Keys(w.slices)) {
		if s := w.slices[name]; s.Spec.Driver == slicetest.Driver {
			o.Slices = append(o.Slices, shapes.Convert(s.DeepCopy()))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.claims)) {
		o.Claims = append(o.Claims, *w.claims[name])
	}
	for _, name := range slices.Sorted(maps.Keys(w.rules)) {
		o.Rules = append(o.Rules, *w.rules[name])
	}
	return o
}

func clone[T any](t *testing.T, in any) T {
	t.Helper()
	text, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out T
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestCluster_RandomChanges_EqualViewOfAllObjects applies changes one by one, also of incomplete pools, of pools under
// another node's name, of names in Unicode and of other drivers. The page must show what `kubectl gpu ls` and `kubectl gpu claims` would.
func TestCluster_RandomChanges_EqualViewOfAllObjects(t *testing.T) {
	for seed := range seedtest.Each(t, 10) {
		rng := rand.New(rand.NewPCG(seed, 0))
		c, w := newTestCluster(), world{map[string]*resourceapi.ResourceSlice{}, map[string]*resourceapi.ResourceClaim{},
			map[string]*resourceapi.DeviceTaintRule{}, map[string]*resourceapi.DeviceClass{}}
		var all []*resourceapi.ResourceSlice
		for i, profile := range []string{"hgx-h100", "l40s-4", "a30", "hgx-h100"} {
			all = append(all, board(t, profile, fmt.Sprint("n", i))...)
		}
		scanned, err := slicetest.Scan("hgx-h100", "plain", 0)
		if err != nil {
			t.Fatal(err)
		}
		settings, _, err := sharing.Parse([]byte("publish: [{profiles: Auto}]"))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, slicetest.Slices(scanned, "plain", settings, func(o *resourceslices.Options) { // Another node has the sample.
			o.Sharing = sharing.Node{Name: "plain", Settings: settings, MPS: true, Demand: sharingtest.NoDemand{Elsewhere: true}}
		})...)
		strange := all[0].DeepCopy()
		strange.Name, strange.Spec.NodeName = "strange", ptr.To("nœud-☃")
		foreign := all[0].DeepCopy()
		foreign.Name, foreign.Spec.Driver = "foreign", "gpu.example.com"
		misnamed := all[1].DeepCopy()
		misnamed.Name, misnamed.Spec.Pool.Name = "misnamed", "n3/other"
		all = append(all, strange, foreign, misnamed)
		listed(t, c)
		var page reader
		for step := range 120 {
			removed := rng.IntN(4) == 0
			switch rng.IntN(8) {
			case 0, 1, 2, 3:
				s := all[rng.IntN(len(all))]
				if _, there := w.slices[s.Name]; removed && !there {
					continue
				}
				if w.slices[s.Name] = s; removed {
					delete(w.slices, s.Name)
				}
				c.Put(s.DeepCopy(), removed)
			case 4, 5, 6:
				claim := heldClaim(fmt.Sprint("c", rng.IntN(6)))
				if rng.IntN(3) == 0 {
					claim.Status = resourceapi.ResourceClaimStatus{}
					claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: slicetest.Driver}}}
				}
				for range rng.IntN(3) * count(claim.Status.Allocation != nil) {
					s := all[rng.IntN(len(all))]
					device := "☃"
					if len(s.Spec.Devices) > 0 {
						device = s.Spec.Devices[rng.IntN(len(s.Spec.Devices))].Name
					}
					results := &claim.Status.Allocation.Devices.Results
					*results = append(*results, held(s.Spec.Pool.Name, device))
				}
				if w.claims[claim.Name] = claim; removed {
					delete(w.claims, claim.Name)
				}
				c.Put(claim.DeepCopy(), removed)
			case 7:
				rule := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("r", rng.IntN(3))}}
				rule.Spec.DeviceSelector = &resourceapi.DeviceTaintSelector{Pool: ptr.To(all[rng.IntN(len(all))].Spec.Pool.Name)}
				rule.Spec.Taint = resourceapi.DeviceTaint{Key: "key-" + rule.Name, Effect: resourceapi.DeviceTaintEffectNoSchedule}
				if w.rules[rule.Name] = rule; removed {
					delete(w.rules, rule.Name)
				}
				c.Put(rule.DeepCopy(), removed)
				class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: slicetest.Driver}}
				if w.classes["c"] = class; removed {
					delete(w.classes, "c")
				}
				c.Put(class.DeepCopy(), removed)
			}
			if rng.IntN(3) == 0 {
				continue // Several changes come together.
			}
			if err := c.refresh(); err != nil {
				t.Fatal(err)
			}
			page.read(t, c.feed)
			want := map[string]node{}
			for _, n := range view.Nodes(w.objects()) {
				want[n.Name] = clone[node](t, pageNode(n))
			}
			if diff := cmp.Diff(want, page.nodes); diff != "" {
				t.Fatalf("seed %d, step %d: nodes (-kubectl gpu ls, +page):\n%s", seed, step, diff)
			}
			var classes []resourceapi.DeviceClass
			for _, class := range w.classes {
				classes = append(classes, *class)
			}
			wantClaims := map[string]view.Claim{}
			for _, claim := range view.Claims(w.objects(), classes) {
				wantClaims[claim.String()] = clone[view.Claim](t, claim)
			}
			if diff := cmp.Diff(wantClaims, page.claims); diff != "" {
				t.Fatalf("seed %d, step %d: claims (-kubectl gpu claims, +page):\n%s", seed, step, diff)
			}
		}
	}
}

func TestCluster_FirstReading_ShowsCompleteNodesOnceClaimsAreThere(t *testing.T) {
	c := newTestCluster()
	var page reader
	look := func() []string {
		if err := c.refresh(); err != nil {
			t.Fatal(err)
		}
		page.read(t, c.feed)
		return slices.Sorted(maps.Keys(page.nodes))
	}
	for _, s := range board(t, "hgx-h100", "n1") {
		c.Put(s, false)
	}
	c.Put(board(t, "hgx-h100", "n2")[0], false)
	c.Put(heldClaim("a", held("n3/gpu", "gpu-0000-1b-00-0")), false)
	if got := look(); len(got) > 0 {
		t.Errorf("before the claims are read, the page shows nodes %v", got)
	}
	c.Done(Claims)
	if got := look(); !slices.Equal(got, []string{"n1"}) || !slices.Equal(page.status.Reading, []string{Slices}) {
		t.Errorf("while slices are read, the page shows nodes %v and reads %v", got, page.status.Reading)
	}
	if got := page.claims["team-a/a"].Unpublished; len(got) > 0 {
		t.Errorf("while slices are read, the devices %v are called unpublished", got)
	}
	c.Done(Slices)
	if got := look(); !slices.Equal(got, []string{"n1", "n2", "n3"}) || len(page.status.Reading) > 0 {
		t.Errorf("in the end the page shows nodes %v and reads %v", got, page.status.Reading)
	}
	if got := page.claims["team-a/a"].Unpublished; len(got) != 1 {
		t.Errorf("in the end the devices %v are called unpublished, want the one of n3", got)
	}
	c.Listed(Slices, sets.New[types.NamespacedName]())
	c.Listed(Claims, sets.New[types.NamespacedName]())
	if got := look(); len(got) > 0 || len(page.claims) > 0 {
		t.Errorf("after empty lists the page shows nodes %v and claims %v", got, page.claims)
	}
}

func TestFeed_SlowReader_GetsNewestLinesOnly(t *testing.T) {
	f := newFeed()
	put := func(name string, free bool) {
		m := message{Node: &node{Node: view.Node{Name: name, Incomplete: free}}}
		if name == "" {
			m = message{Gone: &gone{Node: "a"}}
			name = "a"
		}
		if err := f.put(map[string]message{name: m}); err != nil {
			t.Fatal(err)
		}
	}
	put("", false) // Of a node that was never there.
	if got := f.since(0); len(got.lines) != 0 {
		t.Errorf("a removal of the unknown makes %s", got.lines)
	}
	put("a", false)
	put("b", false)
	start := f.since(0)
	put("b", false)
	if got := f.since(start.version); len(got.lines) != 0 {
		t.Errorf("an equal line is sent again: %s", got.lines)
	}
	select {
	case <-start.more:
		t.Error("an equal line wakes readers")
	default:
	}
	put("b", true)
	put("", false)
	<-start.more
	if got := f.since(start.version); len(got.lines) != 2 || string(got.lines[0]) != `{"gone":{"node":"a"}}` || got.reset {
		t.Errorf("the reader gets %s", got.lines)
	}
	if got := f.since(0); len(got.lines) != 1 {
		t.Errorf("a new reader gets %s", got.lines)
	}
	for i := range maxGone + 1 {
		name := fmt.Sprint("n", i)
		for _, m := range []message{{Node: &node{}}, {Gone: &gone{Node: name}}} {
			if err := f.put(map[string]message{name: m}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := f.since(start.version); !got.reset || len(got.lines) > maxGone {
		t.Errorf("after many removals a slow reader gets %d lines, reset %t", len(got.lines), got.reset)
	}
}

// TestCluster_NodeClosed_GPUsAreNotFree has a cordon that ends, and a cordoned node that is deleted.
func TestCluster_NodeClosed_GPUsAreNotFree(t *testing.T) {
	cordoned := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{Unschedulable: true}}
	for name, end := range map[string]func(*Cluster){
		"uncordoned": func(c *Cluster) { c.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, false) },
		"deleted":    func(c *Cluster) { c.Put(cordoned.DeepCopy(), true) },
		"gone":       func(c *Cluster) { c.Listed(Nodes, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			c, page := newTestCluster(), &reader{}
			for _, s := range board(t, "l40s-4", "n1") {
				c.Put(s, false)
			}
			listed(t, c)
			c.Put(cordoned.DeepCopy(), false)
			for _, want := range []string{"node cordoned", "ok"} {
				if err := c.refresh(); err != nil {
					t.Fatal(err)
				}
				page.read(t, c.feed)
				if g := page.nodes["n1"].GPUs[0]; g.Condition != want || g.Free != (want == "ok") {
					t.Errorf("the GPU is %s, free: %t; want %s", g.Condition, g.Free, want)
				}
				end(c)
			}
		})
	}
}
