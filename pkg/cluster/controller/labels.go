// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/cluster/nodelabels"
	"gpu-dra-driver/pkg/cluster/pool"
)

type labeller struct {
	driver string
	grace  time.Duration
	slices cache.Indexer
	nodes  cache.Indexer
	client metadata.Getter
	// delays limits the rate of writes to nodes whose labels another program changes again and again.
	delays *flowcontrol.Backoff

	mu sync.Mutex
	// gone holds since when each node has had no slices, or no monitor devices.
	gone map[string]time.Time
	// wanted holds a hash of the labels of each node's last write.
	wanted map[string]uint64
}

// label updates one node's labels. It returns the delay until the next run if nothing changes; 0: none.
func (l *labeller) label(ctx context.Context, node string) (again time.Duration, err error) {
	object, exists, _ := l.nodes.GetByKey(node) // Reading the cache cannot fail.
	meta, ok := object.(*metav1.PartialObjectMetadata)
	if !exists || !ok {
		l.forget(node)
		return 0, nil
	}
	slices := slicesOf(l.slices, node)
	p := pool.Of(slices)
	// A kubelet that starts removes its node's slices. The plugin publishes them again, one pool after the other. The
	// settings can switch monitor devices off.
	published := !pool.OnlyMonitors(slices)
	rest := max(l.graceLeft(node, !published), l.graceLeft(node+monitors, !pool.Monitored(slices)))
	if rest > 0 && meta.Annotations[nodelabels.Written(l.driver)] != "" {
		return rest, nil
	}
	var want map[string]string
	if published {
		if !p.Whole {
			return 0, nil // The arrival of the missing slices triggers the next run.
		}
		want = nodelabels.Of(p, l.driver)
	}
	change := nodelabels.Plan(meta.Labels, meta.Annotations, want, l.driver)
	if change.None() {
		return 0, nil
	}
	if l.wantsOthers(node, want) {
		l.delays.Reset(node)
	}
	if l.delays.IsInBackOffSinceUpdate(node, time.Now()) {
		return l.delays.Get(node), nil
	}
	l.delays.Next(node, time.Now())
	_, err = l.client.Patch(ctx, node, types.MergePatchType, change.Patch(meta.ResourceVersion), metav1.PatchOptions{})
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return l.delays.Get(node), nil
	case err != nil:
		return 0, fmt.Errorf("label Node %s: %w", node, err)
	}
	klog.FromContext(ctx).V(2).Info("Labelled a Node", "node", node, "labels", change.Keys())
	return 0, nil
}

// wantsOthers reports whether a node should get other labels than with its last write, and notes them.
func (l *labeller) wantsOthers(node string, want map[string]string) bool {
	h := fnv.New64a()
	fmt.Fprint(h, want) // In the order of the keys.
	l.mu.Lock()
	defer l.mu.Unlock()
	last, known := l.wanted[node]
	l.wanted[node] = h.Sum64()
	return !known || last != h.Sum64()
}

// forget drops what is kept of a node that was deleted.
func (l *labeller) forget(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.gone, node)
	delete(l.gone, node+monitors)
	delete(l.wanted, node)
	l.delays.Reset(node)
}

// monitors ends the key of a node's monitor devices.
const monitors = "/monitor"

// graceLeft returns the remaining grace period of slices that are missing.
func (l *labeller) graceLeft(key string, missing bool) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !missing {
		delete(l.gone, key)
		return 0
	}
	since, known := l.gone[key]
	if !known {
		since = time.Now()
		l.gone[key] = since
	}
	return l.grace - time.Since(since)
}

// trimNode keeps the labels and annotations of a node that the driver needs.
func trimNode(driver string) cache.TransformFunc {
	return func(object any) (any, error) {
		meta, ok := object.(*metav1.PartialObjectMetadata)
		if !ok {
			return object, nil
		}
		meta.ManagedFields, meta.OwnerReferences, meta.Finalizers = nil, nil, nil
		// New maps, because a map keeps the memory of deleted keys.
		for _, all := range []*map[string]string{&meta.Labels, &meta.Annotations} {
			kept := map[string]string{}
			for key, value := range *all {
				if nodelabels.Concerns(key, driver) {
					kept[key] = value
				}
			}
			*all = kept
		}
		return meta, nil
	}
}
