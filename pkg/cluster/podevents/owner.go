// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package podevents

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/cluster/bounded"
	"gpu-dra-driver/pkg/cluster/controller"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/waiting"
	"gpu-dra-driver/pkg/cluster/why"
)

// owner is an object whose pods the API server refuses. It is known by the UID of the object that the refusals are
// about.
type owner struct {
	// about is the object that gets the Event: a ReplicaSet's Deployment, else the object itself.
	about corev1.ObjectReference
	// waits means that its pods ask for devices of the driver.
	waits bool
	text  string
	// read is the time of the last attempt to read it.
	read time.Time
	ok   bool
}

// follow reads the owners of refused pods, a few at a time.
func (k *Keeper) follow(ctx context.Context, objects controller.Objects, now time.Time) {
	newest := map[types.UID]*corev1.Event{}
	for _, e := range read.All[*corev1.Event](k.failed.GetStore()) {
		id := e.InvolvedObject.UID
		if e.Reason != podRefused || now.Sub(why.Seen(e)) > why.RetryWithin || id == "" {
			continue
		}
		if other := newest[id]; other == nil || why.Seen(other).Before(why.Seen(e)) {
			newest[id] = e
		}
	}
	maps.DeleteFunc(k.owners, func(id types.UID, _ *owner) bool { return newest[id] == nil })
	reads := 0
	for id, e := range newest {
		o := k.owners[id]
		if o == nil {
			o = &owner{}
			k.owners[id] = o
		}
		const maxReads = 5
		if !o.ok && now.Sub(o.read) > minWritePause && reads < maxReads {
			reads++
			o.read = now
			if err := k.readOwner(ctx, objects, o, e, now); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Cannot read the owner of a refused pod; trying again")
			}
		}
		if o.waits {
			message := strings.TrimPrefix(strings.Join(strings.Fields(e.Message), " "), "Error creating: ")
			text := fmt.Sprintf("The API server refuses pods of this %s: %s. To start them, %s.", o.about.Kind, message,
				why.RefusalCure(message))
			o.text = shortened(text, "")
		}
	}
}

// readOwner reads the object that a refusal is about.
func (k *Keeper) readOwner(
	ctx context.Context, objects controller.Objects, o *owner, e *corev1.Event, now time.Time,
) error {
	ref := e.InvolvedObject
	var meta *metav1.ObjectMeta
	var template *corev1.PodTemplateSpec
	var err error
	apps := k.client.AppsV1()
	version := "apps/v1"
	switch ref.Kind {
	case "Job":
		one, failed := k.client.BatchV1().Jobs(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		version = "batch/v1"
		meta, template, err = &one.ObjectMeta, &one.Spec.Template, failed
	case "ReplicaSet":
		one, failed := apps.ReplicaSets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		meta, template, err = &one.ObjectMeta, &one.Spec.Template, failed
	case "StatefulSet":
		one, failed := apps.StatefulSets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		meta, template, err = &one.ObjectMeta, &one.Spec.Template, failed
	default:
		o.ok = true // Its pods are not known here.
		return nil
	}
	if apierrors.IsNotFound(err) || err == nil && meta.UID != ref.UID {
		o.ok = true
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s %s/%s: %w", ref.Kind, ref.Namespace, ref.Name, err)
	}
	o.about = corev1.ObjectReference{
		APIVersion: version,
		Kind:       ref.Kind,
		Namespace:  ref.Namespace,
		Name:       ref.Name,
		UID:        ref.UID,
	}
	if by := metav1.GetControllerOfNoCopy(meta); by != nil && by.Kind == "Deployment" && ref.Kind == "ReplicaSet" {
		o.about = corev1.ObjectReference{
			APIVersion: by.APIVersion,
			Kind:       by.Kind,
			Namespace:  ref.Namespace,
			Name:       by.Name,
			UID:        by.UID,
		}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name}, Spec: template.Spec}
	o.waits, err = k.wants(ctx, objects, pod, now)
	o.ok = err == nil
	return err
}

// wants reports whether a pod that does not exist asks for devices of the driver.
func (k *Keeper) wants(ctx context.Context, objects controller.Objects, pod *corev1.Pod, now time.Time) (bool, error) {
	if !waiting.Asks(pod) {
		return false, nil
	}
	about := subject{Classes: waiting.NewClasses(k.o.Driver, objects.Classes)}
	about.ours = slices.ContainsFunc(waiting.Resources(pod), about.OursByResource)
	for _, ref := range waiting.References(pod, k.cluster) {
		if ref.ResourceClaimTemplateName == nil {
			if claim := ref.Claim; claim != nil {
				about.found(claim.Spec.Devices)
				about.ours = about.ours || bounded.TooLarge(claim)
			}
			continue
		}
		t, err := k.template(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: ref.Template()}, now)
		if err != nil {
			return false, err
		}
		if t != nil {
			about.found(t.Spec.Spec.Devices)
		}
	}
	return about.ours, nil
}
