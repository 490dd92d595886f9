// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
)

// features are the allocator's on Kubernetes 1.37.
var features = structured.Features{AdminAccess: true, ConsumableCapacity: true, DeviceTaints: true, PartitionableDevices: true, PrioritizedList: true}

// scheduler is the scheduler's own allocator on a board.
type scheduler struct {
	board  *board
	held   []*claim // with an allocation
	quota  map[string]int64
	shares int
}

// List implements structured.DeviceClassLister.
func (b *board) List() ([]*resourceapi.DeviceClass, error) {
	return slices.Collect(maps.Values(b.classes)), nil
}

// Get implements structured.DeviceClassLister.
func (b *board) Get(name string) (*resourceapi.DeviceClass, error) {
	if class, ok := b.classes[name]; ok {
		return class, nil
	}
	return nil, fmt.Errorf("there is no DeviceClass %s", name)
}

// place allocates the pod's claims. The reason says why it cannot, and is empty where it can.
func (s *scheduler) place(ctx context.Context, p *pod) (reason string, err error) {
	if reason := s.board.rejects(p.spec); reason != "" {
		return reason, nil
	}
	var waiting []*claim
	for _, c := range p.claims {
		if c.Status.Allocation == nil {
			waiting = append(waiting, c)
		}
	}
	if reason := s.overQuota(waiting); reason != "" {
		return reason, nil
	}
	results, why, err := s.allocate(ctx, s.state(), waiting)
	if err != nil {
		return "", err
	}
	if results == nil {
		return s.explain(ctx, waiting, why)
	}
	for i, c := range waiting {
		c.Status.Allocation = &results[i]
		for j := range results[i].Devices.Results {
			if r := &results[i].Devices.Results[j]; r.ShareID != nil {
				// The allocator's own IDs are long and random.
				s.shares++
				r.ShareID = new(types.UID(fmt.Sprintf("share-%d", s.shares)))
			}
		}
		s.held = append(s.held, c)
	}
	return "", nil
}

// release forgets the allocation of a claim.
func (s *scheduler) release(c *claim) {
	c.Status.Allocation = nil
	s.held = slices.DeleteFunc(s.held, func(o *claim) bool { return o == c })
}

// state lists the devices that claims hold.
func (s *scheduler) state() structured.AllocatedState {
	state := empty()
	for _, c := range s.held {
		for _, r := range c.Status.Allocation.Devices.Results {
			device := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
			switch {
			case r.AdminAccess != nil && *r.AdminAccess:
			case r.ShareID != nil:
				state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(device, r.ShareID))
				state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(device, r.ConsumedCapacity))
			default:
				state.AllocatedDevices.Insert(device)
			}
		}
	}
	return state
}

func empty() structured.AllocatedState {
	return structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
}

// allocate calls the allocator. The results are nil where the claims cannot be allocated; why is its explanation, if any.
func (s *scheduler) allocate(ctx context.Context, state structured.AllocatedState, claims []*claim) (
	results []resourceapi.AllocationResult, why string, err error,
) {
	if len(claims) == 0 {
		return []resourceapi.AllocationResult{}, "", nil
	}
	var plain []*resourceapi.ResourceClaim
	for _, c := range claims {
		for _, class := range c.classes() {
			if _, err := s.board.Get(class); err != nil {
				return nil, err.Error(), nil
			}
		}
		plain = append(plain, c.ResourceClaim)
	}
	allocator, err := structured.NewAllocator(ctx, features, state, s.board, s.board.slices, s.board.compiled)
	if err != nil {
		return nil, "", err
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, Labels: s.board.labels}}
	results, err = allocator.Allocate(ctx, node, plain)
	switch {
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return nil, err.Error(), nil
	case err != nil:
		return nil, "", err
	case len(results) == 0:
		return nil, "", nil
	}
	return results, "", nil
}

// classes are those that the claim cannot do without.
func (c *claim) classes() []string {
	var out []string
	for _, q := range c.Spec.Devices.Requests {
		if q.Exactly != nil {
			out = append(out, q.Exactly.DeviceClassName)
		}
		for _, sub := range q.FirstAvailable {
			out = append(out, sub.DeviceClassName)
		}
	}
	return out
}

// explain says why claims cannot be allocated: the board does not have it at all, or other pods hold it.
func (s *scheduler) explain(ctx context.Context, claims []*claim, why string) (string, error) {
	if why != "" {
		return why, nil
	}
	results, why, err := s.allocate(ctx, empty(), claims)
	switch {
	case err != nil || why != "":
		return why, err
	case results != nil:
		return "other pods hold the devices that it needs", nil
	}
	for _, c := range claims {
		for _, q := range c.Spec.Devices.Requests {
			one := &claim{ResourceClaim: c.DeepCopy()}
			one.Spec.Devices.Requests, one.Spec.Devices.Constraints = []resourceapi.DeviceRequest{q}, nil
			if results, _, err := s.allocate(ctx, empty(), []*claim{one}); err != nil || results == nil {
				return fmt.Sprintf("claim %s, request %s: the board cannot satisfy it, even with no other pod", c.Name, q.Name), err
			}
		}
	}
	return "the board cannot satisfy all requests of the pod together, even with no other pod", nil
}

// overQuota says which quota of devices the claims would exceed.
func (s *scheduler) overQuota(claims []*claim) string {
	for _, class := range slices.Sorted(maps.Keys(s.quota)) {
		used, limit := int64(0), s.quota[class]
		for _, c := range slices.Concat(s.held, claims) {
			for _, q := range c.Spec.Devices.Requests {
				if q.Exactly != nil && q.Exactly.DeviceClassName == class {
					used += q.Exactly.Count
				}
			}
		}
		if used > limit {
			return fmt.Sprintf("exceeded quota: %d devices of the class %s, limited to %d", used, class, limit)
		}
	}
	return ""
}

// operators are the ones of node affinity.
var operators = map[corev1.NodeSelectorOperator]selection.Operator{
	corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
	corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
	corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
}

// rejects says why the node's labels, which follow from its GPUs, do not fit the pod.
func (b *board) rejects(spec corev1.PodSpec) string {
	have := labels.Set(b.labels)
	if !labels.SelectorFromSet(spec.NodeSelector).Matches(have) {
		return "the node's labels do not match the node selector " + labels.FormatLabels(spec.NodeSelector)
	}
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil || spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	var all []string
	for _, term := range spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		var missing []string
		for _, e := range term.MatchExpressions {
			r, err := labels.NewRequirement(e.Key, operators[e.Operator], e.Values)
			if err != nil {
				return err.Error()
			}
			if !r.Matches(have) {
				missing = append(missing, r.String())
			}
		}
		if len(missing) == 0 {
			return ""
		}
		all = append(all, missing...)
	}
	return "the node's labels do not match the node affinity " + strings.Join(all, ", ")
}
