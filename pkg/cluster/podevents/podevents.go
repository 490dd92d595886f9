// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package podevents

import (
	"context"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/cluster/controller"
	"gpu-dra-driver/pkg/cluster/read"
)

const (
	// Patience is the time that a pod waits before it gets an Event.
	Patience = 20 * time.Second
	// refresh is the age at which an answer is asked for again.
	refresh = 30 * time.Second
	// rewrite is the least time between two writes of one Event.
	rewrite = time.Minute
	// renewal is the age at which an Event with the same answer is written again, because API servers remove Events
	// that are not written for an hour.
	renewal = 30 * time.Minute
	// tick is the least pause between two steps without work, and breath with work.
	tick, breath = 2 * time.Second, 100 * time.Millisecond
	// share is the part of a processor that steps take at most: one of so many.
	share = 20
	// writes are the Events written in a second, of which up to burst at once.
	writes, burst = 5, 25
)

// Cluster has the objects that the leading controller knows.
type Cluster interface {
	// Objects returns false while this instance does not know them.
	Objects() (controller.Objects, bool)
	// Claim returns a claim, or nil.
	Claim(namespace, name string) *resourceapi.ResourceClaim
	// Wake has the scheduler try all pods again that wait for devices.
	Wake(ctx context.Context) error
}

// Options configure a Keeper.
type Options struct {
	// Driver is the name of the driver about whose devices Events are written.
	Driver string
	// NameOthers also names claims and pods of other namespaces. Users of a pod's namespace can read them then.
	NameOthers bool
}

// Keeper writes the Events. One goroutine does all of its work.
type Keeper struct {
	o       Options
	cluster Cluster
	client  kubernetes.Interface
	dynamic dynamic.Interface
	limit   flowcontrol.RateLimiter

	// pods wait for a node. bound have one, and may lack devices for an extended resource.
	pods, bound cache.SharedIndexInformer
	// refused has the Events about claims that were refused, and failed those about pods that were.
	refused, failed cache.SharedIndexInformer

	// lacking are the pods of bound that lack devices, at a time.
	lacking   []*corev1.Pod
	lackingAt time.Time

	kinds   map[uint64]*kind
	keys    map[types.UID]cachedKey
	owners  map[types.UID]*owner
	written map[types.UID]written
	// woken is the time of the last Wake, and rest the least time until the next one.
	woken     time.Time
	rest      time.Duration
	asked     turns // of answers
	wrote     turns // of writes
	templates map[types.NamespacedName]template
	rules     rules
}

// written is the Event of a pod or an owner.
type written struct {
	sense string
	at    time.Time
}

// turns has the last turn of each namespace.
type turns map[string]time.Time

// The reasons of the Events of kube-controller-manager about claims and pods that the API server refuses.
const claimRefused, podRefused = "FailedResourceClaimCreation", "FailedCreate"

// byUID is the index of Events by the object that they are about.
const byUID = "uid"

// New returns a Keeper, which makes no request yet.
func New(client kubernetes.Interface, dynamic dynamic.Interface, cluster Cluster, o Options) *Keeper {
	core := client.CoreV1()
	events := core.Events(metav1.NamespaceAll)
	k := &Keeper{
		o: o, cluster: cluster, client: client, dynamic: dynamic, limit: flowcontrol.NewTokenBucketRateLimiter(writes, burst),
		pods:    read.Informer(client, core.Pods(metav1.NamespaceAll), "spec.nodeName=,status.phase=Pending", &corev1.Pod{}, trimPod),
		bound:   read.PodInformer(client, "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed", lacks, trimBound),
		refused: read.Informer(client, events, "reason="+claimRefused, &corev1.Event{}, trimEvent),
		failed:  read.Informer(client, events, "reason="+podRefused, &corev1.Event{}, trimEvent),
		kinds:   map[uint64]*kind{}, keys: map[types.UID]cachedKey{}, owners: map[types.UID]*owner{}, written: map[types.UID]written{},
		asked: turns{}, wrote: turns{}, templates: map[types.NamespacedName]template{},
	}
	_ = k.refused.AddIndexers(cache.Indexers{byUID: func(o any) ([]string, error) { // It fails only after the start.
		if e, ok := o.(*corev1.Event); ok {
			return []string{string(e.InvolvedObject.UID)}, nil
		}
		return nil, nil
	}})
	return k
}

// Run writes Events until the context ends. Only the leader runs it.
func (k *Keeper) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	if !read.Start(ctx, &wg, k.pods, k.bound, k.refused, k.failed) {
		return nil
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(k.guarded(ctx)):
		}
	}
}

// guarded does one step, and returns the pause after it.
func (k *Keeper) guarded(ctx context.Context) (pause time.Duration) {
	before := processorTime()
	defer func() {
		// A bug with one object must not end the controller.
		if p := recover(); p != nil {
			klog.FromContext(ctx).Error(nil, "A bug while Events about waiting pods were written", "panic", p)
			pause = time.Minute
		}
		pause = max(pause, (share-1)*(processorTime()-before))
	}()
	if k.step(ctx) {
		return breath
	}
	return tick
}

// step asks for at most one answer and writes the Events that are due. It reports whether more may be due.
func (k *Keeper) step(ctx context.Context) (more bool) {
	now := time.Now()
	k.group(now)
	if next := k.next(now); next != nil {
		k.ask(ctx, next, now)
		more = true
	}
	k.follow(ctx, now)
	return k.write(ctx, now) || more
}

// processorTime returns the processor time of the process. Other work of the controller counts too, which makes pauses
// longer.
func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
