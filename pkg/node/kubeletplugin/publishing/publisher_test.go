// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"gpu-dra-driver/internal/notify"
	env "gpu-dra-driver/internal/testing/kubeletplugintest"
	"gpu-dra-driver/pkg/gpu/health"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
)

// testPublisher is a Publisher of one GPU, and of its monitor where the server has taints.
type testPublisher struct {
	*env.Env
	*Publisher
}

// slicesOf builds slices. It knows no specific causes.
type slicesOf func(features) ([]resourceslice.Slice, bool)

func (s slicesOf) build(f features) ([]resourceslice.Slice, bool) { return s(f) }

func (slicesOf) cause(_, state string) string { return generalCause(state) }

func (slicesOf) owner() (types.UID, bool) { return "", false }

// oneCause has the same cause for each device.
type oneCause struct {
	slicesOf
	text string
}

func (o oneCause) cause(string, string) string { return o.text }

// ownedBy has a Node. A deleted one keeps its UID, as in Cordons.
type ownedBy struct {
	builder
	uid     types.UID
	deleted bool
}

func (o *ownedBy) owner() (types.UID, bool) { return o.uid, o.deleted }

// newTestPublisher publishes to a server that lacks some features.
func newTestPublisher(t *testing.T, lacks features) testPublisher {
	e := env.New(t)
	e.Drop = dropping(lacks)
	build := slicesOf(func(f features) ([]resourceslice.Slice, bool) {
		kind := "gpu"
		devices := []resourceapi.Device{{Name: "gpu-0", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: &kind}}}}
		if f.taints && f.sharedDevices {
			yes := true
			devices = append(devices, resourceapi.Device{
				Name: "monitor-0", AllowMultipleAllocations: &yes,
				Taints: []resourceapi.DeviceTaint{{Key: "gpu.nvidia.com/monitor", Effect: resourceapi.DeviceTaintEffectNoSchedule}},
			})
		}
		return []resourceslice.Slice{{Devices: devices}}, true
	})
	return testPublisher{e, newPublisher(build, notify.NewTrigger(), Options{
		Client: e.Client, Driver: env.Driver, Node: env.Node, Metrics: e.Metrics,
		Instance: e.Enlist(),
	})}
}

// dropping takes the fields of features from a slice.
func dropping(lacks features) func(*resourceapi.ResourceSlice) {
	return func(s *resourceapi.ResourceSlice) {
		for i := range s.Spec.Devices {
			if lacks.taints {
				s.Spec.Devices[i].Taints = nil
			}
			if lacks.sharedDevices {
				s.Spec.Devices[i].AllowMultipleAllocations = nil
			}
		}
	}
}

// expect waits for the names of the published devices.
func (p testPublisher) expect(want ...string) {
	p.Helper()
	p.Eventually(fmt.Sprint("published: ", want), func() (bool, string) {
		var names []string
		for _, s := range p.Slices() {
			if s.Spec.NodeName == nil || *s.Spec.NodeName != "n1" || s.Spec.Pool.Name != "n1/gpu" {
				p.Errorf("slice %s is of node %v and pool %s", s.Name, s.Spec.NodeName, s.Spec.Pool.Name)
			}
			for _, d := range s.Spec.Devices {
				names = append(names, d.Name)
			}
		}
		return slices.Equal(names, want), fmt.Sprint(names)
	})
}

// watched waits until the controller watches the slices: the fake API server sends no earlier changes.
func (p testPublisher) watched() {
	p.Helper()
	p.Eventually("the controller watches", func() (bool, string) {
		return slices.ContainsFunc(p.Client.Actions(), func(a clienttesting.Action) bool {
			return a.Matches("watch", "resourceslices")
		}), "not yet"
	})
}

// edit removes a device from the published slice, as another controller would.
func (p testPublisher) edit() {
	p.Helper()
	p.watched()
	all := p.Slices()
	if len(all) != 1 {
		p.Fatal(all)
	}
	s := &all[0]
	s.Spec.Devices = s.Spec.Devices[:1]
	s.ResourceVersion = fmt.Sprint(10*p.Writes.Load() + 1)
	if err := p.Client.Tracker().Update(resourceapi.SchemeGroupVersion.WithResource("resourceslices"), s, ""); err != nil {
		p.Fatal(err)
	}
}

// TestPublisher_Monitors_InPoolOfTheirOwn switches monitor devices off and on.
func TestPublisher_Monitors_InPoolOfTheirOwn(t *testing.T) {
	t.Parallel()
	p := newTestPublisher(t, features{})
	var off atomic.Bool
	p.node = slicesOf(func(features) ([]resourceslice.Slice, bool) {
		var out []resourceslice.Slice
		for _, kind := range []string{"gpu", "mig", "monitor"} {
			if kind != "monitor" || !off.Load() {
				out = append(out, resourceslice.Slice{Devices: []resourceapi.Device{{
					Name: kind, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: &kind}},
				}}})
			}
		}
		return out, true
	})
	expect := func(want map[string]string) {
		t.Helper()
		p.Eventually(fmt.Sprint("pools: ", want), func() (bool, string) {
			got := map[string]string{}
			for _, s := range p.Slices() {
				got[s.Spec.Devices[0].Name] = fmt.Sprint(s.Spec.Pool.Name, " ", s.Spec.Pool.ResourceSliceCount)
			}
			return maps.Equal(got, want), fmt.Sprint(got)
		})
	}
	all := map[string]string{"gpu": "n1/gpu 2", "mig": "n1/gpu 2", "monitor": "n1/monitor 1"}
	p.Go(p.Run)
	expect(all)
	for _, h := range p.Health(time.Now()) {
		if want := strings.Fields(all[h.DeviceName])[0]; h.PoolName != want {
			t.Errorf("the health of %s is of pool %s, want %s", h.DeviceName, h.PoolName, want)
		}
	}
	off.Store(true)
	p.triggered.Fire()
	expect(map[string]string{"gpu": "n1/gpu 2", "mig": "n1/gpu 2"})
	off.Store(false)
	p.triggered.Fire()
	expect(all)
}

func TestPublisher_PoolUnchanged_IsNotWritten(t *testing.T) {
	t.Parallel()
	p := newTestPublisher(t, features{})
	p.Go(p.Run)
	p.expect("gpu-0", "monitor-0")
	for range 20 {
		p.triggered.Fire()
		p.Eventually("another build", func() (bool, string) { return len(p.triggered) == 0, "not yet" })
	}
	// Another writer's edit is undone after everything that was queued before.
	p.edit()
	p.expect("gpu-0", "monitor-0")
	if n := p.Writes.Load(); n != 2 {
		t.Errorf("%d writes, want one for the pool and one for the repair", n)
	}
	p.Metric(`gpu_dra_published_devices{type="gpu"} 1`)
}

// failInformer makes the API server fail the informer's lists, and counts them.
func (p testPublisher) failInformer() *atomic.Int64 {
	lists := new(atomic.Int64)
	p.Client.PrependReactor("list", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		fail := a.(clienttesting.ListActionImpl).ListOptions.ResourceVersion == "0"
		if fail {
			lists.Add(1)
		}
		return fail, nil, errors.New("overloaded")
	})
	return lists
}

func TestPublisher_FeaturesUnknown_LeavesFirstSlicesToController(t *testing.T) {
	t.Parallel()
	p := newTestPublisher(t, features{})
	p.NoDryRuns = apierrors.NewBadRequest("a webhook does not support dry runs")
	lists := p.failInformer()
	p.Go(p.Run)
	p.Eventually("the controller runs", func() (bool, string) { return lists.Load() > 0, "not yet" })
	p.expect()
}

// TestPublisher_NodeWithoutSlices_DoesNotWaitForTheInformer has an informer that never
// gets its list.
func TestPublisher_NodeWithoutSlices_DoesNotWaitForTheInformer(t *testing.T) {
	t.Parallel()
	p := newTestPublisher(t, features{})
	p.failInformer()
	p.Go(p.Run)
	p.expect("gpu-0", "monitor-0")
	for _, s := range p.Slices() {
		if len(s.OwnerReferences) != 1 || s.OwnerReferences[0].UID != "node-uid" {
			t.Errorf("slice %s has the owners %v, want the node", s.Name, s.OwnerReferences)
		}
	}
	p.Metric(`gpu_dra_published_devices{type="gpu"} 1`)
}

// TestPublisher_InformerLags_DuplicatesAreRemoved has an informer that reads from the cache of another API server, which
// lacks the slices that were just created. The controller creates them again, and removes one of each two when it sees
// both. TestAllocate_SlicesTwice_NothingUntilOneIsLeft shows what the scheduler does meanwhile.
func TestPublisher_InformerLags_DuplicatesAreRemoved(t *testing.T) {
	t.Parallel()
	p := newTestPublisher(t, features{})
	p.Client.PrependReactor("list", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return a.(clienttesting.ListActionImpl).ListOptions.ResourceVersion == "0", &resourceapi.ResourceSliceList{}, nil
	})
	late := watch.NewFake()
	p.Client.PrependWatchReactor("resourceslices", clienttesting.DefaultWatchReactor(late, nil))
	p.Go(p.Run)
	p.Eventually("two slices", func() (bool, string) { n := len(p.Slices()); return n == 2, fmt.Sprint(n) })
	for _, s := range p.Slices() {
		late.Add(&s)
	}
	p.expect("gpu-0", "monitor-0")
}

func TestPublisher_FirstCreateFailsHalfway_IsCompleted(t *testing.T) {
	t.Parallel()
	p := newTestPublisher(t, features{})
	one := p.node
	p.node = slicesOf(func(f features) ([]resourceslice.Slice, bool) {
		slices, ok := one.build(f)
		return append(slices, resourceslice.Slice{Devices: []resourceapi.Device{{Name: "gpu-1"}}}), ok
	})
	creates := 0
	p.Client.PrependReactor("create", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if len(a.(clienttesting.CreateActionImpl).CreateOptions.DryRun) == 0 {
			creates++
		}
		return creates == 2, nil, errors.New("overloaded")
	})
	p.Go(p.Run)
	p.expect("gpu-0", "monitor-0", "gpu-1")
	for _, s := range p.Slices() {
		if s.Spec.Pool.Generation != 2 || s.Spec.Pool.ResourceSliceCount != 2 {
			t.Errorf("slice %s is of the pool %+v", s.Name, s.Spec.Pool)
		}
	}
}

func TestPublisher_SlicesDeleted_ComeBack(t *testing.T) {
	t.Parallel()
	p := newTestPublisher(t, features{})
	p.Go(p.Run)
	p.expect("gpu-0", "monitor-0")
	p.watched()
	for _, s := range p.Slices() {
		if err := p.Client.ResourceV1().ResourceSlices().Delete(t.Context(), s.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	p.expect()
	p.expect("gpu-0", "monitor-0")
}

// TestPublisher_NodeDeleted_PublishesNothingUntilItIsBack deletes the slices with the Node, as the garbage collector does. The last Node
// replaces another one whose deletion was not seen.
func TestPublisher_NodeDeleted_PublishesNothingUntilItIsBack(t *testing.T) {
	t.Parallel()
	p := newTestPublisher(t, features{})
	node := &ownedBy{builder: p.node, deleted: true}
	p.node = node
	serve := func(uid types.UID) {
		t.Helper()
		object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: env.Node, UID: uid}}
		_ = p.Client.CoreV1().Nodes().Delete(t.Context(), env.Node, metav1.DeleteOptions{})
		if _, err := p.Client.CoreV1().Nodes().Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		node.uid, node.deleted = uid, false
		p.succeed(t.Context())
		p.expect("gpu-0", "monitor-0")
		for _, s := range p.Slices() {
			if got := s.OwnerReferences[0].UID; got != uid {
				t.Errorf("slice %s belongs to the Node with the UID %q, want %q", s.Name, got, uid)
			}
		}
	}
	collect := func() {
		t.Helper()
		for _, s := range p.Slices() {
			if err := p.Client.ResourceV1().ResourceSlices().Delete(t.Context(), s.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	serve("node-1")
	node.deleted = true
	p.succeed(t.Context())
	collect()
	if p.session != nil {
		t.Error("it publishes for a Node that was deleted")
	}
	p.succeed(t.Context())
	p.expect()
	serve("node-2")
	was := p.session
	node.uid = "node-3"
	p.succeed(t.Context())
	if p.session == was || p.session == nil {
		t.Error("it goes on for the Node of before")
	}
	p.retire()
}

func TestPublisher_ServerLacksAFeature_NeverSeesWhatNeedsIt(t *testing.T) {
	t.Parallel()
	for name, lacks := range map[string]features{"taints": {taints: true}, "shared devices": {sharedDevices: true}} {
		t.Run(name, func(t *testing.T) {
			p := newTestPublisher(t, lacks)
			p.Go(p.Run)
			p.expect("gpu-0")
			if n := p.Writes.Load(); n != 1 {
				t.Errorf("%d writes: the monitor was there for a moment", n)
			}
		})
	}
}

func TestPublisher_WithoutDryRuns_LearnsFromDroppedFields(t *testing.T) {
	t.Parallel()
	p := newTestPublisher(t, features{taints: true})
	p.NoDryRuns = apierrors.NewBadRequest("a webhook does not support dry runs")
	p.Go(p.Run)
	p.expect("gpu-0")
	p.Metric(`gpu_dra_publish_errors_total{reason="DroppedFields"} 1`)
	// An upgraded server gets everything again.
	p.Drop, p.NoDryRuns = nil, nil
	p.probe(t.Context())
	p.triggered.Fire()
	p.expect("gpu-0", "monitor-0")
}

func TestPublisher_NewerInstanceComesAndGoes_StopsAndPublishesAgain(t *testing.T) {
	t.Parallel()
	p := newTestPublisher(t, features{})
	p.Go(p.Run)
	p.expect("gpu-0", "monitor-0")
	p.SetNewest(false)
	p.Eventually("nothing is published by this instance", func() (bool, string) {
		text := p.MetricsText()
		return !strings.Contains(text, "gpu_dra_published_devices{"), text
	})
	p.edit()
	p.SetNewest(true)
	p.expect("gpu-0", "monitor-0")
	if n := p.Writes.Load(); n != 2 {
		t.Errorf("%d writes, want one for the pool and one for the repair", n)
	}
}

func TestPublisher_Errors_AreCountedByReason(t *testing.T) {
	t.Parallel()
	p := newTestPublisher(t, features{})
	p.failed(t.Context(), apierrors.NewInvalid(schema.GroupKind{Kind: "ResourceSlice"}, "x", nil), "update")
	p.failed(t.Context(), errors.New("more than one pool"), "pool validation failed")
	p.failed(t.Context(), errors.New("connection refused"), "list")
	p.Metric(`gpu_dra_publish_errors_total{reason="Invalid"} 2`)
	p.Metric(`gpu_dra_publish_errors_total{reason="Failed"} 1`)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	p.failed(ended, errors.New("context canceled"), "list")
	p.Metric(`gpu_dra_publish_errors_total{reason="Failed"} 1`)
}

func TestPublisher_NewestUnknown_GoesOnAsBefore(t *testing.T) {
	t.Parallel()
	p := newTestPublisher(t, features{})
	p.EndInstance() // The lock file cannot be read.
	p.succeed(t.Context())
	if p.session != nil {
		t.Error("it began to publish")
	}
}

func TestHealth_TaintedDevices_AreUnhealthy(t *testing.T) {
	p := newTestPublisher(t, features{})
	device := func(name string, taints ...resourceapi.DeviceTaint) resourceapi.Device {
		return resourceapi.Device{Name: name, Taints: taints}
	}
	p.desired = []resourceslice.Slice{{Devices: []resourceapi.Device{
		device("well"), device("lost", resourceapi.DeviceTaint{Key: wire.UnhealthyTaint, Value: "lost"}),
		device("monitor", resourceapi.DeviceTaint{Key: wire.MonitorTaint}),
		device("withheld", resourceapi.DeviceTaint{Key: wire.UnhealthyTaint, Value: string(resourceslices.Withheld)}),
		device("blind", resourceapi.DeviceTaint{Key: resourceslices.UnmonitoredTaint}),
		device("blind-lost", resourceapi.DeviceTaint{Key: wire.UnhealthyTaint, Value: "lost"}, resourceapi.DeviceTaint{Key: resourceslices.UnmonitoredTaint}),
		device("silent", resourceapi.DeviceTaint{Key: wire.UnhealthyTaint, Value: string(resourceslices.Unknown)}),
	}}}
	now := time.Now()
	got := map[string]string{}
	for _, h := range p.Health(now) {
		got[h.DeviceName] = strings.TrimSpace(string(h.Health) + " " + h.Message)
		if h.PoolName != "n1/gpu" || h.LastUpdated != now {
			t.Errorf("%+v", h)
		}
	}
	want := map[string]string{"blind": "Unknown the GPU's health cannot be read", "blind-lost": "Unhealthy the device is tainted as lost: the GPU has fallen off the bus", "well": "Healthy", "lost": "Unhealthy the device is tainted as lost: the GPU has fallen off the bus", "monitor": "Healthy", "withheld": "Healthy", "silent": "Unknown the device is tainted as unknown"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestHealth_EachStateAndXID_MessageIsShortAndStable has a device in every state, with the longest cause. The API server refuses
// a status with a longer message, and a changed one is an update of the pod.
func TestHealth_EachStateAndXID_MessageIsShortAndStable(t *testing.T) {
	const limit = 1024
	longest := ""
	for code := range uint64(2000) {
		if text := health.XIDOf(code).String(); len(text) > len(longest) {
			longest = text
		}
	}
	p := newTestPublisher(t, features{})
	p.node = oneCause{text: longest}
	var devices []resourceapi.Device
	for _, s := range health.States {
		devices = append(devices, resourceapi.Device{Name: s.Name, Taints: []resourceapi.DeviceTaint{{Key: wire.UnhealthyTaint, Value: s.Name}}})
	}
	p.desired = []resourceslice.Slice{{Devices: devices}}
	now := time.Now()
	first, second := p.Health(now), p.Health(now.Add(time.Hour))
	for i, h := range first {
		if h.Message != second[i].Message || !strings.HasSuffix(h.Message, longest) || len(h.Message) > limit {
			t.Errorf("%d bytes: %q, an hour later %q", len(h.Message), h.Message, second[i].Message)
		}
	}
	if len(first) != len(health.States) || longest == "" {
		t.Errorf("%d devices, and an XID says %q", len(first), longest)
	}
}

func TestQueue_OnlyMonitorsWritten_NotSynced(t *testing.T) {
	p := newTestPublisher(t, features{})
	p.published, _ = p.node.build(features{})
	q := newQueue(p.Publisher)
	defer q.ShutDown()
	const synced = `gpu_dra_published_devices{type="gpu"} 1`
	if q.Forget("n1/monitor"); strings.Contains(p.MetricsText(), synced) {
		t.Error("the pool of monitor devices counts as the node's")
	}
	q.Forget("n1/gpu")
	p.Metric(synced)
}
