// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"iter"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/show/view"
)

// Cluster has the objects of a cluster while they change, and the page's picture of them. It is safe for concurrent
// use.
type Cluster struct {
	feed *feed

	mu      sync.Mutex
	status  status
	notes   map[string]string
	shapes  *pool.Shapes
	slices  map[types.NamespacedName]*pool.Slice
	claims  map[types.NamespacedName]*resourceapi.ResourceClaim
	classes map[types.NamespacedName]*resourceapi.DeviceClass
	rules   map[types.NamespacedName]*resourceapi.DeviceTaintRule
	// closed says of nodes that take no pod why.
	closed map[string]string
	// pools, publishers and dirtyClaims are those that changed since the last refresh. publishers are nodes. The other
	// two mean that each node or claim can have changed.
	pools, publishers   sets.Set[string]
	dirtyClaims         sets.Set[types.NamespacedName]
	allNodes, allClaims bool
	// shown are the nodes of the last refresh.
	shown sets.Set[string]
	// layouts are the MIG layouts of the last refresh.
	layouts []string
	// nodes are the nodes of pools at the last refresh.
	nodes map[string]string
	// offered are the shapes of the slices at the last refresh.
	offered map[*pool.Shape]bool
	// changed has an element if there is an object or a node to refresh.
	changed chan struct{}
}

// NewCluster returns a cluster without objects. title names it, and reading are the names of the resources to follow.
func NewCluster(title, driver string, reading ...string) *Cluster {
	return &Cluster{
		feed:        newFeed(),
		status:      status{Title: title, Driver: driver, Reading: slices.Sorted(slices.Values(reading))},
		notes:       map[string]string{},
		shapes:      &pool.Shapes{},
		slices:      map[types.NamespacedName]*pool.Slice{},
		claims:      map[types.NamespacedName]*resourceapi.ResourceClaim{},
		classes:     map[types.NamespacedName]*resourceapi.DeviceClass{},
		rules:       map[types.NamespacedName]*resourceapi.DeviceTaintRule{},
		closed:      map[string]string{},
		pools:       sets.New[string](),
		publishers:  sets.New[string](),
		dirtyClaims: sets.New[types.NamespacedName](),
		shown:       sets.New[string](),
		nodes:       map[string]string{},
		allNodes:    true,
		allClaims:   true,
		changed:     make(chan struct{}, 1),
	}
}

// Put stores a new or changed object, or removes it. Other types than those of the page are ignored, and so are slices
// of other drivers. The caller must not use the object afterwards.
func (c *Cluster) Put(o runtime.Object, removed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch o := o.(type) {
	default:
		return
	case *resourceapi.ResourceSlice:
		if o.Spec.Driver != c.status.Driver {
			return
		}
		s := c.shapes.Convert(o)
		store(c.slices, types.NamespacedName{Name: s.Name}, s, removed, c.sliceChanged)
	case *corev1.Node:
		why := view.Closed(o)
		if removed {
			why = ""
		}
		c.close(o.Name, why)
	case *resourceapi.ResourceClaim:
		o.ManagedFields = nil
		store(c.claims, types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, o, removed, c.claimChanged)
	case *resourceapi.DeviceClass:
		store(c.classes, types.NamespacedName{Name: o.Name}, o, removed, c.classChanged)
	case *resourceapi.DeviceTaintRule:
		store(c.rules, types.NamespacedName{Name: o.Name}, o, removed, c.ruleChanged)
	case *unstructured.Unstructured:
		rule := &resourceapi.DeviceTaintRule{}
		if o.GetKind() != "DeviceTaintRule" || runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object,
			rule) != nil {
			return
		}
		store(c.rules, types.NamespacedName{Name: rule.Name}, rule, removed, c.ruleChanged)
	}
	c.signal()
}

// store calls changed for the earlier value, if there is one, and for the new or removed one.
func store[T any](all map[types.NamespacedName]*T, key types.NamespacedName, value *T, removed bool, changed func(*T)) {
	if old := all[key]; old != nil {
		changed(old)
	}
	changed(value)
	if removed {
		delete(all, key)
	} else {
		all[key] = value
	}
}

// close keeps why a node takes no pod.
func (c *Cluster) close(node, why string) {
	if c.closed[node] == why {
		return
	}
	c.closed[node] = why
	c.publishers.Insert(node)
	if why == "" {
		delete(c.closed, node)
	}
}

func (c *Cluster) sliceChanged(s *pool.Slice) {
	c.pools.Insert(s.Pool.Name)
	c.publishers.Insert(s.Node)
}

func (c *Cluster) claimChanged(claim *resourceapi.ResourceClaim) {
	c.dirtyClaims.Insert(types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name})
	for pool := range c.poolsOf(claim) {
		c.pools.Insert(pool)
	}
}

func (c *Cluster) classChanged(*resourceapi.DeviceClass) { c.allClaims = true }

func (c *Cluster) ruleChanged(*resourceapi.DeviceTaintRule) { c.allNodes = true }

// poolsOf iterates over the pools of a claim's devices. It has one that is in several of them as often.
func (c *Cluster) poolsOf(claim *resourceapi.ResourceClaim) iter.Seq[string] {
	return func(yield func(string) bool) {
		for r := range pool.Results(claim.Status.Allocation, c.status.Driver) {
			if !yield(r.Pool) {
				return
			}
		}
	}
}

// Listed ends the reading of a resource. Objects of the resource that are not among the keys are removed.
func (c *Cluster) Listed(resource string, keys sets.Set[types.NamespacedName]) {
	c.mu.Lock()
	switch resource {
	case Slices:
		prune(c.slices, keys, c.sliceChanged)
	case Claims:
		prune(c.claims, keys, c.claimChanged)
	case Classes:
		prune(c.classes, keys, c.classChanged)
	case Rules:
		prune(c.rules, keys, c.ruleChanged)
	case Nodes:
		for node := range c.closed {
			if !keys.Has(types.NamespacedName{Name: node}) {
				c.close(node, "")
			}
		}
	}
	c.mu.Unlock()
	c.Done(resource)
}

// prune removes the objects that are not among the keys.
func prune[T any](all map[types.NamespacedName]*T, keys sets.Set[types.NamespacedName], changed func(*T)) {
	for key, one := range all {
		if !keys.Has(key) {
			changed(one)
			delete(all, key)
		}
	}
}

// Done ends the reading of a resource, with or without success.
func (c *Cluster) Done(resource string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.status.Reading, resource); i >= 0 {
		c.status.Reading = slices.Delete(slices.Clone(c.status.Reading), i, i+1)
		c.allNodes, c.allClaims = true, true
	}
	c.signal()
}

// Note sets the page's note about a resource; an empty text removes it.
func (c *Cluster) Note(resource, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.notes[resource] == text {
		return
	}
	c.notes[resource] = text
	c.status.Notes = nil
	for _, about := range slices.Sorted(maps.Keys(c.notes)) {
		if c.notes[about] != "" {
			c.status.Notes = append(c.status.Notes, c.notes[about])
		}
	}
	c.signal()
}

func (c *Cluster) signal() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}
