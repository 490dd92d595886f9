// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package podshares

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/cluster/act"
	"gpu-dra-driver/pkg/cluster/controller"
	"gpu-dra-driver/pkg/cluster/read"
)

const (
	// pause is the time for which changes are collected.
	pause = 50 * time.Millisecond
	// retry is the pause after a template could not be written.
	retry = 30 * time.Second
	// mostTemplates is the number of templates in a namespace, so that a tenant cannot fill the API server.
	mostTemplates = 64
	// mostEvents is the number of pods of one template that get an Event.
	mostEvents = 10
	// reason has the reason of the Event on a pod whose template is missing.
	reason = "FailedShareTemplate"
)

// Options configure a Keeper.
type Options struct {
	Driver string
	// Grace is the time for which a template must be unused before its removal.
	Grace time.Duration
	// Events receives the Events on pods that wait for a template.
	Events record.EventRecorder
}

// Keeper writes the templates that pods name, and removes those that none names. One goroutine does all of its work.
type Keeper struct {
	o               Options
	client          kubernetes.Interface
	cluster         *controller.Controller
	pods, templates cache.SharedIndexInformer
	wake            chan struct{}
	limit           *rate.Limiter
	// failed has the times at which templates are written again, and unused since when no pod names one.
	failed, unused map[types.NamespacedName]time.Time
}

// New returns a Keeper beside a controller, which it follows. The controller does not run yet.
func New(client kubernetes.Interface, cluster *controller.Controller, o Options) *Keeper {
	label := Label(o.Driver)
	k := &Keeper{
		o:       o,
		client:  client,
		cluster: cluster,
		pods: read.Informer(client, labelled[*corev1.PodList]{client.CoreV1().Pods(metav1.NamespaceAll), label},
			"status.phase!=Succeeded,status.phase!=Failed", &corev1.Pod{}, trimPod),
		templates: read.Informer(client, labelled[*resourceapi.ResourceClaimTemplateList]{
			client.ResourceV1().ResourceClaimTemplates(metav1.NamespaceAll), label,
		}, "", &resourceapi.ResourceClaimTemplate{}, trimTemplate),
		wake:   make(chan struct{}, 1),
		limit:  rate.NewLimiter(act.Writes, act.Burst),
		failed: map[types.NamespacedName]time.Time{},
		unused: map[types.NamespacedName]time.Time{},
	}
	cluster.Follow(k.wake)
	return k
}

// labelled is a client that reads the objects with a label.
type labelled[L read.List] struct {
	read.Client[L]
	label string
}

// List implements read.Client.
func (l labelled[L]) List(ctx context.Context, o metav1.ListOptions) (L, error) {
	o.LabelSelector = l.label
	return l.Client.List(ctx, o)
}

// Watch implements read.Client.
func (l labelled[L]) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.LabelSelector = l.label
	return l.Client.Watch(ctx, o)
}

func trimPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		},
		Spec: corev1.PodSpec{ResourceClaims: pod.Spec.ResourceClaims},
	}, nil
}

func trimTemplate(object any) (any, error) {
	if template, ok := object.(*resourceapi.ResourceClaimTemplate); ok {
		template.ManagedFields, template.Annotations, template.OwnerReferences = nil, nil, nil
	}
	return object, nil
}

// Run keeps the templates until the context ends. Only the leader runs it.
func (k *Keeper) Run(ctx context.Context) error {
	for _, i := range []cache.SharedIndexInformer{k.pods, k.templates} {
		if err := controller.On(i, func(any, bool) { controller.Trigger(k.wake) }); err != nil {
			return nil // It fails only after the end.
		}
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	if !read.Start(ctx, &wg, k.pods, k.templates) {
		return nil
	}
	controller.Repeat(ctx, k.wake, pause, func() time.Duration { return k.pass(ctx, time.Now()) })
	return nil
}

// pass writes and removes templates, and returns the delay until more work is due.
func (k *Keeper) pass(ctx context.Context, now time.Time) (again time.Duration) {
	if k.cluster.Synced() != nil {
		return time.Second // The sizes of GPUs are unknown.
	}
	wanted := map[types.NamespacedName][]*corev1.Pod{}
	for _, pod := range read.All[*corev1.Pod](k.pods.GetStore()) {
		for _, c := range pod.Spec.ResourceClaims {
			if c.ResourceClaimTemplateName != nil && Named(*c.ResourceClaimTemplateName) {
				name := types.NamespacedName{Namespace: pod.Namespace, Name: *c.ResourceClaimTemplateName}
				wanted[name] = append(wanted[name], pod)
			}
		}
	}
	sizes, count := MemorySizes(k.cluster.Pools()), map[string]int{}
	again = k.sweep(ctx, wanted, count, now)
	maps.DeleteFunc(k.failed, func(name types.NamespacedName, _ time.Time) bool { return wanted[name] == nil })
	for _, name := range slices.SortedFunc(maps.Keys(wanted), compare) {
		if wait := k.failed[name].Sub(now); wait > 0 {
			again = controller.Sooner(again, wait)
			continue
		}
		if err := k.ensure(ctx, name, sizes, count); err != nil && ctx.Err() == nil {
			k.failed[name] = now.Add(retry)
			again = controller.Sooner(again, retry)
			klog.FromContext(ctx).Error(err, "A pod waits for its claim template; trying again", "template", name)
			for _, pod := range wanted[name][:min(len(wanted[name]), mostEvents)] {
				k.o.Events.Eventf(pod, corev1.EventTypeWarning, reason,
					"The claim template %s of this pod's share could not be written: %v", name.Name, err)
			}
		}
	}
	return again
}

func compare(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }

// sweep removes the templates that no pod has named for a while, and counts the others of each namespace.
func (k *Keeper) sweep(
	ctx context.Context, wanted map[types.NamespacedName][]*corev1.Pod, count map[string]int, now time.Time,
) (again time.Duration) {
	known := map[types.NamespacedName]bool{}
	for _, t := range read.All[*resourceapi.ResourceClaimTemplate](k.templates.GetStore()) {
		name := types.NamespacedName{Namespace: t.Namespace, Name: t.Name}
		if !Named(t.Name) {
			continue // A user's.
		}
		count[t.Namespace]++
		if wanted[name] != nil {
			delete(k.unused, name)
			continue
		}
		known[name] = true
		if k.unused[name].IsZero() {
			k.unused[name] = now
		}
		wait := k.unused[name].Add(k.o.Grace).Sub(now)
		if wait <= 0 {
			wait = retry
			if err := k.remove(ctx, t); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "An unused claim template stays; trying again")
			}
		}
		again = controller.Sooner(again, wait)
	}
	maps.DeleteFunc(k.unused, func(name types.NamespacedName, _ time.Time) bool { return !known[name] })
	return again
}

// ensure has a template exist with its content. A template cannot be changed, so it is removed, and written again in
// the next pass. Claims that were made of it stay.
func (k *Keeper) ensure(
	ctx context.Context, name types.NamespacedName, sizes []int64, count map[string]int,
) error {
	want := Template(k.o.Driver, name.Namespace, name.Name, sizes)
	cached, _, _ := k.templates.GetStore().GetByKey(name.String()) // A cache has no errors.
	found, exists := cached.(*resourceapi.ResourceClaimTemplate)
	switch {
	case want == nil && exists:
		return nil // The GPUs may come back.
	case want == nil:
		return errors.New("no node has a GPU of which it is a part; name an amount of memory, or wait for a node")
	case exists && equality.Semantic.DeepEqual(found.Spec, want.Spec):
		return nil
	case exists:
		return k.remove(ctx, found)
	case count[name.Namespace] >= mostTemplates:
		return fmt.Errorf("the namespace has %d templates of shares already; use fewer different amounts",
			mostTemplates)
	}
	if err := k.limit.Wait(ctx); err != nil {
		return err
	}
	count[name.Namespace]++
	client := k.client.ResourceV1().ResourceClaimTemplates(name.Namespace)
	made, err := client.Create(ctx, want, metav1.CreateOptions{})
	if err == nil && !equality.Semantic.DeepEqual(made.Spec, want.Spec) {
		return errors.Join(errors.New("the API server stores it with another content, because of its feature gate "+
			"DRAConsumableCapacity or of a mutating policy"), k.remove(ctx, made))
	}
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	// The cache is late, or the template lacks the label.
	if found, err = client.Get(ctx, name.Name, metav1.GetOptions{}); err != nil {
		return err
	}
	if !equality.Semantic.DeepEqual(found.Spec, want.Spec) {
		return errors.New("there is one of this name with another content; rename it")
	}
	return nil
}

// remove deletes a template as it is in the cache.
func (k *Keeper) remove(ctx context.Context, t *resourceapi.ResourceClaimTemplate) error {
	if err := k.limit.Wait(ctx); err != nil {
		return err
	}
	err := k.client.ResourceV1().ResourceClaimTemplates(t.Namespace).Delete(ctx, t.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &t.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete claim template %s/%s: %w", t.Namespace, t.Name, err)
	}
	return nil
}
