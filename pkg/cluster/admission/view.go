// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/lru"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/selector"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
)

// ClusterView is the view of the cluster for reviews. It is immutable and safe for concurrent use.
type ClusterView struct {
	ask.Asker
	driver string
	pools  []pool.Pool
	// empty are empty nodes that publish the pools.
	empty []*ask.Node
	// OnDemand means that nodes can publish one placement of a MIG profile until a claim asks for more (the setting
	// Auto).
	OnDemand bool
	// SearchFor is the processor time of a search for a node that satisfies a claim. The default is for reviews of the
	// API server.
	SearchFor time.Duration
	// reviewFor is the least limit of a review by the wall.
	reviewFor time.Duration

	// here are the names that devices of the cluster have. names also has the names that devices elsewhere have.
	// values are the values of the attributes in chosen.
	here, names sets.Set[selector.Name]
	values      map[selector.Name]sets.Set[string]
	// largest is the memory of the largest GPU, in bytes; 0 means unknown.
	largest uint64
	// The values of `isolation` of the cluster's shareable devices, by the settings of their nodes.
	isolations sets.Set[string]
	// migCapable means that a GPU of the cluster supports MIG.
	migCapable bool
	// probes are devices of the cluster to evaluate the selectors of classes on.
	probes []probe
	// feasible caches the results of the search, by question.
	feasible *lru.Cache
}

// NewClusterView returns the view of a cluster with one pool of each shape of nodes. Without pools the devices are
// unknown, and no review warns of missing ones.
func NewClusterView(driver string, asker ask.Asker, pools []pool.Pool) *ClusterView {
	v := &ClusterView{
		Asker:      asker,
		driver:     driver,
		pools:      pools,
		SearchFor:  searchFor,
		reviewFor:  reviewFor,
		here:       sets.New[selector.Name](),
		names:      sets.New[selector.Name](),
		values:     map[selector.Name]sets.Set[string]{},
		isolations: sets.New[string](),
		feasible:   lru.New(256),
	}
	for _, p := range pools {
		v.empty = append(v.empty, ask.Empty(p))
	}
	v.probes = v.publishedProbes()
	for _, kind := range kinds {
		v.value(v.name("type", false), string(kind)) // All types are valid, even without a device.
	}
	// Some cluster's devices have these. Evaluating the selector shows whether this cluster's do.
	for _, e := range resourceslices.Catalogue() {
		v.names.Insert(v.name(resourceapi.QualifiedName(e.Name), e.Capacity))
	}
	for _, p := range v.pools {
		v.readNames(p)
	}
	v.names = v.names.Union(v.here)
	if len(v.here) == 0 { // The devices are unknown.
		v.here = v.names
	}
	return v
}

// maxNames is the number of names of attributes and capacities, and of values, that a pool adds. A node of one model
// has fifty; warnings compare with each.
const maxNames = 256

// readNames adds the names and values of a pool.
func (v *ClusterView) readNames(p pool.Pool) {
	names, values := sets.New[selector.Name](), sets.New[string]()
	add := func(n selector.Name) bool {
		if names.Len() < maxNames {
			names.Insert(n)
		}
		return names.Has(n)
	}
	for d, kind := range p.Devices() {
		if memory := d.Capacity["memory"]; kind.Type == gpu.KindGPU {
			v.largest = max(v.largest, uint64(memory.Value.Value()))
		}
		if isolation := pool.Text(d, "isolation"); ptr.Deref(d.AllowMultipleAllocations, false) &&
			kind.Type != gpu.KindMonitor {
			v.isolations.Insert(isolation)
		}
		v.migCapable = v.migCapable || ptr.Deref(d.Attributes["migCapable"].BoolValue, false)
		for name, a := range d.Attributes {
			if n := v.name(name, false); add(n) && a.StringValue != nil && chosen[n.ID] && values.Len() < maxNames {
				values.Insert(*a.StringValue)
				v.value(n, *a.StringValue)
			}
		}
		for name := range d.Capacity {
			add(v.name(name, true))
		}
	}
	v.here = v.here.Union(names)
}

// chosen are the attributes by which people choose models. For others a list of values would not help.
var chosen = map[string]bool{"productName": true, "profile": true, "architecture": true, "brand": true}

func (v *ClusterView) value(n selector.Name, value string) {
	if v.values[n] == nil {
		v.values[n] = sets.New[string]()
	}
	v.values[n].Insert(value)
}

// Pools returns one pool of each shape.
func (v *ClusterView) Pools() []pool.Pool { return v.pools }

func (v *ClusterView) name(name resourceapi.QualifiedName, capacity bool) selector.Name {
	domain, id, qualified := strings.Cut(string(name), "/")
	if !qualified {
		domain, id = v.driver, domain
	}
	return selector.Name{Domain: domain, ID: id, Capacity: capacity}
}

// known returns the attributes or capacities of the cluster's devices, as they are written, by the name without domain.
func (v *ClusterView) known(capacity bool) map[string]string {
	out := map[string]string{}
	for n := range v.here {
		switch {
		case n.Capacity != capacity:
		case n.Domain == v.driver:
			out[n.ID] = n.ID
		case out[n.ID] == "":
			out[n.ID] = n.Domain + "/" + n.ID
		}
	}
	return out
}
