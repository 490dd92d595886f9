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

	"gpu-dra-driver/pkg/cluster/act"
	"gpu-dra-driver/pkg/cluster/why"
)

// event is an Event to write.
type event struct {
	*Keeper
	about        corev1.ObjectReference
	text, reason string
}

// Do implements act.Effect.
func (e event) Do(ctx context.Context, now time.Time) error {
	at, err := e.put(ctx, now)
	if err == nil {
		e.written[e.about.UID] = written{sense(e.text), at}
	}
	return err
}

// due returns the Events that are due, by name.
func (k *Keeper) due(now time.Time) (out []act.Write) {
	add := func(about corev1.ObjectReference, text, reason string) {
		last, ok := k.written[about.UID]
		if !ok || now.Sub(last.at) >= minWritePause && last.sense != sense(text) || now.Sub(last.at) >= renewAfter {
			out = append(out, act.Write{About: about, Effect: event{k, about, text, reason}})
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
			add(corev1.ObjectReference{
				APIVersion:      "v1",
				Kind:            "Pod",
				Namespace:       pod.Namespace,
				Name:            pod.Name,
				UID:             pod.UID,
				ResourceVersion: pod.ResourceVersion,
			}, message(text, pod), reason)
		}
	}
	for _, o := range k.owners {
		if o.text != "" {
			add(o.about, o.text, why.EventReason)
		}
	}
	slices.SortFunc(out, func(a, b act.Write) int {
		return cmp.Or(cmp.Compare(a.About.Namespace, b.About.Namespace), cmp.Compare(a.About.Name, b.About.Name))
	})
	return out
}

// put writes an Event, and returns the time of its last write. One that another leader wrote stays if it says the same.
func (e event) put(ctx context.Context, now time.Time) (time.Time, error) {
	events := e.client.CoreV1().Events(e.about.Namespace)
	name := eventName(e.about, e.reason)
	if _, known := e.written[e.about.UID]; !known {
		at := metav1.NewTime(now)
		_, err := events.Create(ctx, &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: e.about.Namespace, Name: name}, InvolvedObject: e.about,
			Reason: e.reason, Message: e.text, Type: corev1.EventTypeWarning,
			FirstTimestamp: at, LastTimestamp: at, Count: 1,
			Source: corev1.EventSource{Component: component}, ReportingController: component,
		}, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			return now, wrap("create", name, err)
		}
	}
	found, err := events.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err): // It is older than the API server keeps Events.
		delete(e.written, e.about.UID)
		return e.put(ctx, now)
	case err != nil:
		return now, wrap("read", name, err)
	case sense(found.Message) == sense(e.text) && now.Sub(found.LastTimestamp.Time) < renewAfter:
		return found.LastTimestamp.Time, nil
	}
	change := map[string]any{"message": e.text, "lastTimestamp": metav1.NewTime(now)}
	if sense(found.Message) != sense(e.text) {
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
	const maxNameBytes = 200
	name := about.Name[:min(len(about.Name), maxNameBytes)]
	return fmt.Sprintf("%s.gpus-%016x", strings.TrimRight(name, ".-"), h.Sum64())
}
