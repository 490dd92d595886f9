// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package why explains whether the scheduler can allocate the claims of a pod, and which change would let it.
//
// The scheduler's own allocator decides, for one node of each shape, with the objects of the cluster as they are. If it
// says no, it is asked again with one thing relaxed: a claim gone, a taint tolerated, a selector dropped. Each relaxation
// that turns no into yes is a cure, so reasons and cures are true as far as the given objects are. The package only reads
// objects and never calls an API server. Trap: the allocator takes long if it must try many combinations; each question
// has a time limit, and the answer says where it is undecided.
package why

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/pool"
)

// Cluster holds the objects to judge by. It is only read.
type Cluster struct {
	// Nodes is nil if nodes cannot be read: then each node of a slice counts, without labels and taints.
	Nodes []*corev1.Node
	// Slices and Packed together are all slices.
	Slices    []*resourceapi.ResourceSlice
	Packed    []*pool.Packed
	Claims    []*resourceapi.ResourceClaim
	Templates []*resourceapi.ResourceClaimTemplate
	Classes   []*resourceapi.DeviceClass
	Rules     []*resourceapi.DeviceTaintRule
	// Events are those of the pod in question.
	Events []*corev1.Event
}

// Options configure an Ask.
type Options struct {
	// Driver is the name of the driver whose names and parameters are explained.
	Driver string
	// Limit is the time for the questions to the allocator; 0 means DefaultLimit.
	Limit time.Duration
	// Devices adds the obstacles of each device to the answer.
	Devices bool
	// Now is the time for ages.
	Now time.Time
}

// DefaultLimit is the time for the questions to the allocator.
const DefaultLimit = 5 * time.Second

// poolID identifies a pool of devices.
type poolID struct{ driver, name string }

// hold is a device in the allocation of a claim.
type hold struct {
	claim  *resourceapi.ResourceClaim
	result *resourceapi.DeviceRequestAllocationResult
}

// site is a node with the slices and claims that matter to it.
type site struct {
	node *corev1.Node
	// packed are all slices of each pool that has a slice for the node.
	packed []*pool.Packed
	// held are the allocated devices of these pools.
	held map[poolID]map[string][]hold
	// slices are the packed slices with the taints of rules, and hashes those of their devices: equal for devices that no
	// selector can distinguish. Only the node by which a shape is judged has them.
	slices []*resourceapi.ResourceSlice
	hashes [][]uint64
}

// holders returns the claims that hold devices of the node's pools, sorted by name.
func (s *site) holders() []*resourceapi.ResourceClaim {
	found := map[types.NamespacedName]*resourceapi.ResourceClaim{}
	for _, slice := range s.slices {
		for _, holds := range s.held[poolOf(slice)] {
			for _, h := range holds {
				found[nameOf(h.claim)] = h.claim
			}
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b *resourceapi.ResourceClaim) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

func poolOf(s *resourceapi.ResourceSlice) poolID { return poolID{s.Spec.Driver, s.Spec.Pool.Name} }

func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// holds returns the devices that claims hold, by pool and device. Devices for administrators are not held.
func holds(claims []*resourceapi.ResourceClaim) map[poolID]map[string][]hold {
	out := map[poolID]map[string][]hold{}
	for _, c := range claims {
		if c == nil || c.Status.Allocation == nil {
			continue
		}
		for i := range c.Status.Allocation.Devices.Results {
			r := &c.Status.Allocation.Devices.Results[i]
			if ptr.Deref(r.AdminAccess, false) {
				continue
			}
			pool := poolID{r.Driver, r.Pool}
			if out[pool] == nil {
				out[pool] = map[string][]hold{}
			}
			out[pool][r.Device] = append(out[pool][r.Device], hold{c, r})
		}
	}
	return out
}

// sites returns the nodes of the cluster with their slices, in the order of their names.
func (c *Cluster) sites() []*site {
	held := holds(c.Claims)
	pools, shared := map[poolID][]*pool.Packed{}, sets.New[poolID]()
	at := map[string]sets.Set[poolID]{}
	for _, p := range c.packed() {
		id := packedPool(p)
		pools[id] = append(pools[id], p)
		if p.Node == "" {
			shared.Insert(id)
			continue
		}
		if at[p.Node] == nil {
			at[p.Node] = sets.New[poolID]()
		}
		at[p.Node].Insert(id)
	}
	nodes := c.Nodes
	if nodes == nil {
		for name := range at {
			nodes = append(nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
	}
	var out []*site
	for _, n := range nodes {
		if n == nil {
			continue
		}
		s := &site{node: n, held: held}
		for _, id := range slices.SortedFunc(maps.Keys(shared.Union(at[n.Name])), func(a, b poolID) int {
			return cmp.Or(cmp.Compare(a.driver, b.driver), cmp.Compare(a.name, b.name))
		}) {
			s.packed = append(s.packed, pools[id]...)
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *site) int { return cmp.Compare(a.node.Name, b.node.Name) })
	return out
}

// packed returns all slices, sorted by name.
func (c *Cluster) packed() []*pool.Packed {
	out := slices.Clone(c.Packed)
	for _, s := range c.Slices {
		if s != nil {
			out = append(out, pool.Unshared(s))
		}
	}
	slices.SortStableFunc(out, func(a, b *pool.Packed) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func packedPool(p *pool.Packed) poolID { return poolID{p.Spec.Driver, p.Pool.Name} }

// tainted returns the whole slice with the taints of the rules, which the scheduler adds too.
func tainted(p *pool.Packed, rules []*resourceapi.DeviceTaintRule) *resourceapi.ResourceSlice {
	out := p.Slice()
	copied := false
	for _, r := range rules {
		for i := range out.Spec.Devices {
			if !selects(r, p, out.Spec.Devices[i].Name) {
				continue
			}
			if !copied {
				out.Spec.Devices, copied = slices.Clone(out.Spec.Devices), true
			}
			d := &out.Spec.Devices[i]
			d.Taints = append(slices.Clone(d.Taints), r.Spec.Taint)
		}
	}
	return out
}

// selects reports whether a rule taints a device of a slice.
func selects(r *resourceapi.DeviceTaintRule, p *pool.Packed, device string) bool {
	return selectsPool(r, p) && ptr.Deref(r.Spec.DeviceSelector.Device, device) == device
}

// selectsPool reports whether a rule can taint devices of a slice.
func selectsPool(r *resourceapi.DeviceTaintRule, p *pool.Packed) bool {
	if r == nil || r.Spec.DeviceSelector == nil {
		return false
	}
	q := r.Spec.DeviceSelector
	return ptr.Deref(q.Driver, p.Spec.Driver) == p.Spec.Driver && ptr.Deref(q.Pool, p.Pool.Name) == p.Pool.Name
}
