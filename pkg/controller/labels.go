// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/fleet"
	"gpu-dra-driver/pkg/nodelabels"
)

// labeller labels nodes.
type labeller struct {
	driver string
	grace  time.Duration
	slices cache.Indexer
	nodes  cache.Indexer
	client metadata.Getter

	mu sync.Mutex
	// gone are the nodes that publish nothing any more, since when.
	gone map[string]time.Time
}

// label makes one node's labels as they should be and says when to look again, 0 for not before something changes.
func (l *labeller) label(ctx context.Context, node string) (again time.Duration, err error) {
	object, exists, _ := l.nodes.GetByKey(node) // The cache has no errors.
	meta, ok := object.(*metav1.PartialObjectMetadata)
	if !exists || !ok {
		l.resetGrace(node)
		return 0, nil
	}
	slices := slicesOf(l.slices, node)
	pool := fleet.PoolOf(slices)
	var want map[string]string
	if len(slices) > 0 {
		l.resetGrace(node)
		if !pool.Whole {
			return 0, nil // Its last slice brings this node again.
		}
		want = nodelabels.Of(pool, l.driver)
	} else if rest := l.graceLeft(node); rest > 0 && meta.Annotations[nodelabels.Written] != "" {
		return rest, nil // A kubelet that starts takes its slices away for a moment.
	}
	change := nodelabels.Plan(meta.Labels, meta.Annotations, want)
	if change.None() {
		return 0, nil
	}
	_, err = l.client.Patch(ctx, node, types.MergePatchType, change.Patch(meta.ResourceVersion), metav1.PatchOptions{})
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return cacheLag, nil
	case err != nil:
		return 0, fmt.Errorf("label Node %s: %w", node, err)
	}
	klog.FromContext(ctx).V(2).Info("Labelled a Node", "node", node, "labels", change.Keys())
	return 0, nil
}

// resetGrace forgets how long the node has published nothing.
func (l *labeller) resetGrace(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.gone, node)
}

// graceLeft is how long to go on as if the node still published.
func (l *labeller) graceLeft(node string) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	since, known := l.gone[node]
	if !known {
		since = time.Now()
		l.gone[node] = since
	}
	return l.grace - time.Since(since)
}

// trimNode keeps of a node what labels are planned by.
func trimNode(driver string) cache.TransformFunc {
	return func(object any) (any, error) {
		meta, ok := object.(*metav1.PartialObjectMetadata)
		if !ok {
			return object, nil
		}
		meta.ManagedFields, meta.OwnerReferences, meta.Finalizers = nil, nil, nil
		// A map keeps the room of what is deleted from it.
		labels := map[string]string{}
		for key, value := range meta.Labels {
			if nodelabels.Concerns(key, driver) {
				labels[key] = value
			}
		}
		meta.Labels = labels
		maps.DeleteFunc(meta.Annotations, func(key, _ string) bool { return key != nodelabels.Written })
		return meta, nil
	}
}
