// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/util/workqueue"

	"gpu-dra-driver/pkg/show/view"
)

// gauge measures the GPUs of few nodes for the page. It knows the plugin's pod of a node until it cannot read it. Only
// one measurement runs at a time.
type gauge struct {
	*reader
	known map[string]corev1.Pod
}

// errNoPods means that the user may list no pods.
var errNoPods = errors.New("you may not list the pods of the driver's plugins")

func (g *gauge) measure(
	ctx context.Context, nodes []string,
) (use map[view.GPUName]view.GPUUse, missing map[string]string, err error) {
	missing = map[string]string{}
	if err := g.find(ctx, nodes, missing); err != nil {
		return nil, nil, err
	}
	var pods []corev1.Pod
	for _, n := range nodes {
		if p, found := g.known[n]; found {
			pods = append(pods, p)
		}
	}
	found := scrape(ctx, g.client, pods, nodeOf)
	for n, reason := range found.missing {
		missing[n] = reason
		delete(g.known, n)
	}
	return view.TopGPUs(found.samples), missing, nil
}

// find looks for the plugins of nodes that it does not know, one node at a time: a cluster can have thousands.
func (g *gauge) find(ctx context.Context, nodes []string, missing map[string]string) error {
	var mu sync.Mutex
	var unknown []string
	for _, n := range nodes {
		if _, known := g.known[n]; !known {
			unknown = append(unknown, n)
		}
	}
	forbidden := false
	workqueue.ParallelizeUntil(context.WithoutCancel(ctx), maxScrapes, len(unknown), func(i int) {
		n := unknown[i]
		pods, err := g.on(ctx, n)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case apierrors.IsForbidden(err):
			forbidden = true
		case err != nil:
			missing[n] = fmt.Sprintf("list the pods of the node: %v", err)
		case len(pods) == 0:
			missing[n] = "no plugin of the driver runs on the node"
		default:
			g.known[n] = pods[0]
		}
	})
	if forbidden {
		return errNoPods
	}
	return nil
}

// on returns the plugin of a node, from all namespaces, or from the user's if that is all the user may read.
func (g *gauge) on(ctx context.Context, node string) ([]corev1.Pod, error) {
	limited, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	onNode := fields.OneTermEqualSelector("spec.nodeName", node).String()
	var e ends
	var found []corev1.Pod
	for page := range g.pods(onNode).list(limited, view.PluginSelector, &e) {
		if pods, ok := page.(*corev1.PodList); ok {
			found = append(found, pods.Items...)
		}
	}
	if e.own != nil {
		return nil, e.own
	}
	for _, p := range view.PluginPods(found) {
		if p.Spec.NodeName == node { // An API server of a test ignores selectors.
			return []corev1.Pod{p}, nil
		}
	}
	return nil, nil
}
