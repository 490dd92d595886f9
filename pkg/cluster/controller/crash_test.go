// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// state returns the objects that a controller writes.
func (e *env) state() map[string]any {
	out := map[string]any{}
	for _, name := range e.Names("deviceclasses") {
		c := get[resourceapi.DeviceClass](e, "deviceclasses", name)
		out["class "+name] = []any{c.Labels, c.Annotations, c.Spec}
	}
	for _, name := range e.Names("nodes") {
		n := get[corev1.Node](e, "nodes", name)
		out["node "+name] = []any{n.Labels, n.Annotations}
	}
	return out
}

// play changes a cluster: a model goes, one comes, a class is edited, and a node has another program's label. It calls
// crash wherever a controller can have ended; crash starts another one then.
func play(t *testing.T, e *env, crash func()) {
	t.Helper()
	pass(time.Minute)
	crash()
	edited := get[resourceapi.DeviceClass](e, "deviceclasses", l40sClass)
	edited.Spec.Selectors = nil
	e.Put(edited)
	for _, o := range machine(t, "hgx-h100", "c", 1) {
		e.Put(o)
	}
	pass(time.Minute)
	crash()
	e.Withdraw("a")
	pass(time.Minute)
	crash()
	pass(2 * grace)
	crash()
	pass(2 * grace)
}

func crashEnv(t *testing.T) *env {
	e := newEnv(t, append(machine(t, "t4-1", "a", 0), machine(t, "l40s-4", "b", 0)...)...)
	e.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b", Labels: map[string]string{"nvidia.com/gpu.count": "theirs", "team": "a"}}})
	return e
}

// TestController_CrashAtAnyWrite_NextOneConverges ends it before the n-th write is done and after, for every n.
func TestController_CrashAtAnyWrite_NextOneConverges(t *testing.T) {
	var want map[string]any
	writes := 0
	synctest.Test(t, func(t *testing.T) {
		e := crashEnv(t)
		_, stop := e.start()
		defer stop()
		play(t, e, func() {})
		want, writes = e.state(), len(e.Written())
	})
	if writes < 10 || len(want) < 10 {
		t.Fatalf("%d writes, and then %d objects", writes, len(want))
	}
	for n := range writes {
		for _, done := range []bool{false, true} {
			t.Run(fmt.Sprintf("write %d done %t", n, done), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					e := crashEnv(t)
					left, dead := n, false
					e.Fault = func(r request) (refused, lost error) {
						ended := errors.New("the controller has ended")
						if r.Writes() {
							left--
						}
						switch {
						case dead && r.Writes():
							return ended, nil
						case left == -1 && r.Writes():
							dead = true
							if done {
								return nil, ended
							}
							return ended, nil
						}
						return nil, nil
					}
					_, stop := e.start()
					defer func() { stop() }()
					play(t, e, func() {
						e.Lock()
						died := dead
						dead = false
						e.Unlock()
						if died {
							stop()
							_, stop = e.start()
							pass(time.Minute)
						}
					})
					if diff := cmp.Diff(want, e.state()); diff != "" {
						t.Errorf("(-undisturbed +after the end)\n%s", diff)
					}
				})
			})
		}
	}
}
