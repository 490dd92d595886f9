// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/pool"
)

// Node is a node with the slices and claims that matter to it.
type Node struct {
	*corev1.Node
	// Packed are all slices of each pool that has a slice for the node.
	Packed []*pool.Slice
	// held are the allocated devices of these pools.
	held map[pool.ID]map[string][]hold
	// Slices are the packed slices, with the taints of rules. Only a node to ask about has them.
	Slices []Slice
}

// Slice is a published slice.
type Slice struct {
	*resourceapi.ResourceSlice
	// Shape is nil if the selectors can distinguish its devices from those of the slice.
	Shape *pool.Shape
}

func (s Slice) id() pool.ID { return pool.ID{Driver: s.Spec.Driver, Pool: s.Spec.Pool.Name} }

// Candidate returns a device of the slice to evaluate selectors on.
func (s Slice) Candidate(index int) Candidate {
	c := Candidate{Device: device(s.Spec.Driver, s.Spec.Devices[index])}
	if s.Shape != nil {
		c.Shape, c.Index, c.Of = s.Shape, index, len(s.Spec.Devices)
	}
	return c
}

// hold is a device in the allocation of a claim.
type hold struct {
	Claim  *resourceapi.ResourceClaim
	Result *resourceapi.DeviceRequestAllocationResult
}

// holds returns the devices that claims hold, by pool and device. Devices for administrators are not held.
func holds(claims []*resourceapi.ResourceClaim) map[pool.ID]map[string][]hold {
	out := map[pool.ID]map[string][]hold{}
	for _, c := range claims {
		if c == nil {
			continue
		}
		for id, r := range pool.Held(c.Status.Allocation) {
			if out[id] == nil {
				out[id] = map[string][]hold{}
			}
			out[id][r.Device] = append(out[id][r.Device], hold{c, r})
		}
	}
	return out
}

// NameOf returns the namespace and the name of an object.
func NameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// Empty returns an empty node that publishes a pool, with all devices healthy.
func Empty(p pool.Pool) *Node {
	n := &Node{Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: p.Node}}}
	for i, s := range p.Published() {
		n.Slices = append(n.Slices, Slice{s, p.Slices[i].Shape})
	}
	return n
}

// Nodes returns nodes with their slices, in the order of their names. If nodes is nil, each node of a slice counts.
func Nodes(nodes []*corev1.Node, all []*pool.Slice, claims []*resourceapi.ResourceClaim) []*Node {
	held := holds(claims)
	pools, shared := map[pool.ID][]*pool.Slice{}, sets.New[pool.ID]()
	at := map[string]sets.Set[pool.ID]{}
	for _, s := range slices.SortedStableFunc(slices.Values(all), func(a, b *pool.Slice) int {
		return cmp.Compare(a.Name, b.Name)
	}) {
		id := s.ID()
		pools[id] = append(pools[id], s)
		if s.Node == "" {
			shared.Insert(id)
			continue
		}
		if at[s.Node] == nil {
			at[s.Node] = sets.New[pool.ID]()
		}
		at[s.Node].Insert(id)
	}
	if nodes == nil {
		for name := range at {
			nodes = append(nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
	}
	var out []*Node
	for _, n := range nodes {
		if n == nil {
			continue
		}
		one := &Node{Node: n, held: held}
		for _, id := range slices.SortedFunc(maps.Keys(shared.Union(at[n.Name])), func(a, b pool.ID) int {
			return cmp.Or(cmp.Compare(a.Driver, b.Driver), cmp.Compare(a.Pool, b.Pool))
		}) {
			one.Packed = append(one.Packed, pools[id]...)
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b *Node) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// With returns the node as it is once each of the claims has the allocation that it has here, or none, in place of its
// earlier one. The node must be loaded.
func (n *Node) With(claims ...*resourceapi.ResourceClaim) *Node {
	replaced := sets.New[types.NamespacedName]()
	for _, c := range claims {
		replaced.Insert(NameOf(c))
	}
	out := *n
	out.held = map[pool.ID]map[string][]hold{}
	added := holds(claims)
	for _, s := range n.Slices {
		id := s.id()
		if out.held[id] != nil {
			continue
		}
		devices := map[string][]hold{}
		for name, all := range n.held[id] {
			if kept := slices.DeleteFunc(slices.Clone(all),
				func(h hold) bool { return replaced.Has(NameOf(h.Claim)) }); len(kept) > 0 {
				devices[name] = kept
			}
		}
		for name, all := range added[id] {
			devices[name] = append(devices[name], all...)
		}
		out.held[id] = devices
	}
	return &out
}

// Tainted returns the node with another taint on the devices that the function selects. The node must be loaded.
func (n *Node) Tainted(taint resourceapi.DeviceTaint, selected func(driver string, d resourceapi.Device) bool) *Node {
	return n.changed(func(driver string, d *resourceapi.Device) bool {
		if !selected(driver, *d) || slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool {
			return t.Key == taint.Key && t.Effect == taint.Effect
		}) {
			return false
		}
		d.Taints = append(slices.Clone(d.Taints), taint)
		return true
	})
}

// Untainted returns the node without the taints of a key on the devices that the function selects. The node must be
// loaded.
func (n *Node) Untainted(key string, selected func(driver string, d resourceapi.Device) bool) *Node {
	return n.changed(func(driver string, d *resourceapi.Device) bool {
		has := func(t resourceapi.DeviceTaint) bool { return t.Key == key }
		if !slices.ContainsFunc(d.Taints, has) || !selected(driver, *d) {
			return false
		}
		d.Taints = slices.DeleteFunc(slices.Clone(d.Taints), has)
		return true
	})
}

// changed returns the node with copies of the devices that the function changes.
func (n *Node) changed(change func(driver string, d *resourceapi.Device) bool) *Node {
	out := *n
	out.Slices = slices.Clone(n.Slices)
	for i, s := range n.Slices {
		copied := false
		for j := range s.Spec.Devices {
			d := s.Spec.Devices[j]
			if !change(s.Spec.Driver, &d) {
				continue
			}
			if !copied {
				published := *s.ResourceSlice
				published.Spec.Devices, copied = slices.Clone(s.Spec.Devices), true
				out.Slices[i].ResourceSlice = &published
			}
			out.Slices[i].Spec.Devices[j] = d
		}
	}
	return &out
}

// Holders returns the claims that hold devices of the node's pools, sorted by name.
func (n *Node) Holders() []*resourceapi.ResourceClaim {
	found := map[types.NamespacedName]*resourceapi.ResourceClaim{}
	for _, s := range n.Slices {
		for _, holds := range n.held[s.id()] {
			for _, h := range holds {
				found[NameOf(h.Claim)] = h.Claim
			}
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b *resourceapi.ResourceClaim) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// left returns the counters that the claims leave in the node's pools. Like the allocator, it charges each allocated
// device once and ignores allocated devices that are not published.
func (n *Node) left(released sets.Set[types.NamespacedName]) map[pool.ID]pool.Counters {
	out := map[pool.ID]pool.Counters{}
	for _, s := range n.Slices {
		if out[s.id()] == nil {
			out[s.id()] = pool.Counters{}
		}
		out[s.id()].Add(s.Spec.SharedCounters)
	}
	for _, s := range n.Slices {
		if len(n.held[s.id()]) == 0 {
			continue
		}
		for _, d := range s.Spec.Devices {
			if n.inUse(s.id(), d.Name, released) {
				out[s.id()].Take(d)
			}
		}
	}
	return out
}

// inUse reports whether a claim that is not released holds the device.
func (n *Node) inUse(id pool.ID, device string, released sets.Set[types.NamespacedName]) bool {
	return slices.ContainsFunc(n.held[id][device], func(h hold) bool { return !released.Has(NameOf(h.Claim)) })
}

// whole reports whether a claim that is not released holds all of a device, not a share.
func (n *Node) whole(id pool.ID, device string, released sets.Set[types.NamespacedName]) bool {
	return slices.ContainsFunc(n.held[id][device],
		func(h hold) bool { return h.Result.ShareID == nil && !released.Has(NameOf(h.Claim)) })
}

// Matches reports whether a slice or one of its devices is for a node. An unreadable node selector matches none.
func Matches(node *corev1.Node, name *string, all *bool, selector *corev1.NodeSelector) bool {
	if name != nil && *name != "" {
		return *name == node.Name // The common case.
	}
	ok, err := structured.NodeMatches(structured.Features{}, node, ptr.Deref(name, ""), ptr.Deref(all, false), selector)
	return err == nil && ok
}
