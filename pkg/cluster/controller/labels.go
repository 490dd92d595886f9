// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/cluster/bounded"
	"gpu-dra-driver/pkg/cluster/nodelabels"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
)

type labeller struct {
	driver string
	grace  time.Duration
	slices cache.Indexer
	nodes  cache.Indexer
	client typedcorev1.NodeInterface
	// delays limits the rate of writes to nodes whose labels another program changes again and again.
	delays *flowcontrol.Backoff
	// states holds the labelState of each node. One worker at a time labels a node.
	states sync.Map
}

type labelState struct {
	// published and described are since when the node has had no slices, or none with all attributes of a GPU.
	published, described absence
	// wanted is a hash of the labels of the last write.
	wanted uint64
}

// absence is the time since when slices are missing. It is zero while they exist.
type absence struct{ since time.Time }

// left returns the rest of the grace period of missing slices.
func (a *absence) left(grace time.Duration, missing bool) time.Duration {
	if !missing {
		a.since = time.Time{}
		return 0
	}
	if a.since.IsZero() {
		a.since = time.Now()
	}
	return grace - time.Since(a.since)
}

// label updates one node's labels. It returns the delay until the next run if nothing changes; 0: none.
func (l *labeller) label(ctx context.Context, node string) (again time.Duration, err error) {
	object, exists, _ := l.nodes.GetByKey(node) // Reading the cache cannot fail.
	meta, ok := object.(*corev1.Node)
	if !exists || !ok {
		l.states.Delete(node)
		l.delays.Reset(node)
		return 0, nil
	}
	if bounded.TooLarge(meta) {
		return 0, fmt.Errorf("label Node %s: its labels, taints and annotations are too large to judge; remove some",
			node)
	}
	known, _ := l.states.LoadOrStore(node, &labelState{})
	state, _ := known.(*labelState)
	slices := read.SlicesOf(l.slices, node)
	p := pool.Of(slices)
	// A kubelet that starts removes its node's slices. The plugin publishes them again, one pool after the other.
	// Labels need the attributes of whole GPUs or of monitor devices, and the settings can switch these off.
	published := !pool.OnlyMonitors(slices)
	rest := max(state.published.left(l.grace, !published), state.described.left(l.grace, !pool.Described(slices)))
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
	hash := fnv.New64a()
	fmt.Fprint(hash, want) // In the order of the keys.
	if state.wanted != hash.Sum64() {
		state.wanted = hash.Sum64()
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
