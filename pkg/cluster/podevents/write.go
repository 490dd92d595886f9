// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package podevents

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/cluster/why"
)

// due is an Event to write.
type due struct {
	about        corev1.ObjectReference
	text, reason string
}

// write writes the Events that are due, as far as the rate allows. It reports whether some are left.
func (k *Keeper) write(ctx context.Context, now time.Time) (left bool) {
	var all []due
	add := func(d due) {
		last, ok := k.written[d.about.UID]
		if !ok || now.Sub(last.at) >= rewrite && last.sense != sense(d.text) || now.Sub(last.at) >= renewal {
			all = append(all, d)
		}
	}
	for _, one := range k.kinds {
		if one.text == "" {
			continue
		}
		for _, pod := range one.pods {
			reason := why.EventReason
			if one.lacks {
				reason = why.LacksReason
			}
			text := strings.ReplaceAll(one.text, quoted(one.about), quoted(pod.Name))
			add(due{corev1.ObjectReference{
				APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			}, message(text, pod), reason})
		}
	}
	for _, o := range k.owners {
		if o.text != "" {
			add(due{o.about, o.text, why.EventReason})
		}
	}
	for len(all) > 0 {
		if !k.limit.TryAccept() {
			return true
		}
		next := slices.MinFunc(all, func(a, b due) int {
			x, y := a.about, b.about
			return cmp.Or(k.wrote[x.Namespace].Compare(k.wrote[y.Namespace]), cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
		})
		all = slices.DeleteFunc(all, func(d due) bool { return d.about.UID == next.about.UID })
		k.wrote[next.about.Namespace] = time.Now()
		at, err := k.put(ctx, next, now)
		switch {
		case ctx.Err() != nil:
			return false
		case err != nil:
			klog.FromContext(ctx).Error(err, "Cannot write an Event; trying again", "kind", next.about.Kind, "namespace", next.about.Namespace, "name", next.about.Name)
			at = now // A namespace that is being deleted refuses it each time.
		}
		k.written[next.about.UID] = written{sense(next.text), at}
	}
	return false
}

// put writes an Event, and returns the time of its last write. One that another leader wrote stays if it says the same.
func (k *Keeper) put(ctx context.Context, d due, now time.Time) (time.Time, error) {
	events := k.client.CoreV1().Events(d.about.Namespace)
	name := eventName(d.about, d.reason)
	if _, known := k.written[d.about.UID]; !known {
		at := metav1.NewTime(now)
		_, err := events.Create(ctx, &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: d.about.Namespace, Name: name}, InvolvedObject: d.about,
			Reason: d.reason, Message: d.text, Type: corev1.EventTypeWarning, FirstTimestamp: at, LastTimestamp: at, Count: 1,
			Source: corev1.EventSource{Component: component}, ReportingController: component,
		}, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			return now, wrap("create", name, err)
		}
	}
	found, err := events.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err): // It is older than the API server keeps Events.
		delete(k.written, d.about.UID)
		return k.put(ctx, d, now)
	case err != nil:
		return now, wrap("read", name, err)
	case sense(found.Message) == sense(d.text) && now.Sub(found.LastTimestamp.Time) < renewal:
		return found.LastTimestamp.Time, nil
	}
	change := map[string]any{"message": d.text, "lastTimestamp": metav1.NewTime(now)}
	if sense(found.Message) != sense(d.text) {
		change["count"] = found.Count + 1
	}
	patch, err := json.Marshal(change)
	if err == nil {
		_, err = events.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	return now, wrap("change", name, err)
}

func wrap(verb, name string, err error) error {
	if err != nil {
		return fmt.Errorf("%s Event %s: %w", verb, name, err)
	}
	return nil
}

// component is the source of the Events.
const component = "dra-controller"

// eventName returns the name of the one Event about an object, for a reason.
func eventName(about corev1.ObjectReference, reason string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(about.UID)) // It has no errors.
	if reason != why.EventReason {
		_, _ = h.Write([]byte(reason))
	}
	const most = 200
	name := about.Name[:min(len(about.Name), most)]
	return fmt.Sprintf("%s.gpus-%016x", strings.TrimRight(name, ".-"), h.Sum64())
}
