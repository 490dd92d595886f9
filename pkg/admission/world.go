// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/lru"

	"gpu-dra-driver/pkg/fleet"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/resourceslices"
	"gpu-dra-driver/pkg/selector"
)

// World is the cluster as reviews see it. It is not changed once it is in use.
type World struct {
	// Driver is the driver's name.
	Driver string
	// ClassNamed finds a DeviceClass, nil where there is none; Classes are the names of all.
	ClassNamed func(name string) *resourceapi.DeviceClass
	Classes    func() []string
	// Pools are those of one node for each distinct shape. None: nothing is known of the cluster, and nothing is said of
	// what it can give.
	Pools []fleet.Pool
	// Cache is shared by the worlds of a process.
	Cache *Cache
	// Patience is how long a review tries whether a node could satisfy a claim. 0: as long as a webhook can.
	Patience time.Duration

	names  map[selector.Name]bool
	values map[selector.Name]map[string]bool
	// tried are the devices to try selectors of classes on.
	tried []sample
	// verdicts remember what was found of claims, by what they ask for.
	verdicts *lru.Cache
}

// Prepare reads from the pools which names and values there are. It is called once, before the world is used.
func (w *World) Prepare() {
	w.verdicts, w.tried = lru.New(256), w.samples()
	w.names, w.values = map[selector.Name]bool{}, map[selector.Name]map[string]bool{}
	for _, kind := range []gpu.Kind{gpu.KindGPU, gpu.KindMIG, gpu.KindGroup, gpu.KindMonitor} {
		w.value(w.name("type", false), string(kind)) // All types are right, also where there is none of one yet.
	}
	// Devices of some cluster have these. Whether one of this cluster has, trying the selector tells.
	for _, e := range resourceslices.Catalogue() {
		w.names[w.name(resourceapi.QualifiedName(e.Name), e.Capacity)] = true
	}
	for _, p := range w.Pools {
		for d := range p.Devices() {
			for name, a := range d.Attributes {
				n := w.name(name, false)
				w.names[n] = true
				if a.StringValue != nil && chosen[n.ID] {
					w.value(n, *a.StringValue)
				}
			}
			for name := range d.Capacity {
				w.names[w.name(name, true)] = true
			}
		}
	}
}

// chosen are the attributes by whose values people choose among models; of the others no list would help.
var chosen = map[string]bool{"productName": true, "profile": true, "architecture": true, "brand": true}

func (w *World) value(n selector.Name, value string) {
	if w.values[n] == nil {
		w.values[n] = map[string]bool{}
	}
	w.values[n][value] = true
}

// name is a published name with its domain.
func (w *World) name(name resourceapi.QualifiedName, capacity bool) selector.Name {
	domain, id := w.Driver, string(name)
	for i := range id {
		if id[i] == '/' {
			domain, id = id[:i], id[i+1:]
			break
		}
	}
	return selector.Name{Domain: domain, ID: id, Capacity: capacity}
}

// known are the names of the driver's domain, of attributes or of capacities.
func (w *World) known(capacity bool) []string {
	var out []string
	for n := range w.names {
		if n.Domain == w.Driver && n.Capacity == capacity {
			out = append(out, n.ID)
		}
	}
	slices.Sort(out)
	return out
}

// nearest is the candidate that is most like the text, empty where none is: one that it begins or is begun by, else the one
// that differs in the fewest letters. Candidates are in order, so that the answer does not change from one time to the next.
func nearest(text string, candidates []string) string {
	best, least := "", len(text)/2+1
	lower := strings.ToLower(text)
	for _, c := range candidates {
		d := levenshtein.ComputeDistance(lower, strings.ToLower(c))
		if l := strings.ToLower(c); len(text) >= 3 && (strings.HasPrefix(l, lower) || strings.HasPrefix(lower, l)) {
			d = 0
		}
		if d < least {
			best, least = c, d
		}
	}
	return best
}

// some names a few of many.
func some(values map[string]bool) []string {
	out := slices.Sorted(maps.Keys(values))
	const most = 6
	if len(out) > most {
		out = append(out[:most:most], "…")
	}
	return out
}
