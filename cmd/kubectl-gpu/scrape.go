// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/url"
	"path"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"

	"gpu-dra-driver/pkg/show/view"
)

const (
	// maxScrapes is the number of requests at a time.
	maxScrapes = 16
	// scrapeTimeout is the time for one pod, so that a pod that hangs does not take the others' time.
	scrapeTimeout = 5 * time.Second
)

// scraped are the metrics of pods, by the keys of scrape, and the reasons for those that are missing.
type scraped struct {
	samples map[string]view.Samples
	missing map[string]string
}

// scrape reads the metrics of pods through the API server's proxy, so no network path to the pods is needed. key must
// be different for each pod.
func scrape(ctx context.Context, client kubernetes.Interface, pods []corev1.Pod, key func(corev1.Pod) string) scraped {
	out := scraped{map[string]view.Samples{}, map[string]string{}}
	var mu sync.Mutex
	workqueue.ParallelizeUntil(context.WithoutCancel(ctx), maxScrapes, len(pods), func(i int) {
		samples, err := scrapeOne(ctx, client, pods[i])
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			out.missing[key(pods[i])] = err.Error()
			return
		}
		out.samples[key(pods[i])] = samples
	})
	return out
}

func scrapeOne(ctx context.Context, client kubernetes.Interface, p corev1.Pod) (view.Samples, error) {
	name := p.Namespace + "/" + p.Name
	e, ok := view.MetricsEndpoint(p)
	if !ok {
		return nil, fmt.Errorf("pod %s serves no metrics: install the chart with kubeletPlugin.metrics.enabled and "+
			"controller.metrics.enabled", name)
	}
	u, err := url.Parse(e.Path)
	if err != nil {
		return nil, fmt.Errorf("pod %s has the metrics path %q: %w", name, e.Path, err)
	}
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	body, err := client.CoreV1().Pods(p.Namespace).ProxyGet("http", p.Name, e.Port, path.Clean("/"+u.Path),
		nil).Stream(ctx)
	if apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("you may not get the subresource pods/proxy in namespace %s", p.Namespace)
	}
	if err != nil {
		return nil, fmt.Errorf("read the metrics of pod %s: %w", name, err)
	}
	defer func() { _ = body.Close() }()
	samples, err := view.ReadSamples(body)
	if err != nil {
		return nil, fmt.Errorf("read the metrics of pod %s: %w", name, err)
	}
	return samples, nil
}

func nodeOf(p corev1.Pod) string { return p.Spec.NodeName }

func nameOf(p corev1.Pod) string { return p.Namespace + "/" + p.Name }
