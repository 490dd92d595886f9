// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package act

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"gpu-dra-driver/pkg/cluster/controller"
)

const work = 30 * time.Millisecond

var pace = Pace{Idle: time.Millisecond, Busy: time.Millisecond, Share: 20, Retry: time.Minute}

// env is a cluster and its actor. Reading the cluster takes processor time.
type env struct {
	unknown, buggy, fails bool
	due                   []string
	done                  []string
}

func (e *env) Objects() (controller.Objects, bool) {
	for end := processorTime() + work; processorTime() < end; { // It computes.
	}
	return controller.Objects{}, !e.unknown
}

func (e *env) Wake(context.Context) error { return nil }

func (e *env) Reconcile(context.Context, controller.Objects, time.Time) (due []Write, more bool) {
	if e.buggy {
		panic("a bug")
	}
	for _, name := range e.due {
		namespace, name, _ := strings.Cut(name, "/")
		about := corev1.ObjectReference{Namespace: namespace, Name: name}
		due = append(due, Write{about, write{e, namespace + "/" + name}})
	}
	return due, false
}

// write is a write about an object, such as "namespace/name".
type write struct {
	*env
	name string
}

func (w write) Do(context.Context, time.Time) error {
	w.done = append(w.done, w.name)
	if w.fails {
		return errors.New("no quorum")
	}
	return nil
}

func TestGuarded_Work_LongPause(t *testing.T) {
	e := &env{}
	l := New(e, e, pace)
	if pause := l.guarded(t.Context()); pause < 19*work {
		t.Errorf("after %s of work it pauses for %s", work, pause)
	}
	e.buggy = true
	if pause := l.guarded(t.Context()); pause < afterPanic {
		t.Errorf("after a bug it pauses for %s", pause)
	}
	e.unknown = true
	if l.Step(t.Context(), time.Now()) {
		t.Error("it works without the objects")
	}
}

func TestStep_ManyWritesOfOneNamespace_OthersGetTheirTurn(t *testing.T) {
	e := &env{due: []string{"a/1", "a/2", "a/3", "a/4", "b/1", "b/2", "/node"}}
	New(e, e, pace).Step(t.Context(), time.Now())
	if want := []string{"a/1", "b/1", "/node", "a/2", "b/2", "a/3", "a/4"}; !slices.Equal(e.done, want) {
		t.Errorf("the writes are %q", e.done)
	}
	e.due, e.done = slices.Repeat([]string{"a/1"}, 2), nil
	for i := range 2 * Burst {
		e.due = append(e.due, "b/"+strings.Repeat("x", i))
	}
	l, now := New(e, e, pace), time.Now()
	if !l.Step(t.Context(), now) || len(e.done) != Burst {
		t.Errorf("%d writes at once", len(e.done))
	}
	if l.Step(t.Context(), now.Add(time.Second)); len(e.done) != Burst+Writes {
		t.Errorf("%d writes after a second", len(e.done)-Burst)
	}
}

func TestStep_WriteFails_TriedAgainAfterPause(t *testing.T) {
	e := &env{due: []string{"a/1"}, fails: true}
	l, now := New(e, e, pace), time.Now()
	var at []int
	for second := 0; second < 200; second += 20 {
		before := len(e.done)
		if l.Step(t.Context(), now.Add(time.Duration(second)*time.Second)); len(e.done) > before {
			at = append(at, second)
		}
	}
	if want := []int{0, 60, 120, 180}; !slices.Equal(at, want) {
		t.Errorf("it is written at %v", at)
	}
	e.fails = false
	l.Step(t.Context(), now.Add(240*time.Second))
	if len(l.failed) != 0 {
		t.Errorf("failures: %v", l.failed)
	}
}
