// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/test/bench/table"
)

// result is a cell: pods of one workload in a cluster in one state.
type result struct {
	setting, workload, used string
	// like is the workload of the plain cluster to compare with, if it has another name there.
	like                      string
	wanted, bound             int
	span, p50, p99, cpuPerPod time.Duration
	megabytes                 int
	start                     time.Duration
}

// rate is in pods per second.
func (r result) rate() float64 {
	if r.span <= 0 {
		return 0
	}
	return float64(r.bound) / r.span.Seconds()
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// arrival is a pod of a workload, and the names of the pods that leave when it arrives.
type arrival struct {
	name     string
	workload workload
	leave    []string
}

// alike returns a number of pods of a workload.
func alike(prefix string, w workload, n int) []arrival {
	out := make([]arrival, n)
	for i := range out {
		out[i] = arrival{name: fmt.Sprintf("%s-%d", prefix, i), workload: w}
	}
	return out
}

// binding is a pod that the scheduler bound, and the time from its creation to the binding that the API server reports.
type binding struct {
	pod  string
	wait time.Duration
}

// with adds the figures of bindings, for which the scheduler needed so long.
func (r result) with(bindings []binding, span time.Duration) result {
	waits := make([]time.Duration, len(bindings))
	for i, b := range bindings {
		waits[i] = b.wait
	}
	if r.bound, r.span = len(bindings), span; r.bound > 0 {
		slices.Sort(waits)
		r.p50, r.p99 = table.Quantile(waits, 0.5), table.Quantile(waits, 0.99)
	}
	return r
}

// bind creates the pods in order, of which some wait for the scheduler at a time, and returns those that the scheduler
// bound within the limit. The span ends with the last of them. A pod that must leave and is not bound yet leaves when it is.
func (c *controlPlane) bind(ctx context.Context, arrivals []arrival, limit time.Duration) (bindings []binding, span time.Duration, err error) {
	if err := each(ctx, len(arrivals), func(ctx context.Context, i int) error { return c.createClaim(ctx, arrivals[i]) }); err != nil {
		return nil, 0, err
	}
	pods := c.client.CoreV1().Pods(namespace)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	list, err := pods.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, 0, err
	}
	watched, err := pods.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return nil, 0, err
	}
	defer watched.Stop()
	events := watched.ResultChan()
	requests := len(arrivals)
	for _, a := range arrivals {
		requests += len(a.leave)
	}
	failed := make(chan error, requests)
	send := func(request func() error) { go func() { failed <- request() }() }
	remove := func(name string) { send(func() error { return c.remove(ctx, name) }) }
	type waiting struct {
		since   time.Time
		leaving bool
	}
	queue, next := map[string]*waiting{}, 0
	create := func() {
		if next == len(arrivals) {
			return
		}
		a := arrivals[next]
		next++
		for _, name := range a.leave {
			if w := queue[name]; w != nil {
				w.leaving = true
			} else {
				remove(name)
			}
		}
		queue[a.name] = &waiting{since: time.Now()}
		send(func() error {
			_, err := pods.Create(ctx, a.workload.pod(a.name), metav1.CreateOptions{})
			return err
		})
	}
	began := time.Now()
	for range c.waiting {
		create()
	}
	for len(bindings) < len(arrivals) {
		select {
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
				return bindings, span, nil
			}
			return nil, 0, context.Cause(ctx)
		case err := <-failed:
			if err != nil && ctx.Err() == nil {
				return nil, 0, err
			}
		case event, open := <-events:
			if !open {
				if ctx.Err() == nil {
					return nil, 0, errors.New("the API server ended the watch of pods")
				}
				events = nil // The limit is over.
				continue
			}
			pod, ok := event.Object.(*corev1.Pod)
			if !ok || pod.Spec.NodeName == "" {
				continue
			}
			if w := queue[pod.Name]; w != nil {
				delete(queue, pod.Name)
				bindings, span = append(bindings, binding{pod.Name, time.Since(w.since)}), time.Since(began)
				if w.leaving {
					remove(pod.Name)
				}
				create()
			}
		}
	}
	return bindings, span, nil
}

// createClaim creates the claim of a pod that needs one.
func (c *controlPlane) createClaim(ctx context.Context, a arrival) error {
	if a.workload.request == nil {
		return nil
	}
	_, err := c.client.ResourceV1().ResourceClaims(namespace).Create(ctx, a.workload.claim(a.name), metav1.CreateOptions{})
	return err
}

// remove deletes a pod and its claim, whose devices are free then. It removes the `finalizers` of the scheduler, as a
// controller would.
func (c *controlPlane) remove(ctx context.Context, name string) error {
	now := int64(0)
	if err := c.client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		return ignoreNotFound(err)
	}
	claims := c.client.ResourceV1().ResourceClaims(namespace)
	if err := claims.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return ignoreNotFound(err)
	}
	_, err := claims.Patch(ctx, name, types.MergePatchType, withoutFinalizers, metav1.PatchOptions{})
	return ignoreNotFound(err)
}

// measure fills the cluster, and measures the scheduler while it binds pods.
func (b *bench) measure(ctx context.Context, scheduler *process, r result, w workload, free int) (result, error) {
	if b.unsatisfiable > 0 {
		if err := b.addUnsatisfiable(ctx); err != nil {
			return r, err
		}
	}
	fit := free * w.pods / w.per
	warm := min(2, fit/2)
	r, _, err := b.observe(ctx, scheduler, r, alike("warm", w, warm), alike("pod", w, min(b.pods, fit-warm)))
	return r, err
}

// observe measures the scheduler while it binds pods.
func (b *bench) observe(ctx context.Context, scheduler *process, r result, warm, arrivals []arrival) (result, []binding, error) {
	// The scheduler's caches follow the changes of slices and claims before it binds these.
	if bindings, _, err := b.bind(ctx, warm, time.Minute); err != nil || len(bindings) < len(warm) {
		return r, nil, errors.Join(err, fmt.Errorf("the scheduler bound %d of the first %d pods", len(bindings), len(warm)))
	}
	r.wanted = len(arrivals)
	before, err := scheduler.cpu()
	if err != nil {
		return r, nil, err
	}
	bindings, span, err := b.bind(ctx, arrivals, b.limit)
	if err != nil {
		return r, nil, err
	}
	after, err := scheduler.cpu()
	if err != nil {
		return r, nil, err
	}
	r.megabytes, err = scheduler.megabytes()
	if r = r.with(bindings, span); r.bound > 0 {
		r.cpuPerPod = (after - before) / time.Duration(r.bound)
	}
	return r, bindings, err
}

// addUnsatisfiable creates pods that no node satisfies.
func (b *bench) addUnsatisfiable(ctx context.Context) error {
	pods := alike("misfit", misfits, b.unsatisfiable)
	return each(ctx, len(pods), func(ctx context.Context, i int) error {
		if err := b.createClaim(ctx, pods[i]); err != nil {
			return err
		}
		_, err := b.client.CoreV1().Pods(namespace).Create(ctx, misfits.pod(pods[i].name), metav1.CreateOptions{})
		return err
	})
}
