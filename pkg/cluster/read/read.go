// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package read

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	draclient "k8s.io/dynamic-resource-allocation/client"

	"gpu-dra-driver/pkg/cluster/pool"
)

// PageSize limits the memory of a list: a slice of 64 devices takes about 100 kB until it is trimmed.
const PageSize = 200

// Pages iterates over the pages of a list, of the options' limit or of PageSize. It ends after an error.
func Pages[L metav1.ListInterface](
	ctx context.Context, o metav1.ListOptions, list func(context.Context, metav1.ListOptions) (L, error),
) iter.Seq2[L, error] {
	return func(yield func(L, error) bool) {
		o := o
		o.Limit = cmp.Or(o.Limit, PageSize)
		for {
			page, err := list(ctx, o)
			if !yield(page, err) || err != nil {
				return
			}
			if o.Continue = page.GetContinue(); o.Continue == "" {
				return
			}
		}
	}
}

// EachSlice calls visit with each ResourceSlice in protobuf, which is valid until visit returns.
func EachSlice(ctx context.Context, client kubernetes.Interface, o metav1.ListOptions, visit func(raw []byte) error) error {
	for _, err := range Pages(ctx, o, func(ctx context.Context, o metav1.ListOptions) (*metav1.ListMeta, error) {
		body, err := client.ResourceV1().RESTClient().Get().Resource("resourceslices").VersionedParams(&o, scheme.ParameterCodec).Stream(ctx)
		if err != nil {
			return nil, err
		}
		defer func() { _ = body.Close() }() // It was only read.
		meta, err := readList(body, visit)
		return &meta, err
	}) {
		if err != nil {
			return err
		}
	}
	return nil
}

// byNode is the index of slices by their publishing node.
const byNode = "node"

// SliceInformer follows the driver's slices, trimmed as Slices does, with an index for SlicesOf.
func SliceInformer(client *draclient.Client, driver string, shapes *pool.Shapes) cache.SharedIndexInformer {
	lw := cache.ToListWatcherWithWatchListSemantics(Slices(client, driver, shapes), client)
	return cache.NewSharedIndexInformer(lw, &pool.Slice{}, 0, cache.Indexers{
		byNode: func(object any) ([]string, error) {
			s, ok := object.(*pool.Slice)
			if !ok {
				return nil, fmt.Errorf("%T in the cache of slices", object)
			}
			return []string{s.Node}, nil
		},
	})
}

// SlicesOf returns the slices of a node from the cache of a SliceInformer.
func SlicesOf(slices cache.Indexer, node string) []*pool.Slice {
	objects, _ := slices.ByIndex(byNode, node) // The index exists.
	return typed[*pool.Slice](objects)
}

// Slices lists and watches the driver's slices. It trims them as they arrive, page by page.
func Slices(client *draclient.Client, driver string, shapes *pool.Shapes) *cache.ListWatch {
	ours := fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver, driver).String()
	all := ListWatch(client.ResourceSlices(), ours)
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			out := &pool.SliceList{}
			// Lists from the API server's cache have no pages.
			o.FieldSelector, o.ResourceVersion, o.ResourceVersionMatch, o.Continue, o.Limit = ours, "", "", "", 0
			for page, err := range Pages(ctx, o, client.ResourceSlices().List) {
				if err != nil {
					return nil, err
				}
				for i := range page.Items {
					out.Items = append(out.Items, shapes.Trim(&page.Items[i]))
					page.Items[i] = resourceapi.ResourceSlice{}
				}
				out.ResourceVersion = page.ResourceVersion
			}
			return out, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := all.WatchWithContext(ctx, o)
			if err != nil {
				return nil, err
			}
			t := &trimming{Interface: w, out: make(chan watch.Event), stopped: make(chan struct{})}
			go t.run(shapes)
			return t, nil
		},
	}
}

// trimming is a watch with trimmed slices. Unlike a watch.Filter it ends when it is stopped with a pending event, which
// a stopped watch always has.
type trimming struct {
	watch.Interface
	out     chan watch.Event
	stop    sync.Once
	stopped chan struct{}
}

func (t *trimming) run(shapes *pool.Shapes) {
	defer close(t.out)
	for e := range t.Interface.ResultChan() {
		select {
		case t.out <- trimmed(e, shapes):
		case <-t.stopped:
			return
		}
	}
}

func (t *trimming) Stop() {
	t.Interface.Stop()
	t.stop.Do(func() { close(t.stopped) })
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

// Client is the client of a resource, with lists of the type L.
type Client[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// ListWatch lists and watches the objects of a client that a field selector selects; an empty one selects all.
func ListWatch[L runtime.Object](c Client[L], selector string) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return c.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return c.Watch(ctx, o)
		},
	}
}

// Informer follows the selected objects of a client of an API, trimmed to the fields that the caller reads.
func Informer[L runtime.Object](api any, c Client[L], selector string, of runtime.Object, trim cache.TransformFunc) cache.SharedIndexInformer {
	lw := cache.ToListWatcherWithWatchListSemantics(ListWatch(c, selector), api)
	out := cache.NewSharedIndexInformer(lw, of, 0, cache.Indexers{})
	_ = out.SetTransform(trim) // It fails only after the start.
	return out
}

// All returns the objects of a cache.
func All[T any](cached cache.Store) []T { return typed[T](cached.List()) }

func typed[T any](objects []any) (out []T) {
	for _, o := range objects {
		if one, ok := o.(T); ok {
			out = append(out, one)
		}
	}
	return out
}
