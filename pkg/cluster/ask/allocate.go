// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"context"
	"errors"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/cluster/pool"
)

// Outcome is the allocator's answer for a node.
type Outcome int

// The outcomes.
const (
	No Outcome = iota
	Yes
	// Unknown means that the time was up.
	Unknown
	// Fatal means that the scheduler gives up for all nodes.
	Fatal
)

// Placement is the allocator's answer for a node, with the devices of each claim.
type Placement struct {
	Outcome
	// Text explains No and Fatal, if the allocator does.
	Text string
	// Allocations has an allocation for each claim, in their order. There are none but for Yes.
	Allocations []resourceapi.AllocationResult
}

// Allocate asks the scheduler's allocator for the claims on a node, without the allocations of the released claims. The
// text explains No and Fatal, if the allocator does.
func (a Asker) Allocate(
	ctx context.Context, n *Node, released sets.Set[types.NamespacedName], claims []*resourceapi.ResourceClaim,
) (
	result Outcome, text string,
) {
	p := a.Place(ctx, n, released, claims)
	return p.Outcome, p.Text
}

// Place asks like Allocate. It also returns the devices that the claims get.
func (a Asker) Place(
	ctx context.Context, n *Node, released sets.Set[types.NamespacedName], claims []*resourceapi.ResourceClaim,
) (
	result Placement,
) {
	if len(claims) == 0 {
		return Placement{Outcome: Yes}
	}
	// The allocator would find that out by trying the devices in every order.
	if short, err := a.TooFew(ctx, n, released, a.OfAll(claims)); err == nil && short != nil {
		return Placement{Outcome: No}
	}
	// A slice that no API server accepts can make the allocator panic.
	defer func() {
		if r := recover(); r != nil {
			result = Placement{Outcome: Fatal, Text: fmt.Sprintf("the allocator cannot read the objects: %v", r)}
		}
	}()
	published := make([]*resourceapi.ResourceSlice, len(n.Slices))
	for i, s := range n.Slices {
		published[i] = s.ResourceSlice
	}
	ctx = klog.NewContext(ctx, klog.Logger{})
	allocator, err := structured.NewAllocator(ctx, Features(a.Server), n.state(released), lister{a.Classes}, published,
		a.compiled)
	if err != nil {
		return Placement{Outcome: Fatal, Text: err.Error()}
	}
	allocations, err := allocator.Allocate(ctx, n.Node, claims)
	switch {
	case err == nil && len(allocations) == len(claims):
		return Placement{Outcome: Yes, Allocations: allocations} // Also after the limit: the answer is complete.
	case ctx.Err() != nil:
		return Placement{Outcome: Unknown}
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return Placement{Outcome: No, Text: err.Error()}
	case err != nil:
		return Placement{Outcome: Fatal, Text: err.Error()}
	}
	return Placement{Outcome: No}
}

// state returns the allocated devices of the node's pools, as the scheduler counts them.
func (n *Node) state(released sets.Set[types.NamespacedName]) structured.AllocatedState {
	out := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	seen := map[pool.ID]bool{}
	for _, s := range n.Slices {
		if seen[s.id()] {
			continue
		}
		seen[s.id()] = true
		for _, holds := range n.held[s.id()] {
			for _, h := range holds {
				if released.Has(NameOf(h.Claim)) {
					continue
				}
				device := structured.MakeDeviceID(h.Result.Driver, h.Result.Pool, h.Result.Device)
				if h.Result.ShareID == nil {
					out.AllocatedDevices.Insert(device)
					continue
				}
				out.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(device, h.Result.ShareID))
				out.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(device, h.Result.ConsumedCapacity))
			}
		}
	}
	return out
}

// Failure explains an error of the allocator. The error of a selector that reads a missing attribute advises the author
// of the selector in terms of CEL.
func Failure(text string) string {
	_, after, found := strings.Cut(text, "no such key: ")
	if !found {
		return text
	}
	key, _, _ := strings.Cut(strings.TrimSuffix(after, "."), ". ")
	before, _, _ := strings.Cut(text, ": CEL runtime error")
	return fmt.Sprintf("%s: no such key: %s. The device lacks the attribute or its domain, and a selector that reads "+
		"it fails", before, key)
}
