// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"context"
	"errors"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

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
	if a.anyTooFew(ctx, n, released, claims) {
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

// anyTooFew reports whether the node has too few devices for a request of the claims. A selector that fails leaves the
// answer to the allocator, because such an error ends the scheduler's attempt.
func (a Asker) anyTooFew(
	ctx context.Context, n *Node, released sets.Set[types.NamespacedName], claims []*resourceapi.ResourceClaim,
) bool {
	for _, c := range claims {
		for _, q := range a.Requests(c.Spec.Devices) {
			if q.Alternative() {
				continue
			}
			if few, err := a.TooFew(ctx, n, released, q); few || err != nil {
				return err == nil
			}
		}
	}
	return false
}

// TooFew reports whether a request counts more devices than the node can give it. Each test here is one that every
// allocated device passes. It is false for requests of an open number or for administrators, and without a class. The
// error is the first one of a selector.
func (a Asker) TooFew(ctx context.Context, n *Node, released sets.Set[types.NamespacedName], q Request) (bool, error) {
	if q.Class == nil || q.Admin() || q.Devices() == 0 {
		return false, nil
	}
	left, expressions := n.left(released), q.Expressions()
	count, whole := int64(0), true
	bound := map[string]*together{}
	for _, s := range n.Slices {
		id := s.id()
		for i, d := range s.Spec.Devices {
			failed, err := a.Failing(ctx, expressions, s.Candidate(i))
			if err != nil {
				return false, err
			}
			if failed != "" || len(Untolerated(d, q.Tolerations)) > 0 {
				continue
			}
			if n.whole(id, d.Name, released) || !n.inUse(id, d.Name, released) && len(left[id].Lacking(d)) > 0 {
				continue
			}
			count++
			whole = whole && len(d.ConsumesCounters) == 1 && !ptr.Deref(d.AllowMultipleAllocations, false)
			if len(d.ConsumesCounters) == 1 {
				use := d.ConsumesCounters[0]
				key := id.Driver + "/" + id.Pool + "/" + use.CounterSet
				if bound[key] == nil {
					bound[key] = &together{left: left[id][use.CounterSet]}
				}
				bound[key].add(use.Counters)
			}
		}
	}
	if whole { // Devices of one counter set compete for it.
		count = 0
		for _, b := range bound {
			count += b.most()
		}
	}
	return count < q.Devices(), nil
}

// together bounds how many devices of one counter set can be allocated at once.
type together struct {
	left  map[string]resource.Quantity
	count int64
	// least is the smallest sum of all counters that a device consumes.
	least int64
}

func (t *together) add(consumed map[string]resourceapi.Counter) {
	sum := int64(0)
	for _, c := range consumed {
		n, ok := c.Value.AsInt64()
		if !ok || n < 0 || n > maxCounter {
			n = -maxCounter // No bound.
		}
		sum += n
	}
	if t.count == 0 || sum < t.least {
		t.least = sum
	}
	t.count++
}

// maxCounter keeps sums of 32 counters in range.
const maxCounter = 1 << 58

func (t *together) most() int64 {
	sum := int64(0)
	for _, q := range t.left {
		n, ok := q.AsInt64()
		if !ok || n > maxCounter {
			return t.count
		}
		sum += max(n, 0)
	}
	if t.least <= 0 {
		return t.count
	}
	return min(t.count, sum/t.least)
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
