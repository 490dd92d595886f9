// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	resourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/cluster/deviceclasses"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/selector"
)

// cacheLag is the time for a cache to receive another program's write.
const cacheLag = time.Second

// chartLag is the time that Helm has to write the chart's class or, at the end of the release, to end the controller.
const chartLag = 10 * time.Second

// classReconciler creates and removes DeviceClasses.
type classReconciler struct {
	options deviceclasses.Options
	grace   time.Duration

	nodes *nodes
	view  *viewKeeper
	// existing and known are the caches of classes and claims.
	existing, known cache.Indexer
	client          kubernetes.Interface

	// made holds when this instance created a class, or found it created, until the cache receives it.
	made map[string]time.Time
	// chart is the absence of the chart's class.
	chart absence
	// unwanted holds when to check the users of each of our classes without devices.
	unwanted map[string]time.Time
	// dropsResourceNames means that the API server's last answer to a write lacked the extended resource name.
	dropsResourceNames bool
	reported           map[string]bool
	resources          *servedResources
}

// maxClasses keeps faulty nodes from filling the API server with classes. It bounds the creation only.
const maxClasses = 500

// reconcile creates and removes classes. It returns the delay until the next run if nothing changes; 0: none.
func (k *classReconciler) reconcile(ctx context.Context) (again time.Duration, err error) {
	var errs []error
	done := func(wait time.Duration, err error) {
		errs = append(errs, err)
		again = Sooner(again, wait)
	}
	ours := map[string]*resourceapi.DeviceClass{}
	for _, class := range read.All[*resourceapi.DeviceClass](k.existing) {
		if k.options.Ours(class) {
			ours[class.Name] = class
		}
	}
	wanted, problems := deviceclasses.Build(pool.Publishers(k.nodes.Possible()), ours, k.options)
	// Classes of devices that are gone again are not looked up.
	maps.DeleteFunc(k.made, func(_ string, at time.Time) bool { return time.Since(at) >= cacheLag })
	room := maxClasses - len(ours)
	for _, want := range wanted {
		if ours[want.Name] == nil && want.Name != k.options.Driver {
			if want.Nodes == 0 || room <= 0 {
				problems = append(problems, fmt.Errorf("no DeviceClass %s: only nodes with too many kinds publish "+
					"its devices, or there are %d classes. Look for a node that publishes wrong models or profiles",
					want.Name, maxClasses))
				continue
			}
			room--
		}
		delete(ours, want.Name) // The remaining classes are unwanted.
		done(k.put(ctx, want.DeviceClass))
	}
	for _, p := range problems {
		if !k.reported[p.Error()] && len(k.reported) < maxClasses {
			k.reported[p.Error()] = true
			klog.FromContext(ctx).Error(p, "A kind of device gets no DeviceClass; claims can select it by CEL")
		}
	}
	done(k.removeUnwanted(ctx, ours))
	done(0, k.refresh(ctx))
	return again, errors.Join(errs...)
}

// refreshed is the annotation that refresh changes.
const refreshed = "gpu-dra-driver/refreshed"

// refresh writes the classes whose extended resource another class gave up. The scheduler forgets a resource with one
// of its classes, and finds the other class only at an event about it; until then every pod waits for "Insufficient".
func (k *classReconciler) refresh(ctx context.Context) (err error) {
	seen := k.resources.take() // Before the cache is read, so that a later event is not lost.
	now, lost := map[servedResource]*resourceapi.DeviceClass{}, map[string]bool{}
	for _, class := range read.All[*resourceapi.DeviceClass](k.existing) {
		if one, ok := resourceOf(class); ok {
			now[one] = class
		}
	}
	for one := range seen {
		if now[one] == nil {
			lost[one.resource] = true
		}
	}
	defer func() {
		for one := range seen {
			if err != nil || now[one] != nil {
				k.resources.add(one)
			}
		}
	}()
	for one, class := range now {
		if !lost[one.resource] || !k.view.current.Load().Concerns(class) {
			continue
		}
		err := rewrite(ctx, k.client.ResourceV1(), class)
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("refresh DeviceClass %s, whose extended resource another class gave up: %w", class.Name,
				err)
		}
		klog.FromContext(ctx).Info("Refreshed a DeviceClass, because another one with its extended resource is gone",
			"class", class.Name)
	}
	return nil
}

// rewrite writes a class again, which is an event for the scheduler.
func rewrite(ctx context.Context, resources resourcev1.ResourceV1Interface, class *resourceapi.DeviceClass) error {
	class = class.DeepCopy()
	metav1.SetMetaDataAnnotation(&class.ObjectMeta, refreshed, time.Now().UTC().Format(time.RFC3339Nano))
	_, err := resources.DeviceClasses().Update(ctx, class, metav1.UpdateOptions{})
	return err
}

// Wake has the scheduler try all pods again that wait for devices. It tries them again when a DeviceClass changes,
// whichever that is (EventsToRegister of its plugin DynamicResources), and otherwise after five minutes at the
// earliest.
func (c *Controller) Wake(ctx context.Context) error {
	var ours *resourceapi.DeviceClass
	for _, class := range read.All[*resourceapi.DeviceClass](c.Classes.GetIndexer()) {
		if c.view.current.Load().Concerns(class) && (ours == nil || class.Name < ours.Name) {
			ours = class
		}
	}
	if ours == nil {
		return fmt.Errorf("no DeviceClass of driver %s can be written again, so the scheduler tries waiting pods "+
			"after some minutes", c.driver)
	}
	if err := rewrite(ctx, c.client.ResourceV1(), ours); err != nil {
		return fmt.Errorf("write DeviceClass %s again, so that the scheduler tries waiting pods: %w", ours.Name, err)
	}
	return nil
}

// servedResource is a class and its extended resource.
type servedResource struct{ class, resource string }

// maxResources is the number of servedResources to remember. A cluster has a few; of more, any are forgotten.
const maxResources = 1000

// servedResources holds every servedResource that an event showed, also of classes that were gone at once. An instance
// that does not lead forgets none but those above the limit. It is safe for concurrent use.
type servedResources struct {
	mu   sync.Mutex
	seen map[servedResource]bool
}

func (s *servedResources) add(one servedResource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = map[servedResource]bool{}
	}
	s.seen[one] = true
	for other := range s.seen {
		if len(s.seen) <= maxResources {
			break
		}
		delete(s.seen, other)
	}
}

func (s *servedResources) take() map[servedResource]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.seen
	s.seen = nil
	return out
}

func resourceOf(class *resourceapi.DeviceClass) (servedResource, bool) {
	if class.Spec.ExtendedResourceName == nil {
		return servedResource{}, false
	}
	return servedResource{class.Name, *class.Spec.ExtendedResourceName}, true
}

// put creates a class, or updates one of ours. If another program writes it at the same time, put returns a delay,
// because no event follows if that program undoes its write before the cache receives it.
func (k *classReconciler) put(ctx context.Context, want *resourceapi.DeviceClass) (again time.Duration, err error) {
	object, exists, _ := k.existing.GetByKey(want.Name) // Reading the cache cannot fail.
	is, _ := object.(*resourceapi.DeviceClass)
	if !exists || is == nil {
		if since, ours := k.made[want.Name]; ours && time.Since(since) < cacheLag {
			return cacheLag, nil
		}
		if want.Name == k.options.Driver {
			if rest := k.chart.left(chartLag, true); rest > 0 {
				return rest, nil
			}
		}
		made, err := k.client.ResourceV1().DeviceClasses().Create(ctx, want, metav1.CreateOptions{})
		switch {
		case apierrors.IsAlreadyExists(err):
			k.made[want.Name] = time.Now()
			return cacheLag, nil
		case err != nil:
			return 0, fmt.Errorf("create DeviceClass %s: %w", want.Name, err)
		}
		k.probeResourceNames(want, made)
		k.made[want.Name] = time.Now()
		klog.FromContext(ctx).V(2).Info("Created a DeviceClass", "class", want.Name)
		return 0, nil
	}
	delete(k.made, want.Name)
	if want.Name == k.options.Driver {
		k.chart = absence{}
	}
	if !k.options.Ours(is) {
		return 0, nil
	}
	change, changed := deviceclasses.Changed(is, want, !k.dropsResourceNames)
	if !changed {
		return 0, nil
	}
	made, err := k.client.ResourceV1().DeviceClasses().Update(ctx, change, metav1.UpdateOptions{})
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return cacheLag, nil
	case err != nil:
		return 0, fmt.Errorf("update DeviceClass %s: %w", want.Name, err)
	}
	k.probeResourceNames(want, made)
	klog.FromContext(ctx).V(2).Info("Updated a DeviceClass", "class", want.Name)
	return 0, nil
}

// probeResourceNames sets dropsResourceNames from the API server's answer to a write.
func (k *classReconciler) probeResourceNames(want, made *resourceapi.DeviceClass) {
	if want.Spec.ExtendedResourceName != nil {
		k.dropsResourceNames = made.Spec.ExtendedResourceName == nil
	}
}

// removeUnwanted deletes our classes that have had no devices for the grace period, unless an object refers to them. It
// returns the delay until the next attempt; 0: none.
func (k *classReconciler) removeUnwanted(
	ctx context.Context, classes map[string]*resourceapi.DeviceClass,
) (wait time.Duration, err error) {
	maps.DeleteFunc(k.unwanted, func(name string, _ time.Time) bool { return classes[name] == nil })
	due := map[string]*resourceapi.DeviceClass{}
	for name, class := range classes {
		if class.DeletionTimestamp != nil {
			continue
		}
		if k.unwanted[name].IsZero() {
			k.unwanted[name] = time.Now().Add(k.grace)
		}
		if !k.unwanted[name].After(time.Now()) {
			due[name] = class
		}
	}
	used, err := k.users(ctx, due)
	if err != nil {
		return 0, fmt.Errorf("check whether DeviceClasses are in use: %w", err)
	}
	var errs []error
	for name, class := range due {
		if user := used[name]; user != "" {
			klog.FromContext(ctx).V(4).Info("A DeviceClass without devices stays, because it is in use", "class", name,
				"by", user)
			k.unwanted[name] = time.Now().Add(k.grace)
			continue
		}
		unchanged := &metav1.Preconditions{UID: &class.UID, ResourceVersion: &class.ResourceVersion}
		err := k.client.ResourceV1().DeviceClasses().Delete(ctx, name, metav1.DeleteOptions{Preconditions: unchanged})
		switch {
		case apierrors.IsConflict(err), apierrors.IsNotFound(err):
			k.unwanted[name] = time.Now().Add(cacheLag)
		case err != nil:
			errs = append(errs, fmt.Errorf("remove DeviceClass %s: %w", name, err))
		default:
			k.unwanted[name] = time.Now().Add(cacheLag) // Until the cache receives it.
			klog.FromContext(ctx).V(2).Info("Removed an unused DeviceClass without devices", "class", name)
		}
	}
	for _, at := range k.unwanted {
		wait = Sooner(wait, time.Until(at))
	}
	return wait, errors.Join(errs...)
}

// users returns, for each class with one, an object that refers to it: a claim, a template, or a pod that waits for its
// extended resource. The caches cannot show that a class is unused, so it asks the API server about the others, in one
// pass for all.
func (k *classReconciler) users(
	ctx context.Context, classes map[string]*resourceapi.DeviceClass,
) (map[string]string, error) {
	used := map[string]string{}
	complete := func() bool { return len(used) == len(classes) }
	count := func(spec resourceapi.ResourceClaimSpec, kind string, meta metav1.ObjectMeta) {
		for r := range selector.Requests(spec.Devices.Requests) {
			if classes[r.DeviceClassName] != nil {
				used[r.DeviceClassName] = kind + " " + meta.Namespace + "/" + meta.Name
			}
		}
	}
	for _, c := range read.All[*resourceapi.ResourceClaim](k.known) {
		count(c.Spec, "ResourceClaim", c.ObjectMeta)
	}
	if complete() {
		return used, nil
	}
	page := metav1.ListOptions{Limit: read.TenantsPageSize}
	for page, err := range read.Pages(ctx, page, k.client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List) {
		if err != nil || complete() {
			return used, err
		}
		for _, c := range page.Items {
			count(c.Spec, "ResourceClaim", c.ObjectMeta)
		}
	}
	templates := k.client.ResourceV1().ResourceClaimTemplates(metav1.NamespaceAll).List
	for page, err := range read.Pages(ctx, page, templates) {
		if err != nil || complete() {
			return used, err
		}
		for _, t := range page.Items {
			count(t.Spec.Spec, "ResourceClaimTemplate", t.ObjectMeta)
		}
	}
	// Each class of a resource counts: the scheduler forgets the resource with any of them.
	resources := selector.ResourcesOf(slices.Collect(maps.Values(classes)))
	pending := metav1.ListOptions{FieldSelector: "status.phase=Pending", Limit: read.TenantsPageSize}
	for page, err := range read.Pages(ctx, pending, k.client.CoreV1().Pods(metav1.NamespaceAll).List) {
		if err != nil || complete() {
			return used, err
		}
		for _, p := range page.Items {
			for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
				for resource := range c.Resources.Limits {
					for _, class := range resources[resource] {
						used[class.Name] = "Pod " + p.Namespace + "/" + p.Name
					}
				}
			}
		}
	}
	return used, nil
}
