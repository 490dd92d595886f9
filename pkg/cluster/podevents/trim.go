// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package podevents

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// trimEvent keeps the object, the message and the times of an Event.
func trimEvent(object any) (any, error) {
	e, ok := object.(*corev1.Event)
	if !ok {
		return object, nil
	}
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         e.Namespace,
			Name:              e.Name,
			ResourceVersion:   e.ResourceVersion,
			CreationTimestamp: e.CreationTimestamp,
		},
		InvolvedObject: corev1.ObjectReference{
			Kind:      e.InvolvedObject.Kind,
			Namespace: e.InvolvedObject.Namespace,
			Name:      e.InvolvedObject.Name,
			UID:       e.InvolvedObject.UID,
		},
		Reason:        e.Reason,
		Message:       e.Message,
		LastTimestamp: e.LastTimestamp,
		EventTime:     e.EventTime,
	}, nil
}
