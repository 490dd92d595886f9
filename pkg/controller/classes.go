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

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	resourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/deviceclasses"
	"gpu-dra-driver/pkg/fleet"
)

// cacheLag is the time for a cache to receive another program's write.
const cacheLag = time.Second

// chartLag is the time that Helm has to write the chart's class or, at the end of the release, to end the controller.
const chartLag = 10 * time.Second

// classReconciler creates and removes DeviceClasses.
type classReconciler struct {
	options deviceclasses.Options
	grace   time.Duration

	slices, existing cache.Indexer
	classes          resourcev1.DeviceClassInterface
	claims           func(namespace string) resourcev1.ResourceClaimInterface
	templates        func(namespace string) resourcev1.ResourceClaimTemplateInterface
	pods             kubernetes.Interface

	// made holds when this instance created a class, or found it created, until the cache receives it.
	made map[string]time.Time
	// chartGone is the time since when the chart's class is missing, or zero.
	chartGone time.Time
	// unwanted holds since when each of our classes has had no devices.
	unwanted map[string]time.Time
	// dropsResourceNames means that the API server's last answer to a write lacked the extended resource name.
	dropsResourceNames bool
	reported           map[string]bool
	// resources holds every servedResource that an event showed, also of classes that were gone at once.
	resources *sync.Map
	// concerns reports whether a class is about this driver's devices.
	concerns func(*resourceapi.DeviceClass) bool
}

// kinds counts the devices of each kind, including those of incomplete pools.
func (k *classReconciler) kinds() map[fleet.Kind]int {
	shapes := map[*fleet.Shape]int{}
	for _, o := range k.slices.List() {
		if s, ok := o.(*fleet.Slice); ok && s.Shape != nil {
			shapes[s.Shape]++
		}
	}
	out := map[fleet.Kind]int{}
	for shape, n := range shapes {
		for _, kind := range shape.Kinds {
			out[kind] += n
		}
	}
	return out
}

// reconcile creates and removes classes. It returns the delay until the next run if nothing changes; 0: none.
func (k *classReconciler) reconcile(ctx context.Context) (again time.Duration, err error) {
	wanted, problems := deviceclasses.Build(k.kinds(), k.options)
	for _, p := range problems {
		if !k.reported[p.Error()] {
			k.reported[p.Error()] = true
			klog.FromContext(ctx).Error(p, "A kind of device gets no DeviceClass; claims can select it by CEL")
		}
	}
	var errs []error
	done := func(wait time.Duration, err error) {
		errs = append(errs, err)
		if wait > 0 && (again == 0 || wait < again) {
			again = wait
		}
	}
	names, unwanted := map[string]bool{}, map[string]bool{}
	for _, want := range wanted {
		names[want.Name] = true
		done(k.put(ctx, want))
	}
	for _, o := range k.existing.List() {
		class, ok := o.(*resourceapi.DeviceClass)
		if !ok || names[class.Name] || !k.options.Ours(class) || class.DeletionTimestamp != nil {
			continue
		}
		unwanted[class.Name] = true
		done(k.remove(ctx, class))
	}
	maps.DeleteFunc(k.unwanted, func(name string, _ time.Time) bool { return !unwanted[name] })
	done(0, k.refresh(ctx))
	return again, errors.Join(errs...)
}

// refreshed is the annotation that refresh changes.
const refreshed = "gpu-dra-driver/refreshed"

// refresh writes the classes whose extended resource another class gave up. The scheduler forgets a resource with one of
// its classes, and finds the other class only at an event about it; until then every pod waits for "Insufficient".
func (k *classReconciler) refresh(ctx context.Context) (err error) {
	var seen []servedResource
	k.resources.Range(func(key, _ any) bool {
		if one, ok := key.(servedResource); ok {
			seen = append(seen, one)
		}
		k.resources.Delete(key) // Before the cache is read, so that a later event is not lost.
		return true
	})
	now, lost := map[servedResource]*resourceapi.DeviceClass{}, map[string]bool{}
	for _, o := range k.existing.List() {
		if one, ok := resourceOf(o); ok {
			now[one], _ = o.(*resourceapi.DeviceClass)
		}
	}
	for _, one := range seen {
		if now[one] == nil {
			lost[one.resource] = true
		}
	}
	defer func() {
		for _, one := range seen {
			if err != nil || now[one] != nil {
				k.resources.Store(one, true)
			}
		}
	}()
	for one, class := range now {
		if !lost[one.resource] || !k.concerns(class) {
			continue
		}
		class = class.DeepCopy()
		metav1.SetMetaDataAnnotation(&class.ObjectMeta, refreshed, time.Now().UTC().Format(time.RFC3339Nano))
		if _, err := k.classes.Update(ctx, class, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("refresh DeviceClass %s, whose extended resource another class gave up: %w", class.Name, err)
		}
		klog.FromContext(ctx).Info("Refreshed a DeviceClass, because another one with its extended resource is gone",
			"class", class.Name)
	}
	return nil
}

// servedResource is a class and its extended resource.
type servedResource struct{ class, resource string }

func resourceOf(object any) (servedResource, bool) {
	class, ok := object.(*resourceapi.DeviceClass)
	if !ok || class.Spec.ExtendedResourceName == nil {
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
			if k.chartGone.IsZero() {
				k.chartGone = time.Now()
			}
			if rest := chartLag - time.Since(k.chartGone); rest > 0 {
				return rest, nil
			}
		}
		made, err := k.classes.Create(ctx, want, metav1.CreateOptions{})
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
		k.chartGone = time.Time{}
	}
	if !k.options.Ours(is) {
		return 0, nil
	}
	change, changed := deviceclasses.Changed(is, want, !k.dropsResourceNames)
	if !changed {
		return 0, nil
	}
	made, err := k.classes.Update(ctx, change, metav1.UpdateOptions{})
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

// remove deletes one of our classes that has had no devices for the grace period, unless an object refers to it. It
// returns the delay until the next attempt; 0: none.
func (k *classReconciler) remove(ctx context.Context, class *resourceapi.DeviceClass) (wait time.Duration, err error) {
	since, known := k.unwanted[class.Name]
	if !known {
		since = time.Now()
		k.unwanted[class.Name] = since
	}
	if rest := k.grace - time.Since(since); rest > 0 {
		return rest, nil
	}
	user, err := k.user(ctx, class)
	if err != nil {
		return 0, fmt.Errorf("check whether DeviceClass %s is in use: %w", class.Name, err)
	}
	if user != "" {
		klog.FromContext(ctx).V(4).Info("A DeviceClass without devices stays, because it is in use", "class", class.Name, "by", user)
		return k.grace, nil
	}
	err = k.classes.Delete(ctx, class.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &class.UID, ResourceVersion: &class.ResourceVersion}})
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return cacheLag, nil
	case err != nil:
		return 0, fmt.Errorf("remove DeviceClass %s: %w", class.Name, err)
	}
	klog.FromContext(ctx).V(2).Info("Removed an unused DeviceClass without devices", "class", class.Name)
	return 0, nil
}

// user returns an object that refers to the class: a claim, a template, or a pod that waits for its extended resource.
// It asks the API server, because a cache can be outdated.
func (k *classReconciler) user(ctx context.Context, class *resourceapi.DeviceClass) (user string, err error) {
	isClass := func(name string) bool { return name == class.Name }
	claims, templates := k.claims(metav1.NamespaceAll).List, k.templates(metav1.NamespaceAll).List
	err = eachPage(ctx, metav1.ListOptions{}, claims, func(page *resourceapi.ResourceClaimList) (enough bool) {
		for _, c := range page.Items {
			if wants(c.Spec, isClass) {
				user = "ResourceClaim " + c.Namespace + "/" + c.Name
				return true
			}
		}
		return false
	})
	if err != nil || user != "" {
		return user, err
	}
	err = eachPage(ctx, metav1.ListOptions{}, templates, func(page *resourceapi.ResourceClaimTemplateList) (enough bool) {
		for _, t := range page.Items {
			if wants(t.Spec.Spec, isClass) {
				user = "ResourceClaimTemplate " + t.Namespace + "/" + t.Name
				return true
			}
		}
		return false
	})
	if err != nil || user != "" {
		return user, err
	}
	wanted := []corev1.ResourceName{corev1.ResourceName("deviceclass.resource.kubernetes.io/" + class.Name)}
	if name := class.Spec.ExtendedResourceName; name != nil {
		wanted = append(wanted, corev1.ResourceName(*name))
	}
	pods, pending := k.pods.CoreV1().Pods(metav1.NamespaceAll).List, metav1.ListOptions{FieldSelector: "status.phase=Pending"}
	err = eachPage(ctx, pending, pods, func(page *corev1.PodList) (enough bool) {
		for _, p := range page.Items {
			if asks(p.Spec, wanted) {
				user = "Pod " + p.Namespace + "/" + p.Name
				return true
			}
		}
		return false
	})
	return user, err
}

func asks(spec corev1.PodSpec, resources []corev1.ResourceName) bool {
	return slices.ContainsFunc(slices.Concat(spec.InitContainers, spec.Containers), func(c corev1.Container) bool {
		return slices.ContainsFunc(resources, func(r corev1.ResourceName) bool {
			_, ok := c.Resources.Limits[r]
			return ok
		})
	})
}
