// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package act runs the actors of the leading controller. An actor is given the objects of the cluster, and returns the
// writes that follow.
//
// A pause in proportion to the processor time follows each step, the writes have a rate, and namespaces take turns. So
// neither the size of a cluster nor one tenant makes the work grow: writes become later instead. A failed write is
// tried again after a pause.
package act

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/cluster/controller"
	"gpu-dra-driver/pkg/cluster/read"
)

// Writes are the writes of an actor in a second, of which up to Burst at once.
const Writes, Burst = 5, 25

// afterPanic is the pause after a bug.
const afterPanic = time.Minute

// Cluster has the objects that the leading controller knows.
type Cluster interface {
	// Objects returns false while this instance does not know them.
	Objects() (controller.Objects, bool)
	// Wake has the scheduler try all pods again that wait for devices.
	Wake(ctx context.Context) error
}

// Actor decides about writes. One goroutine calls it.
type Actor interface {
	// Reconcile returns the writes that are due, the most urgent of each namespace first. It reports whether more work
	// is due. It does one expensive piece of work at most.
	Reconcile(ctx context.Context, objects controller.Objects, now time.Time) (due []Write, more bool)
}

// Write is a write to the API server, or several that belong together.
type Write struct {
	// About is the object that the write is for. Its namespace has the turn, and a failure counts for its versions.
	About corev1.ObjectReference
	Effect
}

// Effect is the act of a Write.
type Effect interface {
	// Do writes. An error names the attempt.
	Do(ctx context.Context, now time.Time) error
}

// Wake returns the write that has the scheduler try pods again, for one that waits.
func Wake(c Cluster, pod *corev1.Pod) []Write {
	return []Write{{corev1.ObjectReference{Kind: "Scheduler", Namespace: pod.Namespace, Name: pod.Name}, wake{c}}}
}

type wake struct{ Cluster }

// Do implements Effect.
func (w wake) Do(ctx context.Context, _ time.Time) error { return w.Wake(ctx) }

// Pace limits the work of an actor.
type Pace struct {
	// Idle is the least pause between two steps without work, and Busy with work.
	Idle, Busy time.Duration
	// Share is the part of a processor that steps take at most: one of so many.
	Share int
	// Retry is the pause after the failure of a write.
	Retry time.Duration
}

// Loop runs an actor.
type Loop struct {
	cluster Cluster
	actor   Actor
	pace    Pace
	limit   *rate.Limiter
	turns   Turns
	// failed has the times at which failed writes are tried again.
	failed map[corev1.ObjectReference]time.Time
}

// New returns the Loop of an actor.
func New(cluster Cluster, actor Actor, pace Pace) *Loop {
	return &Loop{
		cluster: cluster, actor: actor, pace: pace, limit: rate.NewLimiter(Writes, Burst),
		turns: Turns{}, failed: map[corev1.ObjectReference]time.Time{},
	}
}

// Run takes steps until the context ends, once the informers have read the cluster. Only the leader runs it.
func (l *Loop) Run(ctx context.Context, informers ...cache.SharedIndexInformer) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	if !read.Start(ctx, &wg, informers...) {
		return nil
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(l.guarded(ctx)):
		}
	}
}

// guarded does one step, and returns the pause after it.
func (l *Loop) guarded(ctx context.Context) (pause time.Duration) {
	before := processorTime()
	defer func() {
		// A bug with one object must not end the controller.
		if p := recover(); p != nil {
			klog.FromContext(ctx).Error(nil, "A bug with pods that wait for devices; trying again", "panic", p)
			pause = afterPanic
		}
		pause = max(pause, time.Duration(l.pace.Share-1)*(processorTime()-before))
	}()
	if l.Step(ctx, time.Now()) {
		return l.pace.Busy
	}
	return l.pace.Idle
}

// Step does one step, and reports whether more work is due.
func (l *Loop) Step(ctx context.Context, now time.Time) (more bool) {
	objects, ok := l.cluster.Objects()
	if !ok {
		return false // It knows the cluster in a moment.
	}
	maps.DeleteFunc(l.failed, func(_ corev1.ObjectReference, until time.Time) bool { return !now.Before(until) })
	due, more := l.actor.Reconcile(ctx, objects, now)
	due = slices.DeleteFunc(due, func(w Write) bool { return !l.failed[key(w)].IsZero() })
	live := map[string]bool{}
	for _, w := range due {
		live[w.About.Namespace] = true
	}
	l.turns.Keep(live)
	for len(due) > 0 && ctx.Err() == nil {
		if !l.limit.AllowN(now, 1) {
			return true
		}
		next := slices.MinFunc(due, func(a, b Write) int {
			return l.turns.Compare(a.About.Namespace, b.About.Namespace)
		})
		due = slices.DeleteFunc(due, func(w Write) bool { return key(w) == key(next) })
		l.turns.Take(next.About.Namespace)
		if err := next.Do(ctx, now); err != nil && ctx.Err() == nil {
			about := key(next)
			l.failed[about] = now.Add(l.pace.Retry)
			klog.FromContext(ctx).Error(err, "A write for pods that wait for devices failed; trying again",
				"kind", about.Kind, "object", klog.KRef(about.Namespace, about.Name), "after", l.pace.Retry)
		}
	}
	return more
}

// key returns the object that a write is for, in any version.
func key(w Write) corev1.ObjectReference {
	w.About.ResourceVersion = ""
	return w.About
}

// Turns are the last turns of namespaces, as numbers that grow.
type Turns map[string]int

// Compare is negative if a's last turn was before b's.
func (t Turns) Compare(a, b string) int { return cmp.Compare(t[a], t[b]) }

// Take notes a namespace's turn.
func (t Turns) Take(namespace string) { t[namespace] = t.next() }

// Keep forgets the turns of other namespaces. New ones come last: no namespace comes first because it was away.
func (t Turns) Keep(namespaces map[string]bool) {
	next := t.next()
	maps.DeleteFunc(t, func(one string, _ int) bool { return !namespaces[one] })
	for one := range namespaces {
		if t[one] == 0 {
			t[one] = next
		}
	}
}

func (t Turns) next() int { return 1 + slices.Max(append(slices.Collect(maps.Values(t)), 0)) }

// processorTime returns the processor time of the process. Other work of the controller counts too, which makes pauses
// longer.
func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
