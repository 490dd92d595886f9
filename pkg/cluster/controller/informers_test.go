// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
)

// follow runs an informer of slices until stop is called.
func follow(t *testing.T, e *env) (i cache.SharedIndexInformer, shapes *pool.Shapes, stop func()) {
	t.Helper()
	shapes = &pool.Shapes{}
	i = read.SliceInformer(e.Client(), slicetest.Driver, shapes)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { i.RunWithContext(ctx) })
	synctest.Wait()
	if !i.HasSynced() {
		t.Error("it has not synced")
	}
	return i, shapes, func() {
		cancel()
		wg.Wait()
	}
}

// bare is a node's only slice.
func bare(t *testing.T, node string) *resourceapi.ResourceSlice {
	t.Helper()
	s := slicesAt(t, "l40s-4", node, 1)[0]
	s.Spec.Pool.ResourceSliceCount = 1
	return s
}

func cached(i cache.SharedIndexInformer) []string {
	return slices.Sorted(slices.Values(i.GetIndexer().ListKeys()))
}

func TestSliceInformer_ManySlices_ListedInPagesAndWatched(t *testing.T) {
	for name, lists := range map[string]bool{"pages": true, "a stream": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnv(t)
				e.Lists = lists
				for n := range 2*read.PageSize + 50 {
					e.Put(bare(t, fmt.Sprintf("node-%03d", n)))
				}
				foreign := bare(t, "nic")
				foreign.Spec.Driver = "nic.example.com"
				e.Put(foreign)
				i, shapes, stop := follow(t, e)
				defer stop()
				if n := len(cached(i)); n != 2*read.PageSize+50 {
					t.Errorf("%d slices of %d", n, 2*read.PageSize+50)
				}
				reads := e.ReadRequests()
				if lists && !cmp.Equal(reads, []string{"watch resourceslices", "list resourceslices 200", "list resourceslices 200", "list resourceslices 200", "watch resourceslices"}) ||
					!lists && !cmp.Equal(reads, []string{"watch resourceslices"}) {
					t.Errorf("it was read by %v", reads)
				}
				if n := shapes.Len(); n > 2 { // The one that every bookmark has may not be gone yet.
					t.Errorf("nodes of one make have %d shapes", n)
				}

				e.Publish("hgx-h100", "new", 1)
				changed := bare(t, "node-000")
				changed.Spec.Pool.Generation = 7
				e.Put(changed)
				e.Remove("resourceslices", "node-001-00")
				synctest.Wait()
				if got := read.SlicesOf(i.GetIndexer(), "new"); len(got) != len(slicesAt(t, "hgx-h100", "new", 1)) || got[0].Shape == nil {
					t.Errorf("of the new node there are %d slices", len(got))
				}
				if got := read.SlicesOf(i.GetIndexer(), "node-000"); len(got) != 1 || got[0].Pool.Generation != 7 {
					t.Errorf("the change is not there: %+v", got)
				}
				if got := read.SlicesOf(i.GetIndexer(), "node-001"); len(got) != 0 {
					t.Errorf("what is gone is there: %+v", got)
				}
				one, other := read.SlicesOf(i.GetIndexer(), "node-002")[0], read.SlicesOf(i.GetIndexer(), "node-000")[0]
				if one.Shape != other.Shape {
					t.Error("what came by the list and what came by the watch have shapes of their own")
				}
			})
		})
	}
}

func TestSliceInformer_WatchExpired_ListedAgain(t *testing.T) {
	for _, lists := range []bool{true, false} {
		t.Run(fmt.Sprint("lists ", lists), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnv(t, machine(t, "l40s-4", "a", 0)...)
				e.Lists = lists
				e.Publish("t4-1", "b", 0)
				i, _, stop := follow(t, e)
				defer stop()
				for range 3 {
					e.Lock()
					for w := range e.Watches {
						w.Stop()
					}
					e.Unlock()
					e.Forget()
					e.Withdraw("a")
					e.Publish("l40s-4", "c", 0)
					pass(time.Minute)
					if diff := cmp.Diff(e.Names("resourceslices"), cached(i)); diff != "" {
						t.Errorf("(-server +cache)\n%s", diff)
					}
					e.Withdraw("c")
					e.Publish("l40s-4", "a", 0)
					pass(time.Minute)
					if diff := cmp.Diff(e.Names("resourceslices"), cached(i)); diff != "" {
						t.Errorf("(-server +cache)\n%s", diff)
					}
				}
			})
		})
	}
}

func TestSliceInformer_PagesExpire_ListedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		e.Lists = true
		for n := range 2*read.PageSize + 1 {
			e.Put(bare(t, fmt.Sprintf("node-%03d", n)))
		}
		lists := 0
		e.Fault = func(r request) (refused, lost error) {
			if r.Verb == "list" {
				if lists++; lists == 2 {
					e.Version++
					e.Forgotten = e.Version
				}
			}
			return nil, nil
		}
		shapes := &pool.Shapes{}
		i := read.SliceInformer(e.Client(), slicetest.Driver, shapes)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go i.RunWithContext(ctx)
		pass(time.Minute)
		if n := len(cached(i)); n != 2*read.PageSize+1 || lists != 5 {
			t.Errorf("%d slices by %d pages", n, lists)
		}
	})
}

func TestSliceInformer_BookmarkThenStopped_SyncsAndEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, bare(t, "a"))
		i, _, stop := follow(t, e) // It syncs at the bookmark that ends the stream of slices.
		if got := read.SlicesOf(i.GetIndexer(), "a"); len(got) != 1 || got[0].Shape == nil {
			t.Errorf("%+v", got)
		}
		if i.LastSyncResourceVersion() == "" {
			t.Error("the bookmark's version is lost")
		}
		e.Publish("t4-1", "b", 0) // Its events are pending while the informer stops.
		stop()
		synctest.Wait()
		e.Lock()
		defer e.Unlock()
		if len(e.Watches) > 0 {
			t.Errorf("%d watches are open", len(e.Watches))
		}
	})
}

func TestSliceInformer_SliceWithoutNode_Ignored(t *testing.T) {
	if got := newNodes(cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}), 0, nil).Pools(); len(got) != 0 {
		t.Errorf("pools of nothing: %v", got)
	}
	objects := machine(t, "l40s-4", "a", 0)
	at(t, objects, func(t *testing.T, e *env, c *Controller) {
		e.Put(&resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "network"},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: slicetest.Driver, AllNodes: new(true), Pool: resourceapi.ResourcePool{Name: "network", ResourceSliceCount: 1},
				Devices: []resourceapi.Device{{Name: "bare"}},
			},
		})
		pass(time.Minute)
		wantClasses(t, e, l40sClass)
		if cluster, ok := c.Cluster(); !ok || cluster.Counts.LargestGroup["NVIDIA L40S"] != 1 {
			t.Errorf("%+v", cluster)
		}
	})
}

// TestPodInformer_ManyPods_OnlyWantedOnesCached has pods that begin and end to be wanted.
func TestPodInformer_ManyPods_OnlyWantedOnesCached(t *testing.T) {
	for name, lists := range map[string]bool{"pages": true, "a stream": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnv(t)
				e.Lists = lists
				put := func(name, node string, phase corev1.PodPhase, wanted bool) {
					p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}, Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase}}
					if wanted {
						p.Spec.Hostname = "wanted"
					}
					e.Put(p)
				}
				for n := range 2*read.PageSize + 50 {
					put(fmt.Sprintf("p-%03d", n), "n1", corev1.PodRunning, n%100 == 0)
				}
				put("ended", "n1", corev1.PodFailed, true)
				put("waits", "", corev1.PodPending, true)
				i := read.PodInformer(e.Client(), "spec.nodeName!=,status.phase!=Failed", func(p *corev1.Pod) bool { return p.Spec.Hostname != "" },
					func(o any) (any, error) { return o, nil })
				ctx, cancel := context.WithCancel(context.Background())
				var wg sync.WaitGroup
				wg.Go(func() { i.RunWithContext(ctx) })
				defer wg.Wait()
				defer cancel()
				check := func(when string, want ...string) {
					t.Helper()
					synctest.Wait()
					if diff := cmp.Diff(want, cached(i)); diff != "" {
						t.Errorf("%s:\n%s", when, diff)
					}
				}
				check("first", "a/p-000", "a/p-100", "a/p-200", "a/p-300", "a/p-400")
				put("p-000", "n1", corev1.PodRunning, false)
				put("p-001", "n1", corev1.PodRunning, true)
				put("p-002", "n1", corev1.PodRunning, false)
				put("waits", "n2", corev1.PodPending, true)
				put("new", "n2", corev1.PodPending, false)
				e.Remove("pods", "a/p-200")
				e.Remove("pods", "a/p-201")
				check("after changes", "a/p-001", "a/p-100", "a/p-300", "a/p-400", "a/waits")
			})
		})
	}
}
