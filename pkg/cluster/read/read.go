// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package read

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"gpu-dra-driver/pkg/cluster/bounded"
	"gpu-dra-driver/pkg/cluster/pool"
)

// PageSize limits the memory of a list: a slice of 64 devices takes about 100 kB until it is trimmed. TenantsPageSize
// is for objects of which a tenant can make each 1.5 MB large.
const PageSize, TenantsPageSize = 200, 20

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

// byNode is the index of slices by their publishing node.
const byNode = "node"

// SliceInformer follows the driver's slices. It trims them page by page, or as they arrive.
func SliceInformer(client kubernetes.Interface, driver string, shapes *pool.Shapes) cache.SharedIndexInformer {
	ours := fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver, driver).String()
	all := client.ResourceV1().ResourceSlices()
	lw := ListWatch(all, ours)
	lw.ListWithContextFunc = func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
		out := &pool.SliceList{}
		// The reflector's options ask for a list from the API server's cache, which has no pages.
		for page, err := range Pages(ctx, metav1.ListOptions{FieldSelector: ours}, all.List) {
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
	}
	by := cache.Indexers{byNode: nodeOf}
	return newInformer(lw, client, &resourceapi.ResourceSlice{}, by, func(object any) (any, error) {
		if slice, ok := object.(*resourceapi.ResourceSlice); ok {
			trimmed := shapes.Trim(slice)
			return &trimmed, nil
		}
		return object, nil
	})
}

func nodeOf(object any) ([]string, error) {
	if s, ok := object.(*pool.Slice); ok {
		return []string{s.Node}, nil
	}
	return nil, fmt.Errorf("%T in the cache of slices", object)
}

// SlicesOf returns the slices of a node from the cache of a SliceInformer.
func SlicesOf(slices cache.Indexer, node string) []*pool.Slice {
	objects, _ := slices.ByIndex(byNode, node) // The index exists.
	return typed[*pool.Slice](objects)
}

// List is a list of objects.
type List interface {
	runtime.Object
	metav1.ListInterface
}

// Client is the client of a resource, with lists of the type L.
type Client[L List] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// ListWatch lists and watches the objects of a client that a field selector selects; an empty one selects all.
func ListWatch[L List](c Client[L], selector string) *cache.ListWatch {
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

// Informer follows the selected objects of a client of an API, trimmed to the fields that the caller reads. It keeps a
// mark of an object that is too large even so (pkg/cluster/bounded), and holds few whole objects at a time. A kind
// without a limit must have one object, or a schema that limits its size.
func Informer[L List](
	api any, c Client[L], selector string, of runtime.Object, trim cache.TransformFunc,
) cache.SharedIndexInformer {
	lw, trim := ListWatch(c, selector), limited(trim)
	lw.ListWithContextFunc = trimmedPages(c, selector, trim)
	return newInformer(lw, api, of, cache.Indexers{}, trim)
}

// trimmedPages asks a server without streams of objects for pages. The reflector's options would ask for all objects at
// once. It leaves out those of which trim keeps nothing.
func trimmedPages[L List](c Client[L], selector string, trim cache.TransformFunc) cache.ListWithContextFunc {
	return func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
		out := &trimmedList{}
		for page, err := range Pages(ctx, metav1.ListOptions{FieldSelector: selector, Limit: TenantsPageSize},
			alone(c.List)) {
			if err != nil {
				return nil, err
			}
			items, err := meta.ExtractListWithAlloc(page)
			if err != nil {
				return nil, err
			}
			for _, item := range items {
				trimmed, err := trim(item)
				if err != nil {
					return nil, err
				}
				if o, ok := trimmed.(runtime.Object); ok {
					out.Items = append(out.Items, o)
				}
			}
			out.ResourceVersion = page.GetResourceVersion()
		}
		return out, nil
	}
}

// limited trims an object, and then limits its size. An informer transforms an object of a list or of the first events
// twice, so the second time must not take a mark for an object.
func limited(trim cache.TransformFunc) cache.TransformFunc {
	return func(object any) (any, error) {
		if o, ok := object.(runtime.Object); ok && bounded.TooLarge(o) {
			return object, nil
		}
		if trim != nil {
			var err error
			if object, err = trim(object); err != nil {
				return nil, err
			}
		}
		return bounded.Keep(object), nil
	}
}

// trimmedList has objects after the transformation of their informer.
type trimmedList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []runtime.Object
}

// DeepCopyObject returns the list itself, which no reader changes.
func (l *trimmedList) DeepCopyObject() runtime.Object { return l }

// pageTurns has one element while a page is read. All informers of a process start at once, and the memory of one page
// each would be too much.
var pageTurns = make(chan struct{}, 1)

// alone lists while no other page is read.
func alone[L List](
	list func(context.Context, metav1.ListOptions) (L, error),
) func(context.Context, metav1.ListOptions) (L, error) {
	return func(ctx context.Context, o metav1.ListOptions) (out L, err error) {
		select {
		case pageTurns <- struct{}{}:
			defer func() { <-pageTurns }()
			return list(ctx, o)
		case <-ctx.Done():
			return out, ctx.Err()
		}
	}
}

// PodInformer is the Informer of the selected pods that keep returns true for. It lets go of the others page by page,
// or as they arrive, so that a cluster with many pods takes little memory.
func PodInformer(
	client kubernetes.Interface, selector string, keep func(*corev1.Pod) bool, trim cache.TransformFunc,
) cache.SharedIndexInformer {
	all := client.CoreV1().Pods(metav1.NamespaceAll)
	lw, trim := ListWatch(all, selector), limited(trim)
	lw.ListWithContextFunc = trimmedPages(all, selector, func(object any) (any, error) {
		if pod, ok := object.(*corev1.Pod); !ok || !keep(pod) {
			return nil, nil
		}
		return trim(object)
	})
	follow := lw.WatchFuncWithContext
	lw.WatchFuncWithContext = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		events, err := follow(ctx, o)
		if err != nil {
			return nil, err
		}
		w := &podWatch{Interface: events, out: make(chan watch.Event), done: make(chan struct{})}
		go w.run(keep)
		return w, nil
	}
	return newInformer(lw, client, &corev1.Pod{}, cache.Indexers{}, trim)
}

// podWatch leaves pods out of a watch. The filter of `k8s.io/apimachinery` never ends if it is stopped while it sends.
type podWatch struct {
	watch.Interface
	out  chan watch.Event
	done chan struct{}
	once sync.Once
}

func (w *podWatch) ResultChan() <-chan watch.Event { return w.out }

func (w *podWatch) Stop() {
	w.once.Do(func() { close(w.done) })
	w.Interface.Stop()
}

func (w *podWatch) run(keep func(*corev1.Pod) bool) {
	defer close(w.out)
	for e := range w.Interface.ResultChan() {
		if pod, ok := e.Object.(*corev1.Pod); ok && (e.Type == watch.Added || e.Type == watch.Modified) && !keep(pod) {
			if e.Type == watch.Added {
				continue
			}
			e.Type = watch.Deleted // It may have been kept before.
		}
		select {
		case w.out <- e:
		case <-w.done:
			return
		}
	}
}

func newInformer(
	lw *cache.ListWatch, api any, of runtime.Object, by cache.Indexers, trim cache.TransformFunc,
) cache.SharedIndexInformer {
	out := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lw, api), of, 0, by)
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

// Start runs informers until the context ends, and reports whether they have read the cluster before. The group ends
// after them.
func Start(ctx context.Context, wg *sync.WaitGroup, informers ...cache.SharedIndexInformer) bool {
	var synced []cache.InformerSynced
	for _, i := range informers {
		wg.Go(func() { i.RunWithContext(ctx) })
		synced = append(synced, i.HasSynced)
	}
	return cache.WaitForCacheSync(ctx.Done(), synced...)
}
