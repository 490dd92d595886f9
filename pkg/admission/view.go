// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/utils/lru"

	"gpu-dra-driver/pkg/fleet"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/resourceslices"
	"gpu-dra-driver/pkg/selector"
)

// ClusterView is the cluster as reviews see it. It is never changed, and safe for concurrent use.
type ClusterView struct {
	driver  string
	classes resourcelisters.DeviceClassLister
	pools   []fleet.Pool
	cache   *Cache
	timeout time.Duration

	// names are the published ones; values are those of attributes by which people choose among models.
	names  sets.Set[selector.Name]
	values map[selector.Name]sets.Set[string]
	// largest is the memory of the largest GPU, in bytes; 0: unknown.
	largest uint64
	// probes are the devices to try selectors of classes on.
	probes []probe
	// feasible remembers what the search found, by what claims ask for.
	feasible *lru.Cache
}

type Options struct {
	// Cache is shared by the views of a process. Nil: one of its own.
	Cache *Cache
	// SearchTimeout bounds the search for a node that could satisfy a claim. 0: as long as a webhook can take.
	SearchTimeout time.Duration
}

// NewClusterView makes the view of a cluster from one pool for each distinct shape of a node. Without pools the devices are
// unknown, and no review warns of missing ones.
func NewClusterView(driver string, classes resourcelisters.DeviceClassLister, pools []fleet.Pool, o Options) *ClusterView {
	v := &ClusterView{
		driver: driver, classes: classes, pools: pools, cache: o.Cache, timeout: o.SearchTimeout,
		names: sets.New[selector.Name](), values: map[selector.Name]sets.Set[string]{}, feasible: lru.New(256),
	}
	if v.cache == nil {
		v.cache = NewCache()
	}
	v.probes = v.probeDevices()
	for _, kind := range []gpu.Kind{gpu.KindGPU, gpu.KindMIG, gpu.KindGroup, gpu.KindMonitor} {
		v.value(v.name("type", false), string(kind)) // All types are right, also where there is none of one yet.
	}
	// Devices of some cluster have these. Whether one of this cluster has, trying the selector tells.
	for _, e := range resourceslices.Catalogue() {
		v.names.Insert(v.name(resourceapi.QualifiedName(e.Name), e.Capacity))
	}
	for _, p := range v.pools {
		for d, kind := range p.Devices() {
			if memory := d.Capacity["memory"]; kind.Type == gpu.KindGPU {
				v.largest = max(v.largest, uint64(memory.Value.Value()))
			}
			for name, a := range d.Attributes {
				n := v.name(name, false)
				v.names.Insert(n)
				if a.StringValue != nil && chosen[n.ID] {
					v.value(n, *a.StringValue)
				}
			}
			for name := range d.Capacity {
				v.names.Insert(v.name(name, true))
			}
		}
	}
	return v
}

// chosen are the attributes by whose values people choose among models; of the others no list would help.
var chosen = map[string]bool{"productName": true, "profile": true, "architecture": true, "brand": true}

func (v *ClusterView) value(n selector.Name, value string) {
	if v.values[n] == nil {
		v.values[n] = sets.New[string]()
	}
	v.values[n].Insert(value)
}

// Pools are one of each distinct shape.
func (v *ClusterView) Pools() []fleet.Pool { return v.pools }

// class finds a DeviceClass, nil where there is none.
func (v *ClusterView) class(name string) *resourceapi.DeviceClass {
	class, _ := v.classes.Get(name)
	return class
}

func (v *ClusterView) name(name resourceapi.QualifiedName, capacity bool) selector.Name {
	domain, id, qualified := strings.Cut(string(name), "/")
	if !qualified {
		domain, id = v.driver, domain
	}
	return selector.Name{Domain: domain, ID: id, Capacity: capacity}
}

// known are the names of the driver's domain, of attributes or of capacities.
func (v *ClusterView) known(capacity bool) []string {
	var out []string
	for n := range v.names {
		if n.Domain == v.driver && n.Capacity == capacity {
			out = append(out, n.ID)
		}
	}
	slices.Sort(out)
	return out
}
