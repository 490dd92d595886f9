// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"context"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"gpu-dra-driver/pkg/cluster/act"
	"gpu-dra-driver/pkg/cluster/read"
)

const (
	// patience is the time that a pod waits before others are evicted for it, so that the scheduler has said what it
	// lacks.
	patience = 3 * time.Second
	// again is the time until victims are searched once more for a pod, after an eviction or without any.
	again = time.Minute
	// refused is this time after an eviction that the API server refused, and none the time after a search without
	// victims. A pod whose eviction was refused is spared for refusedFor.
	refused, none = 30 * time.Second, 20 * time.Second
	refusedFor    = 5 * time.Minute
	// aheadFor is the time for which a pod counts that the scheduler tries before another one.
	aheadFor = 5 * time.Minute
	// rememberFor is the time after which an eviction is forgotten, although victims have not left.
	rememberFor = 10 * time.Minute
	// longestVain is the longest pause after an eviction that did not place its pod. The first one is again.
	longestVain = time.Hour
	// tick is the least pause between two steps.
	tick = time.Second
	// limit is the time for one search.
	limit = 10 * time.Second
	// mostWakes is the number of times that the scheduler is woken after an eviction, each after twice the time. A try
	// of the scheduler can come before it knows that the devices are free, and then no other event makes it try again.
	mostWakes = 4
	// mostBefore is the number of pods considered that the scheduler tries first.
	mostBefore = 500
	// searched is the number of nodes in one search.
	searched = 200
)

// pace limits the work.
var pace = act.Pace{Idle: tick, Busy: tick, Share: 5, Retry: tick}

// Options configure a Keeper.
type Options struct {
	// Driver is the name of the driver for whose devices pods are evicted.
	Driver string
	// Namespaces and Classes are namespaces and PriorityClasses whose pods are exempt.
	Namespaces, Classes []string
	// Violate deletes victims whose eviction a disruption budget refuses, if there are no others.
	Violate bool
	// Groups reads Workloads of Kueue and PodGroups, whose pods are exempt. Without it, their pods are as others.
	Groups dynamic.Interface
	// Metrics reads the metrics of the API server, or is nil.
	Metrics rest.Interface
}

// Keeper evicts pods. One goroutine does all of its work.
type Keeper struct {
	o       Options
	cluster act.Cluster
	client  kubernetes.Interface
	rules   *read.Rules
	events  record.EventRecorder

	budgets cache.SharedIndexInformer

	began time.Time
	// due is when victims are searched next for a pod, and for pods that ask for the same.
	due   map[types.UID]time.Time
	alike map[uint64]time.Time
	// room is since when a pod waits although claims that no pod uses count as released.
	room map[types.UID]time.Time
	// searched is when victims were last searched for a pod.
	searched map[types.UID]time.Time
	// ahead has the pods that are tried before one for which victims are searched, and first since when an owner has
	// such pods of which none has started.
	ahead map[types.UID]ahead
	first map[string]time.Time
	// refusals has the pods that the API server did not evict.
	refusals map[types.UID]refusal
	// managers has the answers whether managers of pods exist.
	managers map[manager]known
	// vain has the evictions that did not place their pod, by its owner.
	vain map[string]vain
	// evictions has the eviction of each node whose pod does not run yet.
	evictions map[string]*eviction
	// turn counts the searches for a pod, of which each looks at another part of a large cluster. turns has the turns
	// of namespaces.
	turn  map[types.UID]int
	turns act.Turns
	// enabled means that the scheduler preempts for devices, and read is when that was last asked.
	enabled bool
	read    time.Time
	// swept is when reservations of others were last removed, and alone when the last one was not followed by a plugin.
	// woke is when the scheduler was last made to try pods.
	swept, alone, woke time.Time
}

// refusal is about a pod that the API server did not evict. The pod is spared unless it can be an error of a moment.
type refusal struct {
	spared bool
	until  time.Time
}

// ahead is about a pod that is tried first: the pods that replace it count for it.
type ahead struct {
	owner string
	since time.Time
}

// vain are evictions for the pods of one owner that did not place them. No pod is evicted for another one until a time.
type vain struct {
	count int
	until time.Time
}

// eviction is the set of victims of one pod.
type eviction struct {
	pod   types.UID
	owner string
	// judged means that it is known whether it placed its pod.
	judged bool
	// victims is nil while GPUs are reserved and nothing is evicted yet.
	victims map[types.UID]bool
	at      time.Time
	// ends means that the reservation ends before its eviction.
	ends bool
	// reservation is nil if the devices of the victims come free at once, and after its end.
	reservation *reservation
	// gone is when the last victim was gone and the reservation ended, and zero before. woken counts how often the
	// scheduler was woken since.
	gone  time.Time
	woken int
}

// New returns a Keeper, which makes no request yet.
func New(
	client kubernetes.Interface, rules *read.Rules, cluster act.Cluster, events record.EventRecorder, o Options,
) *Keeper {
	return &Keeper{
		o:       o,
		cluster: cluster,
		client:  client,
		rules:   rules,
		events:  events,
		budgets: read.Informer(client, client.PolicyV1().PodDisruptionBudgets(metav1.NamespaceAll), "",
			&policyv1.PodDisruptionBudget{}, trimBudget),
		due:       map[types.UID]time.Time{},
		alike:     map[uint64]time.Time{},
		room:      map[types.UID]time.Time{},
		evictions: map[string]*eviction{},
		turn:      map[types.UID]int{},
		turns:     act.Turns{},
		searched:  map[types.UID]time.Time{},
		ahead:     map[types.UID]ahead{},
		first:     map[string]time.Time{},
		refusals:  map[types.UID]refusal{},
		vain:      map[string]vain{},
		managers:  map[manager]known{},
	}
}

// Run evicts pods until the context ends. Only the leader runs it.
func (k *Keeper) Run(ctx context.Context) error {
	k.began = time.Now()
	return act.New(k.cluster, k, pace).Run(ctx, k.budgets)
}

func trimBudget(object any) (any, error) {
	if o, ok := object.(metav1.Object); ok {
		o.SetManagedFields(nil)
		o.SetAnnotations(nil)
	}
	return object, nil
}
