// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/wire"
)

// Cordons follows the annotations of the plugin's Node that take GPUs out of use: cordons, and reservations, which end.
// The last ones count while the API server does not answer, and after a deletion of the Node.
type Cordons struct {
	client       kubernetes.Interface
	driver, node string
	reports      notify.Reporter
	changed      notify.Trigger

	mu sync.Mutex
	// The UID of the Node is "" until it was read.
	uid     types.UID
	deleted bool
	// cordons is nil until the Node was read.
	cordons      wire.Cordons
	reservations wire.Reservations
	// next fires changed when a reservation begins to count or ends.
	next *time.Timer
	// lastError is reported once.
	lastError string
}

// NewCordons fires changed after the first read and after each change.
func NewCordons(
	client kubernetes.Interface, driver, node string, reports notify.Reporter, changed notify.Trigger,
) *Cordons {
	return &Cordons{client: client, driver: driver, node: node, reports: reports, changed: changed}
}

// Cordoned returns the cordons; false before the first read.
func (c *Cordons) Cordoned() (wire.Cordons, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cordons, c.cordons != nil
}

// Reserved returns the addresses of the GPUs that are reserved now.
func (c *Cordons) Reserved() sets.Set[string] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next != nil {
		c.next.Stop()
	}
	now := time.Now()
	reserved, next := c.reservations.At(now)
	if !next.IsZero() {
		c.next = time.AfterFunc(next.Sub(now), c.changed.Fire)
	}
	return reserved
}

// Owner returns the UID of the Node, "" until it was read, and whether the Node was deleted since.
func (c *Cordons) Owner() (uid types.UID, deleted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.uid, c.deleted
}

// Run follows the Node until the context ends.
func (c *Cordons) Run(ctx context.Context) {
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.next != nil {
			c.next.Stop()
		}
	}()
	informer := coreinformers.NewFilteredNodeInformer(c.client, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, c.node).String()
	})
	// These fail only after the start. A Node lists the node's images, which takes much memory.
	_ = informer.SetTransform(func(o any) (any, error) {
		if n, ok := o.(*corev1.Node); ok {
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID,
				ResourceVersion: n.ResourceVersion, Annotations: n.Annotations}}, nil
		}
		return o, nil
	})
	_ = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		klog.FromContext(ctx).Info("Following the Node was interrupted", "err", err)
		if _, known := c.Cordoned(); !known {
			c.report(&claimerror.Error{
				Reason: claimerror.HostFailure, Attempt: "read which GPUs of the node are cordoned", Cause: err,
				Remedy: "nothing is published until it succeeds; the plugin needs the right to list and watch nodes",
			})
		}
	})
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: c.set, UpdateFunc: func(_, now any) { c.set(now) }, DeleteFunc: func(any) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.deleted = true
		},
	})
	informer.RunWithContext(ctx)
}

func (c *Cordons) set(o any) {
	node, ok := o.(*corev1.Node)
	if !ok || node.Name != c.node {
		return
	}
	found, err := wire.ParseCordons(c.driver, node.Annotations)
	if err != nil {
		c.report(&claimerror.Error{
			Reason:  claimerror.InvalidParameters,
			Attempt: "read which GPUs of the node are cordoned",
			Cause:   err,
			Remedy: fmt.Sprintf("correct the annotations of Node %s, or use kubectl gpu cordon, drain and uncordon",
				c.node),
		})
	}
	reservations, err := wire.ParseReservations(c.driver, node.Annotations)
	if err != nil {
		c.report(&claimerror.Error{
			Reason:  claimerror.InvalidParameters,
			Attempt: "read which GPUs of the node are reserved for a pod of higher priority",
			Cause:   err,
			Remedy: fmt.Sprintf("remove the annotations of Node %s; the controller sets them again if it needs them",
				c.node),
		})
	}
	c.mu.Lock()
	same := c.cordons != nil && maps.Equal(c.cordons, found) &&
		maps.EqualFunc(c.reservations, reservations, time.Time.Equal)
	c.cordons, c.reservations, c.uid, c.deleted = found, reservations, node.UID, false
	c.mu.Unlock()
	if !same {
		c.changed.Fire()
	}
}

// report reports an error once.
func (c *Cordons) report(err *claimerror.Error) {
	c.mu.Lock()
	repeated := c.lastError == err.Error()
	c.lastError = err.Error()
	c.mu.Unlock()
	if !repeated {
		c.reports.Report(err)
	}
}
