// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/admission"
)

// outcome is the allocator's answer for a node.
type outcome int

const (
	no outcome = iota
	yes
	// unknown means that the time was up.
	unknown
	// fatal means that the scheduler gives up for all nodes.
	fatal
)

// allocate asks the scheduler's allocator for the claims on a node, without the allocations of the released claims.
func (a *asker) allocate(ctx context.Context, s *site, released sets.Set[types.NamespacedName], claims []*resourceapi.ResourceClaim) (
	result outcome, text string,
) {
	if len(claims) == 0 {
		return yes, ""
	}
	if a.tooFew(ctx, s, released, claims) {
		return no, ""
	}
	// A slice that no API server accepts can make the allocator panic.
	defer func() {
		if r := recover(); r != nil {
			result, text = fatal, fmt.Sprintf("the allocator cannot read the objects: %v", r)
		}
	}()
	// A call needs about 0.2 ms for a node unless it must try many combinations, or the machine has no processor for it.
	limited, cancel := context.WithTimeout(klog.NewContext(ctx, klog.Logger{}), a.Limit/time.Duration(a.questions))
	defer cancel()
	allocator, err := structured.NewAllocator(limited, admission.Features, a.state(s, released), a.lister, s.slices, a.compiled)
	if err != nil {
		return fatal, err.Error()
	}
	allocations, err := allocator.Allocate(limited, s.node, claims)
	switch {
	case err == nil && len(allocations) == len(claims):
		return yes, "" // Also after the limit: the answer is complete.
	case limited.Err() != nil:
		return unknown, ""
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return no, err.Error()
	case err != nil:
		return fatal, err.Error()
	}
	return no, ""
}

// state returns the allocated devices of a node's pools, as the scheduler counts them.
func (a *asker) state(s *site, released sets.Set[types.NamespacedName]) structured.AllocatedState {
	out := structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
	seen := map[poolID]bool{}
	for _, slice := range s.slices {
		pool := poolOf(slice)
		if seen[pool] {
			continue
		}
		seen[pool] = true
		for _, holds := range s.held[pool] {
			for _, h := range holds {
				if released.Has(nameOf(h.claim)) {
					continue
				}
				device := structured.MakeDeviceID(h.result.Driver, h.result.Pool, h.result.Device)
				if h.result.ShareID == nil {
					out.AllocatedDevices.Insert(device)
					continue
				}
				out.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(device, h.result.ShareID))
				out.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(device, h.result.ConsumedCapacity))
			}
		}
	}
	return out
}

// matches reports whether a slice or one of its devices is for a node. An unreadable node selector matches none.
func matches(node *corev1.Node, name *string, all *bool, selector *corev1.NodeSelector) bool {
	if name != nil && *name != "" {
		return *name == node.Name // The common case.
	}
	ok, err := structured.NodeMatches(admission.Features, node, ptr.Deref(name, ""), ptr.Deref(all, false), selector)
	return err == nil && ok
}
