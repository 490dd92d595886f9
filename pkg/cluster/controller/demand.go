// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/demand/objects"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/waiting"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire/demand"
	"gpu-dra-driver/pkg/wire/schedulerfault"
)

// demandPause is the least time between two passes of the demandKeeper. It limits the time of a first pod too.
const demandPause = 200 * time.Millisecond

// demandKeeper writes the MIG profiles and groups that the cluster asks for, the nodes that serve them, and the sample
// nodes into a ConfigMap, which the nodes follow.
type demandKeeper struct {
	driver, name            string
	sharesOnDemand          bool
	most                    int
	events                  record.EventRecorder
	server                  *atomic.Pointer[schedulerfault.Version]
	configMaps              typedcorev1.ConfigMapInterface
	claims, templates, pods cache.SharedIndexInformer
	classes                 cache.Indexer
	nodes                   *nodes
	// machines has the nodes, or none without the right to read them.
	machines  cache.Indexer
	selectors *ask.Evaluator
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

func (c *Controller) newDemandKeeper(l *leading) *demandKeeper {
	templates := c.client.ResourceV1().ResourceClaimTemplates(metav1.NamespaceAll)
	return &demandKeeper{
		driver: c.driver, name: c.o.DemandConfigMap, sharesOnDemand: c.o.SharesOnDemand, most: c.o.MaxServingNodes, events: c.o.Events, server: &c.view.server, configMaps: c.client.CoreV1().ConfigMaps(c.o.Namespace), claims: l.claims,
		templates: read.Informer(c.client, templates, "", &resourceapi.ResourceClaimTemplate{}, trimTemplate),
		pods:      l.pods, classes: c.classes.GetIndexer(), nodes: c.nodes, machines: l.nodes.GetIndexer(),
		selectors: c.view.asker.Evaluator, dirty: c.demandDirty,
		samples: sampleNodes{grace: c.o.Grace}, unplaced: map[types.NamespacedName]unplaced{},
	}
}

// run keeps the ConfigMap up to date until the context ends. Each pass covers all changes before it.
func (k *demandKeeper) run(ctx context.Context) {
	counted := k.follow()
	var wg sync.WaitGroup
	defer wg.Wait()
	if !read.Start(ctx, &wg, k.templates) || !cache.WaitForCacheSync(ctx.Done(), counted...) {
		return
	}
	repeat(ctx, k.dirty, demandPause, func() time.Duration {
		again, err := k.reconcile(ctx)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "The nodes keep the devices that they publish; trying again")
			return retryDemand
		}
		return sooner(demandReread, again)
	})
}

// follow counts what claims, templates and pods ask for, and what claims hold. A change of what objects ask for causes
// a pass, and a pod that begins to wait. Other writes cause no work: other programs may write the status of a claim
// hundreds of times a second. The results report whether all first objects are counted.
func (k *demandKeeper) follow() (counted []cache.InformerSynced) {
	replace := func(was, is any) {
		if last, ok := was.(cache.DeletedFinalStateUnknown); ok {
			was = last.Obj
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		k.holdings.Replace(was, is, k.driver)
		last, next := unplaced{asks: objects.AsksOf(was, k.driver)}, unplaced{asks: objects.AsksOf(is, k.driver)}
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
			trigger(k.dirty)
		}
	}
	for _, i := range []cache.SharedIndexInformer{k.claims, k.templates, k.pods} {
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
	// retryDemand is the pause after a failed write.
	retryDemand = 2 * time.Second
	// demandReread is the age at which the ConfigMap is read again, because other clients can change or delete it.
	demandReread = 30 * time.Second
)

// reconcile returns the delay until the next pass if nothing changes; 0: none.
func (k *demandKeeper) reconcile(ctx context.Context) (again time.Duration, err error) {
	if k.written == nil || time.Since(k.readAt) >= demandReread {
		found, err := k.configMaps.Get(ctx, k.name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			found = &corev1.ConfigMap{}
		case err != nil:
			return 0, fmt.Errorf("get ConfigMap %s: %w", k.name, err)
		}
		k.written, k.readAt = found, time.Now()
	}
	exists := k.written.ResourceVersion != ""
	last, err := demand.Decode(k.written.Data)
	if err != nil {
		last = k.last
	}
	asked, everywhere, waiting := k.asked(ctx)
	pools := k.nodes.pools()
	samples, again := k.samples.choose(last.Samples, pools, time.Now())
	published := map[string]bool{}
	for _, what := range slices.AppendSeq(slices.Clone(asked), maps.Keys(last.Since)) {
		published[what] = true
	}
	k.limit(len(pools))
	serving, grow := k.serving(last.Serving, published, everywhere, waiting, time.Now())
	again = sooner(again, grow)
	next, changed := demand.Next(last, asked, len(pools), samples, serving, time.Now())
	k.last = next
	k.report()
	if exists && err == nil && !changed {
		return again, nil
	}
	want := k.written.DeepCopy()
	want.Name, want.Data = k.name, demand.Encode(next)
	if !exists {
		k.written, err = k.configMaps.Create(ctx, want, metav1.CreateOptions{})
	} else {
		k.written, err = k.configMaps.Update(ctx, want, metav1.UpdateOptions{})
	}
	if err != nil {
		k.written = nil
		return 0, fmt.Errorf("write ConfigMap %s: %w", k.name, err)
	}
	klog.FromContext(ctx).V(2).Info("Wrote the MIG profiles and groups that the cluster asks for", "configMap", k.name,
		"asked", slices.Sorted(maps.Keys(next.Since)), "serving", next.Serving, "samples", next.Samples)
	return again, nil
}

// asked returns the profiles and groups that the cluster asks for. All nodes publish those of everywhere, because an
// object does not wait for them. Pods without a node wait for those of waiting.
func (k *demandKeeper) asked(ctx context.Context) (asked, everywhere []string, waiting map[string]demand.Waiting) {
	k.mu.Lock()
	asks := k.asks.All()
	k.mu.Unlock()
	c := objects.Cluster{Driver: k.driver, Classes: read.All[*resourceapi.DeviceClass](k.classes), Asked: asks}
	for kind := range pool.Publishers(k.nodes.partitioned()) {
		if kind.Type == gpu.KindMIG && gpu.ValidProfile(kind.Profile) && !slices.Contains(c.Known, kind.Profile) {
			c.Known = append(c.Known, kind.Profile)
		}
	}
	slices.Sort(c.Known)
	asked, everywhere = c.Demand(k.selectors.Read), c.Everywhere().Demand(k.selectors.Read)
	if !k.sharesOnDemand {
		asked, everywhere = with(asked, demand.Shares), with(everywhere, demand.Shares)
	}
	return asked, everywhere, k.waiting(ctx, c)
}

func with(all []string, one string) []string {
	if slices.Contains(all, one) {
		return all
	}
	return append(all, one)
}
