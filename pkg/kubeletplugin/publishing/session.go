// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
)

const (
	// repairDelay is the delay before a foreign edit or deletion is repaired. It must exceed the informer's lag, because
	// our own writes pass through the informer too.
	repairDelay = time.Second
	// retryMin and retryMax limit the pauses between failed attempts.
	retryMin, retryMax = 200 * time.Millisecond, 15 * time.Second
)

// session is one run of the library's controller, while this instance is the newest.
type session struct {
	cancel  context.CancelFunc
	done    chan struct{}
	updates chan *resourceslice.DriverResources
}

// startSession starts a controller in the background, because its informer takes a second or, without an API server,
// longer.
func (p *Publisher) startSession(ctx context.Context) *session {
	ctx, cancel := context.WithCancel(ctx)
	s := &session{cancel: cancel, done: make(chan struct{}), updates: make(chan *resourceslice.DriverResources, 1)}
	queue := newQueue(p.synced)
	go func() {
		defer close(s.done)
		controller, err := resourceslice.StartController(ctx, resourceslice.Options{
			DriverName: p.o.Driver, KubeClient: p.o.Client, Queue: queue, SyncDelay: new(repairDelay), ErrorHandler: p.failed,
			Owner: &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: p.o.Node},
		})
		if err != nil {
			if ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Starting to publish failed")
			}
			return
		}
		defer controller.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case resources := <-s.updates:
				controller.Update(resources)
				queue.open()
			}
		}
	}()
	return s
}

// want replaces the resources to publish. Only one goroutine calls it.
func (s *session) want(resources *resourceslice.DriverResources) {
	select {
	case <-s.updates: // Older ones that the controller has not read yet.
	default:
	}
	s.updates <- resources
}

func (s *session) stop() {
	s.cancel()
	<-s.done
}

// queue delays the controller until it has resources: without them it would delete the published slices. Starting the
// controller later would add NVML's time to its informer's.
type queue struct {
	workqueue.TypedRateLimitingInterface[string]
	open   func()
	opened chan struct{}
	synced func()
}

func newQueue(synced func()) *queue {
	opened := make(chan struct{})
	return &queue{
		TypedRateLimitingInterface: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryMin, retryMax)),
		open: sync.OnceFunc(func() { close(opened) }), opened: opened, synced: synced,
	}
}

func (q *queue) Get() (string, bool) {
	<-q.opened
	return q.TypedRateLimitingInterface.Get()
}

func (q *queue) ShutDown() {
	q.TypedRateLimitingInterface.ShutDown()
	q.open()
}

// Forget implements workqueue. The controller calls it for a pool without errors.
func (q *queue) Forget(pool string) {
	q.TypedRateLimitingInterface.Forget(pool)
	q.synced()
}
