// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"gpu-dra-driver/internal/notify"
)

const (
	// repairDelay is the delay before another writer's edit or deletion is repaired. It must exceed the informer's lag,
	// because our own writes pass through the informer too.
	repairDelay = time.Second
	// retryMin and retryMax limit the pauses between failed attempts.
	retryMin, retryMax = 200 * time.Millisecond, 15 * time.Second
)

// session is one run of the library's controller, while this instance is the newest.
type session struct {
	node    types.UID // the slices' owner, "" until the Node was read
	cancel  context.CancelFunc
	done    chan struct{}
	updates *notify.Newest[*resourceslice.DriverResources]
}

// startSession starts a controller in the background, because without an API server that takes long. The controller
// starts with resources: without them it would delete the published slices.
func (p *Publisher) startSession(ctx context.Context) *session {
	ctx, cancel := context.WithCancel(ctx)
	a := &acceptance{p: p}
	var retry <-chan time.Time
	accepted := func(wanted *resourceslice.DriverResources) *resourceslice.DriverResources {
		pools, kept := a.settle(ctx, wanted.Pools)
		if retry = nil; a.refusing {
			retry = time.After(retryInterval)
		}
		return p.settled(pools, kept)
	}
	s := &session{cancel: cancel, done: make(chan struct{}),
		updates: notify.NewNewest[*resourceslice.DriverResources]()}
	go func() {
		defer close(s.done)
		select {
		case <-ctx.Done():
			return
		case <-s.updates.Changed:
		}
		wanted, _ := s.updates.Take()
		resources := accepted(wanted)
		owner := &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: p.o.Node}
		if err := p.createFirst(ctx, owner, resources.Pools); err != nil {
			klog.FromContext(ctx).Info("The first slices are left to the controller, which takes a second longer",
				"err", err)
		}
		controller, err := resourceslice.StartController(ctx, resourceslice.Options{
			DriverName: p.o.Driver, KubeClient: p.o.Client, Owner: owner, Resources: resources,
			Queue: newQueue(p), SyncDelay: new(repairDelay), ErrorHandler: p.failed,
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
			case <-s.updates.Changed:
				if newest, ok := s.updates.Take(); ok {
					wanted = newest
					controller.Update(accepted(wanted))
				}
			case <-retry:
				controller.Update(accepted(wanted))
			}
		}
	}()
	return s
}

func (s *session) stop() {
	s.cancel()
	<-s.done
}

// queue reports as synced that the pool of the devices for use has no errors; monitor devices alone are not a success.
type queue struct {
	workqueue.TypedRateLimitingInterface[string]
	p *Publisher
}

func newQueue(p *Publisher) *queue {
	return &queue{workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryMin, retryMax)), p}
}

// Forget implements workqueue. The controller calls it for a pool without errors.
func (q *queue) Forget(pool string) {
	q.TypedRateLimitingInterface.Forget(pool)
	if pool == q.p.pool {
		q.p.synced()
	}
}
