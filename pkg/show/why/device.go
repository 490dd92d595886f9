// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/selector"
)

// counters are the remaining values of a pool's counters, by set and name.
type counters map[string]map[string]resource.Quantity

// left returns the counters that the claims leave in the node's pools. Like the allocator, it charges each allocated
// device once and ignores allocated devices that are not published.
func (s *site) left(released sets.Set[types.NamespacedName]) map[poolID]counters {
	out := map[poolID]counters{}
	for _, slice := range s.slices {
		id := poolOf(slice)
		if out[id] == nil {
			out[id] = counters{}
		}
		for _, set := range slice.Spec.SharedCounters {
			values := make(map[string]resource.Quantity, len(set.Counters))
			for name, c := range set.Counters {
				values[name] = c.Value
			}
			out[id][set.Name] = values
		}
	}
	for _, slice := range s.slices {
		id := poolOf(slice)
		if len(s.held[id]) == 0 {
			continue
		}
		for i := range slice.Spec.Devices {
			d := &slice.Spec.Devices[i]
			if !s.inUse(id, d.Name, released) {
				continue
			}
			for _, c := range d.ConsumesCounters {
				for name, n := range c.Counters {
					if q, ok := out[id][c.CounterSet][name]; ok {
						q.Sub(n.Value)
						out[id][c.CounterSet][name] = q
					}
				}
			}
		}
	}
	return out
}

// inUse reports whether a claim that is not released holds the device.
func (s *site) inUse(pool poolID, device string, released sets.Set[types.NamespacedName]) bool {
	return slices.ContainsFunc(s.held[pool][device], func(h hold) bool { return !released.Has(nameOf(h.claim)) })
}

// whole reports whether a claim that is not released holds all of a device, not a share.
func (s *site) whole(pool poolID, device string, released sets.Set[types.NamespacedName]) bool {
	return slices.ContainsFunc(s.held[pool][device], func(h hold) bool { return h.result.ShareID == nil && !released.Has(nameOf(h.claim)) })
}

// request is a request with its class.
type request struct {
	selector.Request
	class *resourceapi.DeviceClass
}

func (a *asker) requests(claims []*resourceapi.ResourceClaim) []request {
	var out []request
	for _, c := range claims {
		for q := range selector.Requests(c.Spec.Devices.Requests) {
			out = append(out, request{q, a.classes[q.DeviceClassName]})
		}
	}
	return out
}

// tooFew reports whether a request without alternatives counts more devices than the node can give it. The allocator
// would find that out by trying them in every order. Each test here is one that every allocated device passes.
func (a *asker) tooFew(ctx context.Context, s *site, released sets.Set[types.NamespacedName], claims []*resourceapi.ResourceClaim) bool {
	var remaining map[poolID]counters
	for _, q := range a.requests(claims) {
		if q.Parent != "" || q.class == nil || ptr.Deref(q.AdminAccess, false) ||
			q.AllocationMode == resourceapi.DeviceAllocationModeAll {
			continue
		}
		if remaining == nil {
			remaining = s.left(released)
		}
		count := max(q.Count, 1)
		n, whole := int64(0), true
		bound := map[string]*together{}
		for j, slice := range s.slices {
			id := poolOf(slice)
			for i := range slice.Spec.Devices {
				d := &slice.Spec.Devices[i]
				failed, err := a.failing(ctx, q, id.driver, d, s.hashes[j][i])
				if err != nil {
					return false // The allocator reports it, if it reaches the device.
				}
				if failed != "" || len(untolerated(d, q.Tolerations)) > 0 {
					continue
				}
				shared := ptr.Deref(d.AllowMultipleAllocations, false)
				if s.whole(id, d.Name, released) || !s.inUse(id, d.Name, released) && len(remaining[id].lacking(d)) > 0 {
					continue
				}
				n++
				whole = whole && len(d.ConsumesCounters) == 1 && !shared
				if len(d.ConsumesCounters) == 1 {
					key := id.driver + "/" + id.name + "/" + d.ConsumesCounters[0].CounterSet
					if bound[key] == nil {
						bound[key] = &together{left: remaining[id][d.ConsumesCounters[0].CounterSet]}
					}
					bound[key].add(d.ConsumesCounters[0].Counters)
				}
			}
		}
		if whole { // Devices of one counter set compete for it.
			n = 0
			for _, b := range bound {
				n += b.most()
			}
		}
		if n < count {
			return true
		}
	}
	return false
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

// lacking returns the counters that a device needs and that are not left, as set/counter.
func (c counters) lacking(d *resourceapi.Device) (out []string) {
	for _, use := range d.ConsumesCounters {
		for name, n := range use.Counters {
			if left, ok := c[use.CounterSet][name]; !ok || left.Cmp(n.Value) < 0 {
				out = append(out, use.CounterSet+"/"+name)
			}
		}
	}
	return out
}

// untolerated returns the taints that keep a request from a device.
func untolerated(d *resourceapi.Device, tolerations []resourceapi.DeviceToleration) (out []resourceapi.DeviceTaint) {
	for _, t := range d.Taints {
		if t.Effect != resourceapi.DeviceTaintEffectNoSchedule && t.Effect != resourceapi.DeviceTaintEffectNoExecute {
			continue
		}
		if !slices.ContainsFunc(tolerations, func(one resourceapi.DeviceToleration) bool { return resourceclaim.ToleratesTaint(one, t) }) {
			out = append(out, t)
		}
	}
	return out
}

// trial is a selector and a device's hash.
type trial struct {
	expression string
	device     uint64
}

// failing evaluates the selectors of the class and the request in turn, as the scheduler does. It returns the first that
// is false for a device, or "". Devices with one hash have one result.
func (a *asker) failing(ctx context.Context, q request, driver string, d *resourceapi.Device, hash uint64) (string, error) {
	all := q.Selectors
	if q.class != nil {
		all = slices.Concat(q.class.Spec.Selectors, all)
	}
	for _, s := range all {
		if s.CEL == nil {
			continue
		}
		key := trial{s.CEL.Expression, hash}
		if known, ok := a.trials.Load(key); ok {
			if !known.(bool) {
				return s.CEL.Expression, nil
			}
			continue
		}
		compiled := a.compiled.GetOrCompile(s.CEL.Expression)
		if compiled.Error != nil {
			return s.CEL.Expression, fmt.Errorf("the selector does not compile: %s", compiled.Error.Detail)
		}
		ok, _, err := compiled.DeviceMatches(ctx, cel.Device{
			Driver: driver, Attributes: d.Attributes, Capacity: d.Capacity, AllowMultipleAllocations: d.AllowMultipleAllocations,
		})
		if err != nil {
			return s.CEL.Expression, err
		}
		a.trials.Store(key, ok)
		if !ok {
			return s.CEL.Expression, nil
		}
	}
	return "", nil
}

// Obstacle says what keeps one request from one device.
type Obstacle struct {
	Node    string `json:"node"`
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	Request string `json:"request"`
	// Reasons is empty if the request could get the device.
	Reasons []string `json:"reasons,omitempty"`
}

// obstacles lists what keeps the requests from each device of a node.
func (a *asker) obstacles(ctx context.Context, s *site, claims []*resourceapi.ResourceClaim) (out []Obstacle) {
	remaining := s.left(nil)
	for _, q := range a.requests(claims) {
		for j, slice := range s.slices {
			id := poolOf(slice)
			if !ptr.Deref(slice.Spec.PerDeviceNodeSelection, false) &&
				!matches(s.node, slice.Spec.NodeName, slice.Spec.AllNodes, slice.Spec.NodeSelector) {
				continue
			}
			for i := range slice.Spec.Devices {
				d := &slice.Spec.Devices[i]
				o := Obstacle{Node: s.node.Name, Pool: id.name, Device: d.Name, Request: q.Name}
				o.Reasons = a.against(ctx, s, q, id, d, s.hashes[j][i], remaining[id])
				out = append(out, o)
			}
		}
	}
	return out
}

// against returns the reasons against a device: its selectors, or all other reasons.
func (a *asker) against(ctx context.Context, s *site, q request, id poolID, d *resourceapi.Device, hash uint64, left counters) (
	out []string,
) {
	switch failed, err := a.failing(ctx, q, id.driver, d, hash); {
	case err != nil:
		return []string{fmt.Sprintf("selector %s fails: %v", brief(failed), err)}
	case failed != "":
		return []string{"selector " + brief(failed)}
	}
	for _, t := range untolerated(d, q.Tolerations) {
		out = append(out, "taint "+taintText(t))
	}
	if ptr.Deref(q.AdminAccess, false) {
		return out
	}
	shared, used := ptr.Deref(d.AllowMultipleAllocations, false), s.inUse(id, d.Name, nil)
	if used && (!shared || s.whole(id, d.Name, nil)) {
		return append(out, "held by "+names(s.held[id][d.Name]))
	}
	if lacking := left.lacking(d); !used && len(lacking) > 0 {
		out = append(out, fmt.Sprintf("counter %s is used by %s", slices.Min(lacking), names(s.competitors(id, lacking))))
	}
	if text := short(q, d, s.held[id][d.Name]); shared && text != "" {
		out = append(out, text)
	}
	return out
}

// competitors returns the held devices that consume one of the counters.
func (s *site) competitors(id poolID, lacking []string) (out []hold) {
	for _, slice := range s.slices {
		if poolOf(slice) != id {
			continue
		}
		for i := range slice.Spec.Devices {
			d := &slice.Spec.Devices[i]
			for _, use := range d.ConsumesCounters {
				for name := range use.Counters {
					if slices.Contains(lacking, use.CounterSet+"/"+name) && len(s.held[id][d.Name]) > 0 {
						out = append(out, s.held[id][d.Name]...)
					}
				}
			}
		}
	}
	return out
}

// short says which capacity of a shared device does not suffice, or "". The allocator can round a request up further.
func short(q request, d *resourceapi.Device, held []hold) string {
	for _, name := range slices.Sorted(maps.Keys(d.Capacity)) {
		c := d.Capacity[name]
		need := c.Value.DeepCopy()
		if c.RequestPolicy != nil && c.RequestPolicy.Default != nil {
			need = *c.RequestPolicy.Default
		}
		if q.Capacity != nil {
			if asked, ok := q.Capacity.Requests[name]; ok {
				need = asked
			}
		}
		left := c.Value.DeepCopy()
		for _, h := range held {
			if used, ok := h.result.ConsumedCapacity[name]; ok {
				left.Sub(used)
			}
		}
		if left.Cmp(need) < 0 && len(held) == 0 {
			return fmt.Sprintf("capacity %s: %s of %s asked", name, need.String(), c.Value.String())
		} else if left.Cmp(need) < 0 {
			return fmt.Sprintf("capacity %s: %s asked, %s left by %s", name, need.String(), left.String(), names(held))
		}
	}
	if q.Capacity != nil {
		for _, name := range slices.Sorted(maps.Keys(q.Capacity.Requests)) {
			if _, ok := d.Capacity[name]; !ok {
				return fmt.Sprintf("it has no capacity %s", name)
			}
		}
	}
	return ""
}

// names lists the claims of holds.
func names(held []hold) string {
	found := sets.New[string]()
	for _, h := range held {
		found.Insert("claim " + nameOf(h.claim).String())
	}
	return list(sets.List(found))
}

// brief cuts a long expression.
func brief(expression string) string {
	const limit = 120
	expression = strings.Join(strings.Fields(expression), " ")
	if runes := []rune(expression); len(runes) > limit {
		expression = string(runes[:limit]) + "…"
	}
	return expression
}

func taintText(t resourceapi.DeviceTaint) string {
	text := t.Key
	if t.Value != "" {
		text += "=" + t.Value
	}
	return text + ":" + string(t.Effect)
}
