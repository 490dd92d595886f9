// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
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
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"gpu-dra-driver/pkg/resourceslices"
)

// shelf is an API server's slices and who publishes them.
type shelf struct {
	*bench
	*publisher
	writes  atomic.Int64
	lacks   features
	dryRuns bool
	newest  atomic.Bool
}

// newShelf publishes one GPU, and its monitor where the server has taints.
func newShelf(t *testing.T) *shelf {
	s := &shelf{bench: newBench(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u"}}), dryRuns: true}
	s.newest.Store(true)
	store := func(o *resourceapi.ResourceSlice) {
		for i := range o.Spec.Devices {
			if s.lacks.taints {
				o.Spec.Devices[i].Taints = nil
			}
			if s.lacks.sharedDevices {
				o.Spec.Devices[i].AllowMultipleAllocations = nil
			}
		}
		o.ResourceVersion = fmt.Sprint(1000 + s.writes.Add(1))
	}
	s.client.PrependReactor("create", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		create := a.(clienttesting.CreateActionImpl)
		o := create.Object.(*resourceapi.ResourceSlice)
		if len(create.CreateOptions.DryRun) == 0 {
			store(o)
			o.Name = o.GenerateName + o.ResourceVersion
			return false, nil, nil
		}
		if !s.dryRuns {
			return true, nil, apierrors.NewBadRequest("a webhook does not support dry runs")
		}
		o = o.DeepCopy()
		store(o)
		s.writes.Add(-1)
		return true, o, nil
	})
	s.client.PrependReactor("update", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		store(a.(clienttesting.UpdateAction).GetObject().(*resourceapi.ResourceSlice))
		return false, nil, nil
	})
	s.publisher = newPublisher(publisherOptions{
		client: s.client, versions: s.client.ResourceV1(), driver: "gpu.nvidia.com", node: "n1", pool: "n1/gpu", metrics: s.bench.metrics,
		newest: func(context.Context) (bool, error) { return s.newest.Load(), nil },
		build: func(f features) ([]resourceslice.Slice, bool) {
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
		},
	})
	return s
}

// begin runs the publisher until the test ends.
func (s *shelf) begin() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		s.run(ctx)
		close(done)
	}()
	s.Cleanup(func() {
		cancel()
		<-done
	})
}

// stored lists the published devices.
func (s *shelf) stored() (names []string) {
	list, err := s.client.ResourceV1().ResourceSlices().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	for _, o := range list.Items {
		if o.Spec.NodeName == nil || *o.Spec.NodeName != "n1" || o.Spec.Pool.Name != "n1/gpu" {
			s.Errorf("slice %s is of node %v and pool %s", o.Name, o.Spec.NodeName, o.Spec.Pool.Name)
		}
		for _, d := range o.Spec.Devices {
			names = append(names, d.Name)
		}
	}
	return names
}

func (s *shelf) shows(want string) {
	s.Helper()
	s.until("published: "+want, func() bool { return fmt.Sprint(s.stored()) == want })
}

func TestAnUnchangedPoolIsNotWritten(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	s.begin()
	s.shows("[gpu-0 monitor-0]")
	for range 20 {
		s.poke()
		s.update()
	}
	// What a foreign hand does is undone after everything that was queued before.
	s.spoil()
	s.shows("[gpu-0 monitor-0]")
	if n := s.writes.Load(); n != 2 {
		t.Errorf("%d writes, want one for the pool and one for the repair", n)
	}
	s.counted(`gpu_dra_published_devices{type="gpu"} 1`)
}

// spoil removes a device from the published slice, as a foreign hand would.
func (s *shelf) spoil() {
	list, err := s.client.ResourceV1().ResourceSlices().List(s.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		s.Fatal(list, err)
	}
	o := &list.Items[0]
	o.Spec.Devices = o.Spec.Devices[:1]
	o.ResourceVersion = "5000"
	if err := s.client.Tracker().Update(resourceapi.SchemeGroupVersion.WithResource("resourceslices"), o, ""); err != nil {
		s.Fatal(err)
	}
}

func TestSlicesThatTheKubeletWipedComeBack(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	s.begin()
	s.shows("[gpu-0 monitor-0]")
	slices := s.client.ResourceV1().ResourceSlices()
	list, err := slices.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range list.Items {
		if err := slices.Delete(t.Context(), o.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.shows("[]")
	s.shows("[gpu-0 monitor-0]")
}

func TestAServerThatLacksAFeatureNeverSeesWhatNeedsIt(t *testing.T) {
	t.Parallel()
	for name, lacks := range map[string]features{"taints": {taints: true}, "shared devices": {sharedDevices: true}} {
		t.Run(name, func(t *testing.T) {
			s := newShelf(t)
			s.lacks = lacks
			s.begin()
			s.shows("[gpu-0]")
			if n := s.writes.Load(); n != 1 {
				t.Errorf("%d writes: the monitor was there for a moment", n)
			}
		})
	}
}

// TestCountersThatAServerWantsInTheDevicesSliceAreLeftOut plays 1.34 with the feature gate on.
func TestCountersThatAServerWantsInTheDevicesSliceAreLeftOut(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.client.PrependReactor("create", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		o := a.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice).DeepCopy()
		if len(o.Spec.Devices[0].ConsumesCounters) > 0 {
			return true, nil, apierrors.NewInvalid(schema.GroupKind{Kind: "ResourceSlice"}, "probe", nil)
		}
		return true, o, nil
	})
	f, err := probeFeatures(t.Context(), b.client.ResourceV1(), "gpu.nvidia.com", "n1", "n1/gpu")
	if want := (features{taints: true, sharedDevices: true}); err != nil || f != want {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestWithoutDryRunsWhatIsDroppedTells(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	s.lacks, s.dryRuns = features{taints: true}, false
	s.begin()
	s.shows("[gpu-0]")
	s.counted(`gpu_dra_publish_errors_total{reason="DroppedFields"} 1`)
	// An upgraded server gets everything again.
	s.lacks, s.dryRuns = features{}, true
	s.learn(t.Context())
	s.poke()
	s.shows("[gpu-0 monitor-0]")
}

func TestPublishingEndsWithTheNewerInstanceAndComesBackWithItsEnd(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	s.begin()
	s.shows("[gpu-0 monitor-0]")
	s.newest.Store(false)
	s.until("nothing is published by this instance", func() bool {
		s.publisher.mu.Lock()
		defer s.publisher.mu.Unlock()
		return s.session == nil
	})
	s.spoil()
	s.newest.Store(true)
	s.shows("[gpu-0 monitor-0]")
}

func TestErrorsOfPublishingAreCountedByReason(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	s.publisher.failed(t.Context(), apierrors.NewInvalid(schema.GroupKind{Kind: "ResourceSlice"}, "x", nil), "update")
	s.publisher.failed(t.Context(), errors.New("more than one pool"), "pool validation failed")
	s.publisher.failed(t.Context(), errors.New("connection refused"), "list")
	s.counted(`gpu_dra_publish_errors_total{reason="Invalid"} 2`)
	s.counted(`gpu_dra_publish_errors_total{reason="Failed"} 1`)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	s.publisher.failed(ended, errors.New("context canceled"), "list")
	s.counted(`gpu_dra_publish_errors_total{reason="Failed"} 1`)
}

func TestAnInstanceThatCannotTellWhetherItIsNewestGoesOn(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	s.publisherOptions.newest = func(context.Context) (bool, error) { return false, errors.New("lock file unreadable") }
	s.succeed(t.Context())
	if s.session != nil {
		t.Error("it began to publish")
	}
}

func TestTaintedDevicesAreUnhealthy(t *testing.T) {
	p := newPublisher(publisherOptions{pool: "n/gpu"})
	device := func(name string, taints ...resourceapi.DeviceTaint) resourceapi.Device {
		return resourceapi.Device{Name: name, Taints: taints}
	}
	p.desired = []resourceslice.Slice{{Devices: []resourceapi.Device{
		device("well"), device("lost", resourceapi.DeviceTaint{Key: resourceslices.UnhealthyTaint, Value: "lost"}),
		device("monitor", resourceapi.DeviceTaint{Key: resourceslices.MonitorTaint}),
		device("withheld", resourceapi.DeviceTaint{Key: resourceslices.UnhealthyTaint, Value: string(resourceslices.Withheld)}),
	}}}
	now := time.Now()
	got := map[string]string{}
	for _, h := range p.health(now) {
		got[h.DeviceName] = strings.TrimSpace(string(h.Health) + " " + h.Message)
		if h.PoolName != "n/gpu" || h.LastUpdated != now {
			t.Errorf("%+v", h)
		}
	}
	want := map[string]string{"well": "Healthy", "lost": "Unhealthy the driver says: lost", "monitor": "Healthy", "withheld": "Healthy"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
