// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package controller serves a cluster as a whole: it derives DeviceClasses and node labels from ResourceSlices, exports
// cluster metrics, and reviews objects.
//
// Two instances run. Both review, but only the leader writes. All written objects are functions of the slices, so two
// instances that both think they lead write identical objects. Traps: slices disappear while kubelets and plugins
// restart, so nothing is removed before it was unwanted for a while; an incomplete pool proves nothing.
package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	draclient "k8s.io/dynamic-resource-allocation/client"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/cluster/admission"
	"gpu-dra-driver/pkg/cluster/deviceclasses"
	"gpu-dra-driver/pkg/cluster/pool"
)

type Options struct {
	// Events may be nil.
	Events record.EventRecorder
	// Classes selects the classes to create.
	Classes    deviceclasses.Options
	LabelNodes bool
	// AskedConfigMap is the ConfigMap of Namespace for the MIG profiles and groups that the cluster asks for. Empty: none.
	AskedConfigMap, Namespace string
	// AutoGroups means that nodes publish NVLink groups only while the cluster asks for them.
	AutoGroups bool
	// Grace is the time for which a class or a node's labels must be unwanted before their removal.
	Grace time.Duration
	// Prices are those of a GPU for an hour, by model.
	Prices map[string]float64
}

type Controller struct {
	o        Options
	driver   string
	client   kubernetes.Interface
	metadata metadata.Interface
	versions *draclient.Client
	shapes   *pool.Shapes

	slices, classes cache.SharedIndexInformer
	nodes           *nodes
	view            *viewKeeper
	classStatuses   *classStatuses
	// resources holds each servedResource that an event showed.
	resources sync.Map
	// askedDirty wakes the leader's askedKeeper.
	askedDirty chan struct{}

	mu sync.Mutex
	// leading is nil unless this instance leads.
	leading *leading
}

// leading is the work of the leader.
type leading struct {
	queue         workqueue.TypedRateLimitingInterface[task]
	claims, nodes cache.SharedIndexInformer
	classes       *classReconciler
	labeller      *labeller
}

// task is one reconciliation: of the labels of a node, or of the classes if node is empty.
type task struct{ node string }

// New returns a controller of the driver's classes and labels. It makes no request yet.
func New(driver string, client kubernetes.Interface, metadata metadata.Interface, o Options) *Controller {
	c := &Controller{
		o: o, driver: driver, client: client, metadata: metadata, versions: draclient.New(client), shapes: &pool.Shapes{},
		askedDirty: make(chan struct{}, 1),
	}
	c.slices = newSlices(c.versions, driver, c.shapes)
	c.classes = informer(c.versions, c.versions.DeviceClasses().List, c.versions.DeviceClasses().Watch, &resourceapi.DeviceClass{}, trimClass)
	c.nodes = &nodes{
		slices: c.slices.GetIndexer(), autoGroups: o.AutoGroups, known: map[string]pool.Pool{}, possible: map[string]pool.Pool{}, changed: map[string]bool{},
	}
	c.view = newViewKeeper(driver, c.nodes, c.classes.GetIndexer(), recent{grace: o.Grace}, o.AskedConfigMap != "", func() {
		c.enqueue(task{})
		trigger(c.askedDirty)
	})
	c.classStatuses = &classStatuses{events: o.Events, known: map[types.UID]evaluated{}}
	return c
}

// ClusterView returns the current view for reviews.
func (c *Controller) ClusterView() *admission.ClusterView { return c.view.current.Load() }

// Synced returns an error until the controller has read the cluster.
func (c *Controller) Synced() error {
	if !c.slices.HasSynced() || !c.classes.HasSynced() {
		return errors.New("the ResourceSlices and DeviceClasses of the cluster are being read")
	}
	return nil
}

// Observe follows slices and classes until the context ends. Every instance runs it.
func (c *Controller) Observe(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := errors.Join(
		on(c.slices, func(o any) {
			if s, ok := o.(*pool.Slice); ok {
				c.nodes.invalidate(s.Node)
				c.enqueue(task{s.Node})
			}
			trigger(c.view.dirty)
		}),
		on(c.classes, func(o any) {
			if one, ok := resourceOf(o); ok {
				c.resources.Store(one, true)
			}
			trigger(c.view.dirty)
		}),
	); err != nil {
		return err
	}
	wg.Go(func() { c.slices.RunWithContext(ctx) })
	wg.Go(func() { c.classes.RunWithContext(ctx) })
	if cache.WaitForCacheSync(ctx.Done(), c.slices.HasSynced, c.classes.HasSynced) {
		klog.FromContext(ctx).V(2).Info("Read the cluster", "slices", len(c.slices.GetIndexer().ListKeys()), "shapes", c.shapes.Len())
		trigger(c.view.dirty)
		c.view.run(ctx)
	}
	return nil
}

// Lead writes classes and labels until the context ends.
func (c *Controller) Lead(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), c.slices.HasSynced, c.classes.HasSynced) {
		return nil
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := c.newLeading()
	defer l.queue.ShutDown()
	if err := on(l.nodes, func(o any) {
		if meta, ok := o.(*metav1.PartialObjectMetadata); ok {
			l.queue.Add(task{meta.Name})
		}
	}); err != nil {
		return err
	}
	wg.Go(func() { l.claims.RunWithContext(ctx) })
	synced := []cache.InformerSynced{l.claims.HasSynced}
	if c.o.LabelNodes {
		wg.Go(func() { l.nodes.RunWithContext(ctx) })
		synced = append(synced, l.nodes.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil
	}
	if c.o.AskedConfigMap != "" {
		k := c.newAskedKeeper(l.claims)
		wg.Go(func() { k.templates.RunWithContext(ctx) })
		wg.Go(func() { k.pods.RunWithContext(ctx) })
		wg.Go(func() { k.run(ctx) })
	}
	c.mu.Lock()
	c.leading = l
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.leading = nil
		c.mu.Unlock()
	}()
	l.queue.Add(task{})
	const workers = 8
	for range workers {
		wg.Go(func() {
			for c.work(ctx, l) {
			}
		})
	}
	<-ctx.Done()
	l.queue.ShutDown()
	return nil
}

func (c *Controller) newLeading() *leading {
	l := &leading{
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[task](100*time.Millisecond, time.Minute)),
		claims: informer(c.versions, c.versions.ResourceClaims(metav1.NamespaceAll).List, c.versions.ResourceClaims(metav1.NamespaceAll).Watch,
			&resourceapi.ResourceClaim{}, trimClaim),
	}
	nodes := c.metadata.Resource(nodeResource)
	l.nodes = informer(c.metadata, nodes.List, nodes.Watch, &metav1.PartialObjectMetadata{}, trimNode(c.driver))
	l.classes = &classReconciler{
		options: c.o.Classes, grace: c.o.Grace, pools: c.nodes.withGroups, existing: c.classes.GetIndexer(), known: l.claims.GetIndexer(),
		classes: c.versions.DeviceClasses(), claims: c.versions.ResourceClaims, templates: c.versions.ResourceClaimTemplates, pods: c.client,
		made: map[string]time.Time{}, unwanted: map[string]time.Time{}, reported: map[string]bool{},
		resources: &c.resources,
		concerns:  func(class *resourceapi.DeviceClass) bool { return c.ClusterView().Concerns(class) },
	}
	l.labeller = &labeller{
		driver: c.driver, grace: c.o.Grace, slices: c.slices.GetIndexer(), nodes: l.nodes.GetIndexer(),
		client: nodes, gone: map[string]time.Time{}, wanted: map[string]uint64{}, delays: flowcontrol.NewBackOff(cacheLag, time.Minute),
	}
	return l
}

// enqueue schedules a task if this instance leads.
func (c *Controller) enqueue(t task) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leading != nil {
		c.leading.queue.Add(t)
	}
}

// work does one task; false after the shutdown of the queue.
func (c *Controller) work(ctx context.Context, l *leading) bool {
	t, done := l.queue.Get()
	if done {
		return false
	}
	defer l.queue.Done(t)
	again, err := c.do(ctx, l, t)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		klog.FromContext(ctx).Error(err, "Reconciliation failed; trying again", "times", l.queue.NumRequeues(t))
		l.queue.AddRateLimited(t)
		return true
	case again > 0:
		l.queue.AddAfter(t, again)
	}
	l.queue.Forget(t)
	return true
}

func (c *Controller) do(ctx context.Context, l *leading, t task) (again time.Duration, err error) {
	defer func() {
		// A bug with one object must not affect the others.
		if p := recover(); p != nil {
			err = fmt.Errorf("a bug of the controller: %v", p)
		}
	}()
	if t.node != "" {
		if !c.o.LabelNodes {
			return 0, nil
		}
		return l.labeller.label(ctx, t.node)
	}
	again, err = l.classes.reconcile(ctx)
	return again, errors.Join(err, c.classStatuses.evaluate(ctx, c.ClusterView(), c.classes.GetIndexer()))
}

// on calls do for each added, updated or deleted object.
func on(informer cache.SharedIndexInformer, do func(object any)) error {
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    do,
		UpdateFunc: func(_, now any) { do(now) },
		DeleteFunc: func(o any) {
			if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			do(o)
		},
	})
	return err
}

// sleep waits for a time, or until wake has an element. It returns false at the context's end.
func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
	case <-wake:
	}
	return true
}

// trigger wakes the reader of a channel with capacity one.
func trigger(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
