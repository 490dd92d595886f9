// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/controller"
	"gpu-dra-driver/pkg/cluster/demand/objects"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/waiting"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire/demand"
)

// pause is the least time between two passes. It limits the time of a first pod too.
const pause = 200 * time.Millisecond

// Options are the settings of a Keeper.
type Options struct {
	Driver string
	// ConfigMap of Namespace is written.
	ConfigMap, Namespace string
	// SharesOnDemand means that a claim for a share waits for a device that claims can share. Without it such a claim
	// would get a whole GPU, so all nodes have shares.
	SharesOnDemand bool
	// MaxServingNodes limits the nodes with partitions, groups or shares. 0: no limit, but for servers whose scheduler
	// takes too long with many.
	MaxServingNodes int
	// Grace is the time for which a layout that no node has keeps its sample node.
	Grace time.Duration
	// Events may be nil.
	Events record.EventRecorder
}

// Keeper writes the MIG profiles and groups that the cluster asks for, the nodes that serve them, and the sample nodes
// into a ConfigMap, which the nodes follow.
type Keeper struct {
	Options
	cluster    *controller.Controller
	configMaps typedcorev1.ConfigMapInterface
	templates  cache.SharedIndexInformer
	selectors  *ask.Evaluator
	// asks and holdings are kept by the informers' handlers, so that a pass does not look at each claim.
	mu       sync.Mutex
	asks     objects.Asks
	holdings objects.Holdings
	// unplaced has the pods without a node. The others have claims, or nodes that need no more devices for them.
	unplaced map[types.NamespacedName]unplaced
	dirty    chan struct{}
	// written is the ConfigMap as of readAt; last is its last readable content.
	written *corev1.ConfigMap
	readAt  time.Time
	last    demand.State
	samples sampleNodes
	servers demand.Serving
	// limitedAt is the time of the last Event about the limit of serving nodes.
	limitedAt time.Time
}

// unplaced has the requests of a pod without a node. The end of a pod in the cache can show it with a node.
type unplaced struct {
	asks []objects.Ask
	// tried means that the scheduler found no node for it.
	tried bool
}

// New returns a Keeper beside a controller, which it follows. The controller does not run yet.
func New(client kubernetes.Interface, cluster *controller.Controller, o Options) *Keeper {
	templates := client.ResourceV1().ResourceClaimTemplates(metav1.NamespaceAll)
	k := &Keeper{
		Options:    o,
		cluster:    cluster,
		configMaps: client.CoreV1().ConfigMaps(o.Namespace),
		templates:  read.Informer(client, templates, "", &resourceapi.ResourceClaimTemplate{}, trimTemplate),
		selectors:  cluster.ClusterView().Asker.Evaluator,
		dirty:      make(chan struct{}, 1),
		samples:    sampleNodes{grace: o.Grace},
		unplaced:   map[types.NamespacedName]unplaced{},
	}
	cluster.Follow(k.dirty)
	return k
}

// Run keeps the ConfigMap up to date until the context ends. Each pass covers all changes before it. Only the leader
// runs it.
func (k *Keeper) Run(ctx context.Context) error {
	counted := k.follow()
	var wg sync.WaitGroup
	defer wg.Wait()
	if !read.Start(ctx, &wg, k.templates) || !cache.WaitForCacheSync(ctx.Done(), counted...) {
		return nil
	}
	controller.Repeat(ctx, k.dirty, pause, func() time.Duration {
		again, err := k.reconcile(ctx)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "The nodes keep the devices that they publish; trying again")
			return retry
		}
		return controller.Sooner(reread, again)
	})
	return nil
}

// follow counts what claims, templates and pods ask for, and what claims hold. A change of what objects ask for causes
// a pass, and a pod that begins to wait. Other writes cause no work: other programs may write the status of a claim
// hundreds of times a second. The results report whether all first objects are counted.
func (k *Keeper) follow() (counted []cache.InformerSynced) {
	replace := func(was, is any) {
		if last, ok := was.(cache.DeletedFinalStateUnknown); ok {
			was = last.Obj
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		k.holdings.Replace(was, is, k.Driver)
		last, next := unplaced{asks: objects.AsksOf(was, k.Driver)}, unplaced{asks: objects.AsksOf(is, k.Driver)}
		if pod, ok := cmp.Or(is, was).(*corev1.Pod); ok {
			name := ask.NameOf(pod)
			last = k.unplaced[name]
			if is == nil || pod.Spec.NodeName != "" || pod.Status.Phase == corev1.PodFailed {
				next = unplaced{}
				delete(k.unplaced, name)
			} else {
				next.tried = waiting.SaidOf(pod).Tried
				k.unplaced[name] = next
			}
		}
		if k.asks.Replace(last.asks, next.asks) || next.tried && !last.tried {
			controller.Trigger(k.dirty)
		}
	}
	for _, i := range []cache.SharedIndexInformer{k.cluster.Claims, k.templates, k.cluster.Pods} {
		handler, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(o any) { replace(nil, o) }, UpdateFunc: replace, DeleteFunc: func(o any) { replace(o, nil) },
		})
		if err == nil { // It fails only after the end.
			counted = append(counted, handler.HasSynced)
		}
	}
	return counted
}

const (
	// retry is the pause after a failed write.
	retry = 2 * time.Second
	// reread is the age at which the ConfigMap is read again, because other clients can change or delete it.
	reread = 30 * time.Second
)

// reconcile returns the delay until the next pass if nothing changes; 0: none.
func (k *Keeper) reconcile(ctx context.Context) (again time.Duration, err error) {
	if k.written == nil || time.Since(k.readAt) >= reread {
		found, err := k.configMaps.Get(ctx, k.ConfigMap, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			found = &corev1.ConfigMap{}
		case err != nil:
			return 0, fmt.Errorf("get ConfigMap %s: %w", k.ConfigMap, err)
		}
		k.written, k.readAt = found, time.Now()
	}
	exists := k.written.ResourceVersion != ""
	last, err := demand.Decode(k.written.Data)
	if err != nil {
		last = k.last
	}
	asked, everywhere, waiting := k.asked(ctx)
	pools := k.cluster.Pools()
	samples, again := k.samples.choose(last.Samples, pools, time.Now())
	published := map[string]bool{}
	for _, what := range slices.AppendSeq(slices.Clone(asked), maps.Keys(last.Since)) {
		published[what] = true
	}
	k.limit(len(pools), k.cluster.Server())
	choice, grow := k.serving(last, published, everywhere, samples, waiting, time.Now())
	choice.Nodes, again = len(pools), controller.Sooner(again, grow)
	next, changed := demand.Next(last, asked, choice, time.Now())
	k.last = next
	k.report()
	if exists && err == nil && !changed {
		return again, nil
	}
	want := k.written.DeepCopy()
	want.Name, want.Data = k.ConfigMap, demand.Encode(next)
	if !exists {
		k.written, err = k.configMaps.Create(ctx, want, metav1.CreateOptions{})
	} else {
		k.written, err = k.configMaps.Update(ctx, want, metav1.UpdateOptions{})
	}
	if err != nil {
		k.written = nil
		return 0, fmt.Errorf("write ConfigMap %s: %w", k.ConfigMap, err)
	}
	klog.FromContext(ctx).V(2).Info("Wrote the MIG profiles and groups that the cluster asks for", "configMap",
		k.ConfigMap,
		"asked", slices.Sorted(maps.Keys(next.Since)), "serving", next.Serving, "gpus", next.GPUs,
		"samples", next.Samples)
	return again, nil
}

// asked returns the profiles and groups that the cluster asks for. All nodes publish those of everywhere, because an
// object does not wait for them. Pods without a node wait for those of waiting.
func (k *Keeper) asked(ctx context.Context) (asked, everywhere []string, waiting map[string]demand.Waiting) {
	k.mu.Lock()
	asks := k.asks.All()
	k.mu.Unlock()
	if !k.SharesOnDemand {
		asks = append(asks, objects.Ask{Held: demand.Shares, Everywhere: true})
	}
	c := objects.Cluster{Driver: k.Driver, Classes: read.All[*resourceapi.DeviceClass](k.cluster.Classes.GetIndexer()),
		Asked: asks}
	for kind := range pool.Publishers(k.cluster.Partitioned()) {
		if kind.Type == gpu.KindMIG && gpu.ValidProfile(kind.Profile) && !slices.Contains(c.Known, kind.Profile) {
			c.Known = append(c.Known, kind.Profile)
		}
	}
	slices.Sort(c.Known)
	return c.Demand(k.selectors.Read), c.Everywhere().Demand(k.selectors.Read), k.waiting(ctx, c)
}

func trimTemplate(object any) (any, error) {
	if template, ok := object.(*resourceapi.ResourceClaimTemplate); ok {
		template.ManagedFields, template.Labels, template.Annotations, template.OwnerReferences = nil, nil, nil, nil
		template.Spec.ObjectMeta = metav1.ObjectMeta{}
		template.Spec.Spec.Devices.Config, template.Spec.Spec.Devices.Constraints = nil, nil
	}
	return object, nil
}
