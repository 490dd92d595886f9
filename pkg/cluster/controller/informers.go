// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	draclient "k8s.io/dynamic-resource-allocation/client"

	"gpu-dra-driver/pkg/cluster/pool"
)

// byNode is the index of slices by their publishing node.
const byNode = "node"

// pageSize limits the memory of a list: a slice of 64 devices takes about 100 kB until it is trimmed.
const pageSize = 200

// eachPage calls visit for each page of a list until visit returns true.
func eachPage[L metav1.ListInterface](
	ctx context.Context, o metav1.ListOptions, list func(context.Context, metav1.ListOptions) (L, error), visit func(L) (enough bool),
) error {
	o.Limit = pageSize
	for {
		page, err := list(ctx, o)
		if err != nil || visit(page) {
			return err
		}
		if o.Continue = page.GetContinue(); o.Continue == "" {
			return nil
		}
	}
}

// newSlices returns an informer for the driver's slices. It trims them as they arrive, page by page.
func newSlices(client *draclient.Client, driver string, shapes *pool.Shapes) cache.SharedIndexInformer {
	ours := fields.OneTermEqualSelector("spec.driver", driver).String()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			// Lists from the API server's cache have no pages.
			o.FieldSelector, o.ResourceVersion, o.ResourceVersionMatch, o.Continue = ours, "", "", ""
			out := &pool.SliceList{}
			err := eachPage(ctx, o, client.ResourceSlices().List, func(page *resourceapi.ResourceSliceList) (enough bool) {
				for i := range page.Items {
					out.Items = append(out.Items, shapes.Trim(&page.Items[i]))
					page.Items[i] = resourceapi.ResourceSlice{}
				}
				out.ResourceVersion = page.ResourceVersion
				return false
			})
			if err != nil {
				return nil, err
			}
			return out, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = ours
			w, err := client.ResourceSlices().Watch(ctx, o)
			if err != nil {
				return nil, err
			}
			return trim(w, shapes), nil
		},
	}
	return cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lw, client), &pool.Slice{}, 0, cache.Indexers{
		byNode: func(object any) ([]string, error) {
			s, ok := object.(*pool.Slice)
			if !ok {
				return nil, fmt.Errorf("%T in the cache of slices", object)
			}
			return []string{s.Node}, nil
		},
	})
}

// trimming is a watch with trimmed slices. Unlike a watch.Filter it ends when it is stopped with a pending event, which
// a stopped watch always has.
type trimming struct {
	watch.Interface
	out     chan watch.Event
	stopped chan struct{}
	stop    func()
}

func trim(w watch.Interface, shapes *pool.Shapes) watch.Interface {
	t := &trimming{Interface: w, out: make(chan watch.Event), stopped: make(chan struct{})}
	t.stop = sync.OnceFunc(func() { close(t.stopped) })
	go func() {
		defer close(t.out)
		for e := range w.ResultChan() {
			select {
			case t.out <- trimmed(e, shapes):
			case <-t.stopped:
				return
			}
		}
	}()
	return t
}

func (t *trimming) Stop() {
	t.Interface.Stop()
	t.stop()
}

func (t *trimming) ResultChan() <-chan watch.Event { return t.out }

// trimmed trims the slice of an event. It keeps a bookmark, whose annotations show the reflector that a list is
// complete.
func trimmed(e watch.Event, shapes *pool.Shapes) watch.Event {
	slice, ok := e.Object.(*resourceapi.ResourceSlice)
	if !ok {
		return e
	}
	out := shapes.Trim(slice)
	if e.Type == watch.Bookmark {
		out.Annotations = slice.Annotations
	}
	e.Object = &out
	return e
}

func slicesOf(indexer cache.Indexer, node string) []*pool.Slice {
	objects, _ := indexer.ByIndex(byNode, node) // The index exists.
	return list[*pool.Slice](objects)
}

var nodeResource = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}

// informer watches objects in the API server's version of the API, trimmed to the fields that the controller reads.
func informer[L runtime.Object](
	client any, list func(context.Context, metav1.ListOptions) (L, error), watcher func(context.Context, metav1.ListOptions) (watch.Interface, error),
	of runtime.Object, trim cache.TransformFunc,
) cache.SharedIndexInformer {
	lw := &cache.ListWatch{
		ListWithContextFunc:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return list(ctx, o) },
		WatchFuncWithContext: watcher,
	}
	out := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lw, client), of, 0, cache.Indexers{})
	_ = out.SetTransform(trim) // It fails only after the start.
	return out
}

func trimClass(object any) (any, error) {
	if class, ok := object.(*resourceapi.DeviceClass); ok {
		class.ManagedFields = nil
	}
	return object, nil
}

// trimClaim keeps the requests and the allocation of a claim.
func trimClaim(object any) (any, error) {
	claim, ok := object.(*resourceapi.ResourceClaim)
	if !ok {
		return object, nil
	}
	claim.ManagedFields, claim.Labels, claim.Annotations, claim.OwnerReferences = nil, nil, nil, nil
	claim.Spec.Devices.Config, claim.Spec.Devices.Constraints = nil, nil
	claim.Status.Devices = nil
	for i := range claim.Spec.Devices.Requests {
		if e := claim.Spec.Devices.Requests[i].Exactly; e != nil {
			e.Tolerations = nil
		}
	}
	if a := claim.Status.Allocation; a != nil {
		a.Devices.Config, a.NodeSelector = nil, nil
	}
	return claim, nil
}
