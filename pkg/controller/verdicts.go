// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"gpu-dra-driver/pkg/admission"
)

// verdicts is what is known of the classes that exist: a class has no status to write it to.
type verdicts struct {
	driver string
	events record.EventRecorder

	mu    sync.Mutex
	known map[types.UID]judged
}

// judged is the verdict on one version of a class in one World.
type judged struct {
	admission.Verdict
	version string
	world   *admission.World
}

func newVerdicts(driver string, events record.EventRecorder) *verdicts {
	return &verdicts{driver: driver, events: events, known: map[types.UID]judged{}}
}

// judge looks at every class that is about this driver's devices, and tells by an Event where one has become wrong.
func (v *verdicts) judge(ctx context.Context, world *admission.World, classes cache.Indexer) {
	if len(world.Pools) == 0 {
		return // Nothing is known of the devices.
	}
	now := map[types.UID]judged{}
	for _, o := range classes.List() {
		class, ok := o.(*resourceapi.DeviceClass)
		if !ok || !world.Concerns(class) {
			continue
		}
		v.mu.Lock()
		last, seen := v.known[class.UID]
		v.mu.Unlock()
		if seen && last.version == class.ResourceVersion && last.world == world {
			now[class.UID] = last
			continue
		}
		verdict := world.Judge(ctx, class)
		now[class.UID] = judged{verdict, class.ResourceVersion, world}
		if v.events == nil || seen && last.Verdict == verdict || verdict.State == admission.ClassOK {
			continue
		}
		about := &corev1.ObjectReference{APIVersion: "resource.k8s.io/v1", Kind: "DeviceClass", Name: class.Name, UID: class.UID}
		kind, reason := corev1.EventTypeWarning, "InvalidSelector"
		if verdict.State == admission.ClassUnmatched {
			kind, reason = corev1.EventTypeNormal, "MatchesNoDevice"
		}
		v.events.Event(about, kind, reason, verdict.Why)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.known = now
}

// states counts the classes by state.
func (v *verdicts) states() map[string]int {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := map[string]int{admission.ClassOK: 0, admission.ClassUnmatched: 0, admission.ClassInvalid: 0}
	for verdict := range maps.Values(v.known) {
		out[verdict.State]++
	}
	return out
}
