// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/internal/notify/notifytest"
	env "gpu-dra-driver/internal/testing/kubeletplugintest"
	"gpu-dra-driver/internal/testing/layouttest"
	"gpu-dra-driver/internal/testing/sharingtest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire"
)

func annotated(gpus ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: env.Node, UID: "node-1", Annotations: map[string]string{"other": "yes"}}}
	for _, name := range gpus {
		n.Annotations[wire.CordonAnnotation(env.Driver, name)] = "NoSchedule"
	}
	return n
}

// TestCordons_NodeChanges_FollowsItAndKeepsThemWithoutIt has an API server that refuses at first, as one with old rights, and
// a Node that is deleted.
func TestCordons_NodeChanges_FollowsItAndKeepsThemWithoutIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, refused := fake.NewClientset(annotated("gpu-0000-1b-00-0")), true
		client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			return refused, nil, errors.New("nodes is forbidden")
		})
		var reports []error
		changed := notify.NewTrigger()
		c := NewCordons(client, env.Driver, env.Node, notifytest.Reporter(func(err error) { reports = append(reports, err) }), changed)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			c.Run(ctx)
			close(ended)
		}()
		want := func(when string, known bool, cordons, reported int, fires bool) {
			t.Helper()
			time.Sleep(time.Minute)
			synctest.Wait()
			fired := false
			select {
			case <-changed:
				fired = true
			default:
			}
			if got, ok := c.Cordoned(); ok != known || len(got) != cordons || fired != fires || len(reports) != reported {
				t.Errorf("%s: cordons %v, known %v, fired %v, reports %v", when, got, ok, fired, reports)
			}
		}
		update := func(n *corev1.Node) {
			if _, err := client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		owner := func(uid types.UID, deleted bool) {
			t.Helper()
			if got, gone := c.Owner(); got != uid || gone != deleted {
				t.Errorf("the Node has the UID %q, deleted %v, want %q and %v", got, gone, uid, deleted)
			}
		}
		want("the API server refuses", false, 0, 1, false)
		owner("", false)
		refused = false
		want("at the first answer", true, 1, 1, true)
		owner("node-1", false)
		n := annotated("gpu-0000-1b-00-0")
		n.Annotations["other"] = "changed"
		update(n)
		want("another annotation changes", true, 1, 1, false)
		update(annotated("gpu-0000-1b-00-0", "gpu-0000-43-00-0"))
		want("another GPU is cordoned", true, 2, 1, true)
		update(annotated("gpu-0000-1b-00-0", "gpu-0000-43-00-0", "none"))
		want("an annotation names no GPU", true, 2, 2, false)
		if err := client.CoreV1().Nodes().Delete(t.Context(), env.Node, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		want("the Node is deleted", true, 2, 2, false)
		owner("node-1", true)
		back := annotated()
		back.UID = "node-2"
		if _, err := client.CoreV1().Nodes().Create(t.Context(), back, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		want("the Node is back", true, 0, 2, true)
		owner("node-2", false)
		cancel()
		<-ended
	})
}

// TestCordons_Reservation_EndsWithoutItsWriter fires when a reservation is set, and when its time is up.
func TestCordons_Reservation_EndsWithoutItsWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := annotated()
		node.Annotations[wire.ReservationAnnotation(env.Driver, "gpu-0000-1b-00-0")] = time.Now().Add(2 * time.Minute).Format(time.RFC3339)
		client, changed := fake.NewClientset(node), notify.NewTrigger()
		c := NewCordons(client, env.Driver, env.Node, notifytest.Reporter(func(err error) { t.Error(err) }), changed)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			c.Run(ctx)
			close(ended)
		}()
		began := time.Now()
		<-changed
		if got := c.Reserved(); !got.Equal(sets.New("0000:1b:00.0")) {
			t.Errorf("reserved: %v", got)
		}
		<-changed
		if got := c.Reserved(); len(got) > 0 || time.Since(began) != 2*time.Minute {
			t.Errorf("reserved after %s: %v", time.Since(began), got)
		}
		cancel()
		<-ended
	})
}

// unknownCordons are those before the first read.
type unknownCordons struct{}

func (unknownCordons) Cordoned() (wire.Cordons, bool) { return nil, false }

func (unknownCordons) Reserved() sets.Set[string] { return nil }

func (unknownCordons) Owner() (types.UID, bool) { return "", false }

func TestNode_CordonsUnknown_PublishesNothing(t *testing.T) {
	n := newNode(t, NodeOptions{Cordoned: unknownCordons{}})
	if err := n.Found(t.Context(), linked(18, 18), nil); err != nil {
		t.Fatal(err)
	}
	if built, ok := n.build(allFeatures); ok {
		t.Errorf("published %v", built)
	}
}

// TestNode_CordonedGPU_PartitionsPublishedLaterAreTainted publishes one placement of each profile, then all of them.
func TestNode_CordonedGPU_PartitionsPublishedLaterAreTainted(t *testing.T) {
	placements := sharing.OnePlacement
	o := sharingAs(sharingtest.Source{PlacementsOf: func(gpu.GPU, string) sharing.Placements { return placements }})
	o.Cordoned = cordons{"0000:10:00.0": resourceapi.DeviceTaintEffectNoSchedule}
	n := newNode(t, o)
	s := linked(0)
	s.GPUs[0].MIG = layouttest.H100()
	if err := n.Found(t.Context(), s, nil); err != nil {
		t.Fatal(err)
	}
	count := func() (devices int) {
		built, ok := n.build(allFeatures)
		if !ok {
			t.Fatal("nothing was built")
		}
		for _, s := range built {
			for _, d := range s.Devices {
				if *d.Attributes["type"].StringValue == string(gpu.KindMonitor) {
					continue
				}
				devices++
				if len(d.Taints) != 1 || d.Taints[0].Key != wire.CordonTaint {
					t.Errorf("%s has the taints %v", d.Name, d.Taints)
				}
			}
		}
		return devices
	}
	before := count()
	placements = sharing.AllPlacements
	if after := count(); after <= before || before == 0 {
		t.Errorf("%d devices, then %d", before, after)
	}
}
