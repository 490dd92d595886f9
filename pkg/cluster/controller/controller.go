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
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/cluster/admission"
	"gpu-dra-driver/pkg/cluster/deviceclasses"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire/schedulerfault"
)

type Options struct {
	// Events may be nil.
	Events record.EventRecorder
	// Classes selects the classes to create.
	Classes    deviceclasses.Options
	LabelNodes bool
	// OnDemand means that nodes publish devices of some kinds only while the cluster asks for them, and keeps pods.
	OnDemand bool
	// Auto are the kinds of devices that nodes publish only while the cluster asks for them.
	Auto []gpu.Kind
	// Grace is the time for which a class or a node's labels must be unwanted before their removal.
	Grace time.Duration
	// Waiting keeps the claims without an allocation whole, and pods, for answers about waiting pods.
	Waiting bool
	// Preemption keeps the CPU and the memory of nodes, their reservations of GPUs, and all pods. It needs Waiting.
	Preemption bool
	// Prices has the price of a GPU for an hour, by model.
	Prices map[string]float64
}

type Controller struct {
	o      Options
	driver string
	client kubernetes.Interface
	shapes *pool.Shapes

	slices cache.SharedIndexInformer
	// Classes has the DeviceClasses. Only the leader reads the others.
	Classes, Claims, Nodes, Pods cache.SharedIndexInformer
	*nodes
	view          *viewKeeper
	classStatuses *classStatuses
	resources     servedResources
	followers     []chan<- struct{}

	// leading is nil unless this instance leads.
	leading atomic.Pointer[leading]
}

// leading is the work of the leader.
type leading struct {
	queue    workqueue.TypedRateLimitingInterface[task]
	classes  *classReconciler
	labeller *labeller
	// due is the earliest time of the next reconciliation of the classes, which one worker at a time does.
	due time.Time
}

// task is one reconciliation: of the labels of a node, or of the classes if node is empty.
type task struct{ node string }

// New returns a controller of the driver's classes and labels. It makes no request yet.
func New(driver string, client kubernetes.Interface, o Options) *Controller {
	c := &Controller{o: o, driver: driver, client: client, shapes: &pool.Shapes{}}
	c.slices = read.SliceInformer(client, driver, c.shapes)
	c.Classes = read.Informer(client, client.ResourceV1().DeviceClasses(), "", &resourceapi.DeviceClass{}, trimClass)
	trim := TrimClaim
	if o.Waiting {
		trim = trimWaiting
	}
	claims, nodes := client.ResourceV1().ResourceClaims(metav1.NamespaceAll), client.CoreV1().Nodes()
	c.Claims = read.Informer(client, claims, "", &resourceapi.ResourceClaim{}, trim)
	c.Nodes = read.Informer(client, nodes, "", &corev1.Node{}, trimNode(driver, o.Preemption))
	c.Pods = read.PodCache(client, read.PodUses{Explain: o.Waiting, Preempt: o.Preemption})
	c.nodes = newNodes(c.slices.GetIndexer(), o.Grace, o.Auto)
	c.view = newViewKeeper(driver, c.nodes, c.Classes.GetIndexer(), o.OnDemand)
	c.classStatuses = &classStatuses{events: o.Events, known: map[types.UID]evaluated{}}
	return c
}

// ClusterView returns the current view for reviews.
func (c *Controller) ClusterView() *admission.ClusterView { return c.view.current.Load() }

// Objects are the objects that a leader knows. They are shared: callers only read them.
type Objects struct {
	// Slices has the slices of this driver only.
	Slices []*pool.Slice
	// Claims lack what trimWaiting removes, and Nodes what trimNode does.
	Claims  []*resourceapi.ResourceClaim
	Classes []*resourceapi.DeviceClass
	Nodes   []*corev1.Node
	// Pods are those that read.PodUses keeps for the options.
	Pods []*corev1.Pod
	// Server is the version of the API server; the zero Version means that it is unknown.
	Server schedulerfault.Version
}

// Objects returns the objects of the cluster, and false unless this instance leads and has read them.
func (c *Controller) Objects() (Objects, bool) {
	if c.leading.Load() == nil || c.readsPods() && !c.Pods.HasSynced() {
		return Objects{}, false
	}
	return Objects{
		Slices:  read.All[*pool.Slice](c.slices.GetIndexer()),
		Claims:  read.All[*resourceapi.ResourceClaim](c.Claims.GetIndexer()),
		Classes: read.All[*resourceapi.DeviceClass](c.Classes.GetIndexer()),
		Nodes:   read.All[*corev1.Node](c.Nodes.GetIndexer()),
		Pods:    read.All[*corev1.Pod](c.Pods.GetIndexer()),
		Server:  c.Server(),
	}, true
}

// Server returns the version of the API server; the zero Version means that it is unknown.
func (c *Controller) Server() (version schedulerfault.Version) {
	if known := c.view.server.Load(); known != nil {
		version = *known
	}
	return version
}

// Claim returns a claim that a leader knows, or nil.
func (c *Controller) Claim(namespace, name string) *resourceapi.ResourceClaim {
	// A cache has no errors.
	found, _, _ := c.Claims.GetIndexer().GetByKey(cache.ObjectName{Namespace: namespace, Name: name}.String())
	claim, _ := found.(*resourceapi.ResourceClaim)
	return claim
}

// Follow has an element sent to a channel of capacity one after each pass over the published devices. Call it before
// Observe.
func (c *Controller) Follow(wake chan<- struct{}) { c.followers = append(c.followers, wake) }

// Synced returns an error until the controller has read the cluster.
func (c *Controller) Synced() error {
	if !c.slices.HasSynced() || !c.Classes.HasSynced() {
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
		On(c.slices, func(s *pool.Slice, _ bool) {
			c.invalidate(s.Node)
			c.enqueue(task{s.Node})
			Trigger(c.view.dirty)
		}),
		On(c.Classes, func(class *resourceapi.DeviceClass, _ bool) {
			if one, ok := resourceOf(class); ok {
				c.resources.add(one)
			}
			Trigger(c.view.dirty)
		}),
	); err != nil {
		return err
	}
	wg.Go(func() {
		server := discovery.ToServerVersionInterfaceWithContext(c.client.Discovery())
		Repeat(ctx, nil, 0, func() time.Duration { return c.view.readVersion(ctx, server) })
	})
	if read.Start(ctx, &wg, c.slices, c.Classes) {
		klog.FromContext(ctx).V(2).Info("Read the cluster", "slices", len(c.slices.GetIndexer().ListKeys()), "shapes",
			c.shapes.Len())
		Repeat(ctx, c.view.dirty, settle, func() time.Duration {
			again := c.view.build()
			c.enqueue(task{})
			for _, wake := range c.followers {
				Trigger(wake)
			}
			return again
		})
	}
	return nil
}

// Lead writes classes and labels until the context ends.
func (c *Controller) Lead(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), c.slices.HasSynced, c.Classes.HasSynced) {
		return nil
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := c.newLeading()
	defer l.queue.ShutDown()
	if err := On(c.Nodes, func(node *corev1.Node, _ bool) { l.queue.Add(task{node.Name}) }); err != nil {
		return err
	}
	if !read.Start(ctx, &wg, c.Claims) || (c.o.LabelNodes || c.o.Waiting) && !read.Start(ctx, &wg, c.Nodes) {
		return nil
	}
	if c.readsPods() {
		wg.Go(func() { c.Pods.RunWithContext(ctx) }) // Classes and labels do not wait for it.
	}
	c.leading.Store(l)
	defer c.leading.Store(nil)
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

// readsPods reports whether the controller may read pods.
func (c *Controller) readsPods() bool { return c.o.OnDemand || c.o.Waiting }

func (c *Controller) newLeading() *leading {
	pauses := workqueue.NewTypedItemExponentialFailureRateLimiter[task](100*time.Millisecond, time.Minute)
	l := &leading{queue: workqueue.NewTypedRateLimitingQueue(pauses)}
	l.classes = &classReconciler{
		options: c.o.Classes, grace: c.o.Grace, nodes: c.nodes, view: c.view,
		existing: c.Classes.GetIndexer(), known: c.Claims.GetIndexer(), client: c.client, resources: &c.resources,
		made: map[string]time.Time{}, unwanted: map[string]time.Time{}, reported: map[string]bool{},
	}
	l.labeller = &labeller{
		driver: c.driver, grace: c.o.Grace, slices: c.slices.GetIndexer(), nodes: c.Nodes.GetIndexer(),
		client: c.client.CoreV1().Nodes(), delays: flowcontrol.NewBackOff(cacheLag, time.Minute),
	}
	return l
}

// enqueue schedules a task if this instance leads.
func (c *Controller) enqueue(t task) {
	if l := c.leading.Load(); l != nil {
		l.queue.Add(t)
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
	if early := time.Until(l.due); early > 0 {
		return early, nil
	}
	began := time.Now()
	defer func() { l.due = time.Now().Add(pauseAfter(time.Since(began))) }()
	again, err = l.classes.reconcile(ctx)
	return again, errors.Join(err, c.classStatuses.evaluate(ctx, c.ClusterView(), c.Classes.GetIndexer()))
}

// On calls do for each added, updated or deleted object of a type; gone means that it was deleted.
func On[T any](informer cache.SharedIndexInformer, do func(object T, gone bool)) error {
	handle := func(o any, gone bool) {
		if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = last.Obj
		}
		if one, ok := o.(T); ok {
			do(one, gone)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { handle(o, false) },
		UpdateFunc: func(_, now any) { handle(now, false) },
		DeleteFunc: func(o any) { handle(o, true) },
	})
	return err
}

// pauseAfter returns the pause after a pass over the cluster that took so long. However many changes one node makes,
// the passes take a fifth of a core at most.
func pauseAfter(took time.Duration) time.Duration { return min(4*took, 5*time.Second) }

// Repeat calls do until the context ends: again after the delay that it returns, if that is not 0, or once wake has an
// element. It pauses before each repetition, to collect changes.
func Repeat(ctx context.Context, wake <-chan struct{}, pause time.Duration, do func() (again time.Duration)) {
	for {
		var due <-chan time.Time
		began := time.Now()
		if again := do(); again > 0 {
			due = time.After(again)
		}
		pause := pause
		if wake != nil {
			pause = max(pause, pauseAfter(time.Since(began)))
		}
		select {
		case <-ctx.Done():
			return
		case <-due:
		case <-wake:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// Sooner returns the shorter of two delays. One that is not positive is none.
func Sooner(a, b time.Duration) time.Duration {
	if a <= 0 || b > 0 && b < a {
		return b
	}
	return a
}

// Trigger wakes the reader of a channel with capacity one.
func Trigger(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
