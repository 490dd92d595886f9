// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"sync"
	"weak"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"gpu-dra-driver/pkg/cluster/admission"
	"gpu-dra-driver/pkg/cluster/read"
)

// The reasons of Events on DeviceClasses; docs/reference/events.md is generated from these comments.
const (
	// invalidSelector: a selector of the class fails on a device. Correct the expression: the failure ends every
	// allocation that meets the device.
	invalidSelector = "InvalidSelector"
	// matchesNoDevice: no device of the cluster satisfies the class. Correct the class, or add nodes with such a
	// device.
	matchesNoDevice = "MatchesNoDevice"
)

// classStatuses holds the states of the existing classes. A DeviceClass has no status field for them.
type classStatuses struct {
	events record.EventRecorder

	mu    sync.Mutex
	known map[types.UID]evaluated
}

// evaluated is the result for one version of a class and one view.
type evaluated struct {
	admission.ClassStatus
	version string
	// view does not keep an old view and its caches in memory, while the evaluation of a class fails.
	view weak.Pointer[admission.ClusterView]
}

// evaluate finds the state of every class for this driver's devices. It emits an Event for each class that became
// wrong. After an error, classes keep their last states.
func (s *classStatuses) evaluate(ctx context.Context, view *admission.ClusterView, classes cache.Indexer) (err error) {
	if len(view.Pools()) == 0 {
		return nil // The devices are unknown.
	}
	now := map[types.UID]evaluated{}
	for _, class := range read.All[*resourceapi.DeviceClass](classes) {
		if !view.Concerns(class) {
			continue
		}
		s.mu.Lock()
		last, seen := s.known[class.UID]
		s.mu.Unlock()
		if seen && last.version == class.ResourceVersion && last.view == weak.Make(view) {
			now[class.UID] = last
			continue
		}
		status, failed := view.Evaluate(ctx, class)
		if failed != nil {
			err = fmt.Errorf("evaluate DeviceClass %s: %w", class.Name, failed)
			if seen {
				now[class.UID] = last
			}
			continue
		}
		now[class.UID] = evaluated{status, class.ResourceVersion, weak.Make(view)}
		if s.events == nil || seen && last.ClassStatus == status || status.State == admission.ClassOK {
			continue
		}
		about := &corev1.ObjectReference{
			APIVersion: "resource.k8s.io/v1",
			Kind:       "DeviceClass",
			Name:       class.Name,
			UID:        class.UID,
		}
		kind, reason := corev1.EventTypeWarning, invalidSelector
		if status.State == admission.ClassUnmatched {
			kind, reason = corev1.EventTypeNormal, matchesNoDevice
		}
		s.events.Event(about, kind, reason, status.Reason)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = now
	return err
}

func (s *classStatuses) states() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]int{admission.ClassOK: 0, admission.ClassUnmatched: 0, admission.ClassInvalid: 0}
	for _, one := range s.known {
		out[one.State]++
	}
	return out
}
