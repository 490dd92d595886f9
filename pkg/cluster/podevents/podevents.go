// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package podevents

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"gpu-dra-driver/pkg/cluster/act"
	"gpu-dra-driver/pkg/cluster/controller"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/waiting"
)

const (
	// Patience is the time that a pod waits before it gets an Event.
	Patience = 20 * time.Second
	// maxAnswerAge is the age at which an answer is asked for again.
	maxAnswerAge = 30 * time.Second
	// minWritePause is the least time between two writes of one Event.
	minWritePause = time.Minute
	// renewAfter is the age at which an Event with the same answer is written again, because API servers remove Events
	// that are not written for an hour.
	renewAfter = 30 * time.Minute
)

// workPace limits the work.
var workPace = act.Pace{Idle: 2 * time.Second, Busy: 100 * time.Millisecond, Share: 20, Retry: minWritePause}

// Cluster has the objects that the leading controller knows.
type Cluster interface {
	act.Cluster
	waiting.Claims
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
	rules   *read.Rules

	// refused has the Events about claims that were refused, and failed those about pods that were.
	refused, failed cache.SharedIndexInformer

	// lacking are the pods with a node that lack devices for an extended resource, at a time.
	lacking   []*corev1.Pod
	lackingAt time.Time

	kinds   map[uint64]*kind
	keys    map[types.UID]cachedKey
	owners  map[types.UID]*owner
	written map[types.UID]written
	// woken is the time of the last Wake, and wakePause the least time until the next one.
	woken     time.Time
	wakePause time.Duration
	// asked has the turns of answers.
	asked     act.Turns
	templates map[types.NamespacedName]template
}

// written is the Event of a pod or an owner.
type written struct {
	sense string
	at    time.Time
}

// The reasons of the Events of kube-controller-manager about claims and pods that the API server refuses.
const claimRefused, podRefused = "FailedResourceClaimCreation", "FailedCreate"

// byUID is the index of Events by the object that they are about.
const byUID = "uid"

// New returns a Keeper, which makes no request yet.
func New(client kubernetes.Interface, rules *read.Rules, cluster Cluster, o Options) *Keeper {
	events := client.CoreV1().Events(metav1.NamespaceAll)
	k := &Keeper{
		o:         o,
		cluster:   cluster,
		client:    client,
		rules:     rules,
		refused:   read.Informer(client, events, "reason="+claimRefused, &corev1.Event{}, trimEvent),
		failed:    read.Informer(client, events, "reason="+podRefused, &corev1.Event{}, trimEvent),
		kinds:     map[uint64]*kind{},
		keys:      map[types.UID]cachedKey{},
		owners:    map[types.UID]*owner{},
		written:   map[types.UID]written{},
		asked:     act.Turns{},
		templates: map[types.NamespacedName]template{},
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
	return act.New(k.cluster, k, workPace).Run(ctx, k.refused, k.failed)
}

// Reconcile implements act.Actor. It asks for at most one answer.
func (k *Keeper) Reconcile(
	ctx context.Context, objects controller.Objects, now time.Time,
) (due []act.Write, more bool) {
	k.group(objects, now)
	if next := k.next(now); next != nil {
		due, more = k.ask(ctx, objects, next, now), true
	}
	k.follow(ctx, objects, now)
	return append(due, k.due(now)...), more
}
