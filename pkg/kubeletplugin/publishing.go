// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
)

const (
	// repairDelay is how long a foreign edit or deletion stands. It only has to outlast the informer's lag, for our own
	// writes come back through it too.
	repairDelay = time.Second
	// retryMin and retryMax bound the pauses between failed attempts.
	retryMin, retryMax = 200 * time.Millisecond, 15 * time.Second
)

// publishing is one run of the library's controller, from becoming the newest instance to being so no more.
type publishing struct {
	cancel  context.CancelFunc
	done    chan struct{}
	updates chan *resourceslice.DriverResources
}

// publish starts a controller in the background: its informer needs a second, or as long as the API server is away.
func (p *publisher) publish(ctx context.Context) *publishing {
	ctx, cancel := context.WithCancel(ctx)
	s := &publishing{cancel: cancel, done: make(chan struct{}), updates: make(chan *resourceslice.DriverResources, 1)}
	queue := newPublishQueue(p.synced)
	go func() {
		defer close(s.done)
		delay := repairDelay
		controller, err := resourceslice.StartController(ctx, resourceslice.Options{
			DriverName: p.driver, KubeClient: p.client, Queue: queue, SyncDelay: &delay, ErrorHandler: p.failed,
			Owner: &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: p.node},
		})
		if err != nil {
			if ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Publishing did not start")
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

// want replaces what is to be published. One goroutine calls it.
func (s *publishing) want(resources *resourceslice.DriverResources) {
	select {
	case <-s.updates: // An older wish that was not taken up yet.
	default:
	}
	s.updates <- resources
}

func (s *publishing) stop() {
	s.cancel()
	<-s.done
}

// publishQueue is the controller's queue, closed until it knows what to publish: a controller without resources would
// delete what is published, and waiting with its start would add NVML's time to its informer's.
type publishQueue struct {
	workqueue.TypedRateLimitingInterface[string]
	once   sync.Once
	opened chan struct{}
	synced func()
}

func newPublishQueue(synced func()) *publishQueue {
	return &publishQueue{
		TypedRateLimitingInterface: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryMin, retryMax)),
		opened: make(chan struct{}), synced: synced,
	}
}

func (q *publishQueue) open() { q.once.Do(func() { close(q.opened) }) }

// Get implements workqueue.
func (q *publishQueue) Get() (string, bool) {
	<-q.opened
	return q.TypedRateLimitingInterface.Get()
}

// ShutDown implements workqueue.
func (q *publishQueue) ShutDown() {
	q.TypedRateLimitingInterface.ShutDown()
	q.open()
}

// Forget implements workqueue: the controller forgets the retries of a pool that is in order.
func (q *publishQueue) Forget(pool string) {
	q.TypedRateLimitingInterface.Forget(pool)
	q.synced()
}
