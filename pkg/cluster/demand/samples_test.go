// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/wire"
	"gpu-dra-driver/pkg/wire/demand"
)

// shapes are kept, so that nodes which are alike have the same ones.
var shapes = &pool.Shapes{}

func autoPool(t testing.TB, board, node string, elsewhere bool) pool.Pool {
	t.Helper()
	var all []*pool.Slice
	for _, s := range autoSlices(t, board, node, elsewhere) {
		one := shapes.Trim(s)
		all = append(all, &one)
	}
	return pool.Of(all)
}

// TestSampleNodes_NodesComeAndGo_OneForEachLayout names nodes by their boards: h for H100, b for B200, and t for boards
// without MIG. A capital letter means that the node publishes the sample.
func TestSampleNodes_NodesComeAndGo_OneForEachLayout(t *testing.T) {
	pools := map[string]pool.Pool{}
	at := func(name string) pool.Pool {
		if _, known := pools[name]; !known {
			board := map[byte]string{'h': "hgx-h100", 'b': "hgx-b200", 't': "t4-1"}[name[0]|0x20]
			pools[name] = autoPool(t, board, string(name[0]|0x20)+name[1:], name[0] > 'Z')
		}
		return pools[name]
	}
	type step struct {
		after time.Duration
		nodes string
		want  string
	}
	for name, steps := range map[string][]step{
		"one sample each":                       {{0, "h1 h2 h3 b1 b2 t1", "b1 h1"}, {time.Second, "H1 h2 h3 B1 b2 t1", "b1 h1"}, {time.Hour, "H1 h2 h3 B1 b2 t1", "b1 h1"}},
		"the sample of another node is there":   {{0, "h1 h2 H3", "h3"}},
		"an earlier sample node sorts later":    {{0, "h2", "h2"}, {time.Second, "H2", "h2"}, {time.Second, "h1 H2", "h2"}, {time.Hour, "h1 H2", "h2"}},
		"a node restarts":                       {{0, "H1 h2", "h1"}, {time.Minute, "h2", "h1"}, {9 * time.Second, "h2", "h1"}, {0, "H1 h2", "h1"}, {time.Minute, "h2", "h1"}},
		"a node goes":                           {{0, "H1 h2", "h1"}, {time.Minute, "h2", "h1"}, {10 * time.Second, "h2", "h2"}, {time.Second, "H2", "h2"}},
		"the last node goes and comes":          {{0, "H1", "h1"}, {time.Minute, "t1", "h1"}, {grace - 1, "t1", "h1"}, {0, "h1", "h1"}},
		"the last node goes":                    {{0, "H1", "h1"}, {time.Minute, "t1", "h1"}, {grace, "t1", ""}},
		"a node does not publish its sample":    {{0, "h1 h2", "h1"}, {9 * time.Second, "h1 h2", "h1"}, {time.Second, "h1 h2", "h2"}, {time.Second, "h1 H2", "h2"}, {time.Hour, "h1 H2", "h2"}},
		"no node does, and changes become rare": {{0, "h1 h2", "h1"}, {10 * time.Second, "h1 h2", "h2"}, {10 * time.Second, "h1 h2", "h2"}, {10 * time.Second, "h1 h2", "h1"}},
		"no node":                               {{0, "t1", ""}},
	} {
		s, now, last := sampleNodes{grace: grace}, time.Now(), []string(nil)
		for i, step := range steps {
			now = now.Add(step.after)
			var all []pool.Pool
			for _, node := range strings.Fields(step.nodes) {
				all = append(all, at(node))
			}
			got, again := s.choose(last, all, now)
			if !slices.Equal(got, strings.Fields(step.want)) || got == nil || again < 0 {
				t.Fatalf("%s, step %d: %q, again after %v, want %q", name, i, got, again, step.want)
			}
			if restarted, _ := (&sampleNodes{grace: grace}).choose(got, all, now); !slices.Equal(got, restarted) {
				t.Errorf("%s: %q after a restart of the controller, %q before", name, restarted, got)
			}
			last = got
		}
	}
}

// TestSampleNodes_SlicesReadAfterTheConfigMap_ChoiceStays has a controller that starts, and reads the slices of one node after
// the other. One sample node does not come back.
func TestSampleNodes_SlicesReadAfterTheConfigMap_ChoiceStays(t *testing.T) {
	s, now, last := sampleNodes{grace: grace}, time.Now(), []string{"b9", "gone", "h2"}
	h1, h2, b1 := autoPool(t, "hgx-h100", "h1", true), autoPool(t, "hgx-h100", "h2", false), autoPool(t, "hgx-b200", "b1", true)
	for i, step := range []struct {
		after time.Duration
		pools []pool.Pool
		want  []string
	}{
		{0, nil, []string{"b9", "gone", "h2"}},
		{time.Second, []pool.Pool{h1, b1}, []string{"b9", "gone", "h2"}},
		{time.Second, []pool.Pool{h1, h2, b1}, []string{"b9", "gone", "h2"}},
		{8 * time.Second, []pool.Pool{h1, h2, b1}, []string{"b1", "h2"}},
	} {
		now = now.Add(step.after)
		got, again := s.choose(last, step.pools, now)
		if !slices.Equal(got, step.want) || again <= 0 {
			t.Fatalf("step %d: %q, again after %v, want %q", i, got, again, step.want)
		}
		last = got
	}
}

// TestSampleNodes_NoNodePublishes_ChangesBecomeRare counts the changes of an hour: each writes the slices of two nodes.
func TestSampleNodes_NoNodePublishes_ChangesBecomeRare(t *testing.T) {
	s, now, last, changes := sampleNodes{grace: grace}, time.Now(), []string{}, 0
	var all []pool.Pool
	for i := range 20 {
		all = append(all, autoPool(t, "hgx-h100", fmt.Sprintf("n%02d", i), true))
	}
	for range 3600 {
		names, _ := s.choose(last, all, now)
		if len(names) != 1 {
			t.Fatalf("%q", names)
		}
		if !slices.Equal(last, names) {
			changes++
		}
		last, now = names, now.Add(time.Second)
	}
	if changes < 8 || changes > 15 {
		t.Errorf("%d changes in an hour", changes)
	}
}

// TestSampleNodes_ThousandsOfNodes_ListStaysSmall has as many layouts as nodes, which only broken or hostile nodes have.
func TestSampleNodes_ThousandsOfNodes_ListStaysSmall(t *testing.T) {
	var all []pool.Pool
	good, plain := autoPool(t, "hgx-h100", "good", true), autoSlices(t, "t4-1", "bad", true)[0]
	for i := range 1000 {
		p := good
		p.Node = fmt.Sprintf("n%04d", i)
		if i > 2 {
			bad := plain.DeepCopy()
			bad.Spec.NodeName, bad.Spec.Pool.Name = &p.Node, wire.PoolName(p.Node)
			bad.Spec.Devices[0].Attributes[wire.MIGLayoutAttribute] = resourceapi.DeviceAttribute{StringValue: new(fmt.Sprint("layout-", i))}
			one := shapes.Trim(bad)
			p = pool.Of([]*pool.Slice{&one})
		}
		all = append(all, p)
	}
	s := sampleNodes{grace: grace}
	names, _ := s.choose(nil, all, time.Now())
	if len(names) != demand.MaxSamples || !slices.Contains(names, "n0000") {
		t.Errorf("%d nodes: %q", len(names), names[:3])
	}
	if _, err := demand.Decode(demand.Encode(demand.State{Since: map[string]time.Time{}, Written: time.Now(), Samples: names})); err != nil {
		t.Error(err)
	}
}

// TestSampleNodes_OtherLayoutsEachTime_EarlierOnesForgotten has a hostile node beside a good one.
func TestSampleNodes_OtherLayoutsEachTime_EarlierOnesForgotten(t *testing.T) {
	s, now, plain, good := sampleNodes{grace: grace}, time.Now(), autoSlices(t, "t4-1", "bad", true)[0], autoPool(t, "hgx-h100", "good", false)
	var last []string
	for i := range 2 * maxChosen {
		bad := plain.DeepCopy()
		bad.Spec.Devices[0].Attributes[wire.MIGLayoutAttribute] = resourceapi.DeviceAttribute{StringValue: new(fmt.Sprint("layout-", i))}
		one := shapes.Trim(bad)
		last, _ = s.choose(last, []pool.Pool{good, pool.Of([]*pool.Slice{&one})}, now)
		now = now.Add(100 * time.Millisecond)
	}
	if len(s.chosen) > maxChosen+1 || !slices.Equal(last, []string{"bad", "good"}) {
		t.Errorf("%d layouts are remembered, the sample nodes are %q", len(s.chosen), last)
	}
}

// samples returns the sample nodes of the ConfigMap.
func (e *env) samples() []string {
	e.T.Helper()
	state, err := demand.Decode(get[corev1.ConfigMap](e, "configmaps", "ns/published").Data)
	if err != nil {
		e.T.Error(err)
	}
	return state.Samples
}

// TestController_SampleNodeGoes_ClassesStay has three nodes with the setting Auto. Their slices follow the ConfigMap.
func TestController_SampleNodeGoes_ClassesStay(t *testing.T) {
	var objects []runtime.Object
	for _, node := range []string{"n1", "n2", "n3"} {
		objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
	}
	for _, s := range slices.Concat(autoSlices(t, "hgx-h100", "n1", true), autoSlices(t, "hgx-h100", "n2", true), autoSlices(t, "t4-1", "n3", true)) {
		objects = append(objects, s)
	}
	atAsked(t, objects, func(e *env, restart func()) {
		if got := e.samples(); !slices.Equal(got, []string{"n1"}) {
			t.Fatalf("sample nodes %q", got)
		}
		publish := func(node string, elsewhere bool) {
			for _, s := range autoSlices(t, "hgx-h100", node, elsewhere) {
				e.Put(s)
			}
		}
		wantClass := func(when string) {
			t.Helper()
			if !slices.Contains(e.Names("deviceclasses"), smallest) {
				t.Errorf("%s: no class %s: %q", when, smallest, e.Names("deviceclasses"))
			}
			e.Put(claimOf("c", smallest))
			pass(soon)
			e.wantAsked(when, "1g.10gb")
		}
		publish("n1", false)
		pass(2 * time.Second)
		wantClass("the sample is there")
		e.Withdraw("n1")
		pass(5 * time.Second)
		if got := e.samples(); !slices.Equal(got, []string{"n1"}) {
			t.Errorf("the sample node restarts: sample nodes %q", got)
		}
		pass(10 * time.Second)
		if got := e.samples(); !slices.Equal(got, []string{"n2"}) {
			t.Errorf("the sample node is gone: sample nodes %q", got)
		}
		e.Remove("resourceclaims", "ns/c")
		pass(3*grace + 2*time.Hour)
		wantClass("no node publishes the sample for hours")
		publish("n2", false)
		pass(2 * time.Second)
		restart()
		if got := e.samples(); !slices.Equal(got, []string{"n2"}) {
			t.Errorf("after a restart: sample nodes %q", got)
		}
		wantClass("after a restart")
	})
}
