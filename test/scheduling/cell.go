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

	"gpu-dra-driver/test/bench/table"
)

// result is a cell: pods of one workload in a cluster in one state.
type result struct {
	setting, workload, used string
	wanted, bound           int
	span, p99, cpuPerPod    time.Duration
	megabytes               int
	start                   time.Duration
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

// crowd is a number of pods of a workload, of which some wait for the scheduler at a time.
type crowd struct {
	*controlPlane
	workload workload
	prefix   string
	pods     int
}

func (c crowd) name(i int) string { return fmt.Sprintf("%s-%d", c.prefix, i) }

// bind creates the pods, and returns the sorted times from creation to the binding that the API server reports, of the
// pods that the scheduler bound within the limit. The span ends with the last of them.
func (c crowd) bind(ctx context.Context, limit time.Duration) (waits []time.Duration, span time.Duration, err error) {
	pods := c.client.CoreV1().Pods(namespace)
	if c.workload.request != nil {
		err := each(ctx, c.pods, func(ctx context.Context, i int) error {
			_, err := c.client.ResourceV1().ResourceClaims(namespace).Create(ctx, c.workload.claim(c.name(i)), metav1.CreateOptions{})
			return err
		})
		if err != nil {
			return nil, 0, err
		}
	}
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
	begin, created := time.Now(), map[string]time.Time{}
	failed, next := make(chan error, c.pods), 0
	create := func() {
		if next == c.pods {
			return
		}
		name := c.name(next)
		next++
		created[name] = time.Now()
		go func() {
			_, err := pods.Create(ctx, c.workload.pod(name), metav1.CreateOptions{})
			failed <- err
		}()
	}
	for range c.waiting {
		create()
	}
	for len(waits) < c.pods {
		select {
		case <-ctx.Done():
			slices.Sort(waits)
			if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
				return waits, span, nil
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
			if at, ours := created[pod.Name]; ours {
				delete(created, pod.Name)
				waits, span = append(waits, time.Since(at)), time.Since(begin)
				create()
			}
		}
	}
	slices.Sort(waits)
	return waits, span, nil
}

// measure fills the cluster, and measures the scheduler while it binds pods.
func (b *bench) measure(ctx context.Context, scheduler *process, r result, w workload, free int) (result, error) {
	if b.unsatisfiable > 0 {
		if err := b.addUnsatisfiable(ctx); err != nil {
			return r, err
		}
	}
	fit := free * w.pods / w.per
	warm := crowd{b.controlPlane, w, "warm", min(2, fit/2)}
	// The scheduler's caches follow the changes of slices and claims before it binds these.
	if waits, _, err := warm.bind(ctx, time.Minute); err != nil || len(waits) < warm.pods {
		return r, errors.Join(err, fmt.Errorf("the scheduler bound %d of the first %d pods", len(waits), warm.pods))
	}
	r.wanted = min(b.pods, fit-warm.pods)
	before, err := scheduler.cpu()
	if err != nil {
		return r, err
	}
	waits, span, err := crowd{b.controlPlane, w, "pod", r.wanted}.bind(ctx, b.limit)
	if err != nil {
		return r, err
	}
	after, err := scheduler.cpu()
	if err != nil {
		return r, err
	}
	r.megabytes, err = scheduler.megabytes()
	if r.bound, r.span = len(waits), span; r.bound > 0 {
		r.p99, r.cpuPerPod = table.Quantile(waits, 0.99), (after-before)/time.Duration(r.bound)
	}
	return r, err
}

// addUnsatisfiable creates pods that ask for nine GPUs of a node.
func (b *bench) addUnsatisfiable(ctx context.Context) error {
	nine := workloads[0]
	request := *nine.request
	request.Count = 9
	nine.request = &request
	return each(ctx, b.unsatisfiable, func(ctx context.Context, i int) error {
		name := fmt.Sprintf("nine-%d", i)
		if _, err := b.client.ResourceV1().ResourceClaims(namespace).Create(ctx, nine.claim(name), metav1.CreateOptions{}); err != nil {
			return err
		}
		_, err := b.client.CoreV1().Pods(namespace).Create(ctx, nine.pod(name), metav1.CreateOptions{})
		return err
	})
}
