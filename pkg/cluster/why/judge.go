// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/pool"
)

// asker answers one question.
type asker struct {
	*Cluster
	Options
	ask.Asker
	empty sync.Map // emptyKey → ask.Outcome on an empty node
	// samples are the partitions that nodes could publish. They know those of slices, once byNode has filled it.
	samples *pool.Samples
	slices  map[string][]*pool.Slice
	// questions is the number of hard questions for which the time suffices. With few kinds of nodes there are few.
	questions int
}

type emptyKey struct {
	bare   uint64
	claims *resourceapi.ResourceClaim // The first of the claims: each set has its own copies.
}

// judge asks the allocator once for each shape.
func (a *asker) judge(ctx context.Context, shapes []*shape, claims []*resourceapi.ResourceClaim) {
	a.questions = min(20, 4*max(1, len(shapes)))
	needsDevice := slices.ContainsFunc(claims, func(c *resourceapi.ResourceClaim) bool {
		return len(a.Requests(c.Spec.Devices)) > 0
	})
	ask.Each(len(shapes), func(i int) {
		s := shapes[i]
		if s.Devices == 0 && needsDevice {
			return // The result No needs no question, and most nodes of a large cluster can have no device.
		}
		if ctx.Err() != nil {
			s.result = ask.Unknown
			return
		}
		s.result, s.text = a.allocate(ctx, s.Node, nil, claims)
	})
}

// allocate asks for the claims on a node, without the allocations of the released claims.
func (a *asker) allocate(
	ctx context.Context, n *ask.Node, released sets.Set[types.NamespacedName], claims []*resourceapi.ResourceClaim,
) (ask.Outcome, string) {
	// A call needs about 0.2 ms for a node unless it must try many combinations.
	ctx, cancel := ask.WithProcessorTime(ctx, a.Limit/time.Duration(a.questions))
	defer cancel()
	return a.Allocate(ctx, n, released, claims)
}

// fits reports whether a node can allocate the claims once the released claims have ended.
func (a *asker) fits(
	ctx context.Context, n *ask.Node, released sets.Set[types.NamespacedName], claims []*resourceapi.ResourceClaim,
) bool {
	result, _ := a.allocate(ctx, n, released, claims)
	return result == ask.Yes
}

// onEmpty asks for the claims on the node without any allocation. Nodes that differ only in their allocations have one
// answer, and causes and cures ask for the same claims, so the answers are kept.
func (a *asker) onEmpty(ctx context.Context, s *shape, claims []*resourceapi.ResourceClaim) ask.Outcome {
	key := emptyKey{s.Bare, claims[0]}
	if known, ok := a.empty.Load(key); ok {
		return known.(ask.Outcome)
	}
	result, _ := a.allocate(ctx, s.Node, s.everyone(), claims)
	if result != ask.Unknown {
		a.empty.Store(key, result)
	}
	return result
}
