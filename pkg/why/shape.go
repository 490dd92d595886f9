// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"encoding/binary"
	"hash/maphash"
	"runtime"
	"slices"
	"strings"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpu-dra-driver/pkg/selector"
)

// shape is a set of nodes that the allocator cannot distinguish for these claims.
type shape struct {
	// site is the first node, by which the shape is judged.
	*site
	nodes []string
	// devices is the number of devices that the node can use.
	devices int
	// bare is equal for shapes that differ only in their allocated devices.
	bare uint64

	result outcome
	text   string
}

// reader knows which attributes the selectors and constraints of a question read.
type reader struct {
	seed maphash.Seed
	// names are the attributes that selectors read; all means that they can read any.
	names []resourceapi.QualifiedName
	all   bool
	// compared are the attributes of constraints: only equality within a node matters.
	compared []resourceapi.FullyQualifiedName
}

// newReader reads the selectors of the claims and of the classes.
func newReader(claims []*resourceapi.ResourceClaim, all classes) *reader {
	r := &reader{seed: maphash.MakeSeed()}
	seen := map[string]bool{}
	add := func(selectors []resourceapi.DeviceSelector) {
		for _, s := range selectors {
			if s.CEL == nil || seen[s.CEL.Expression] {
				continue
			}
			seen[s.CEL.Expression] = true
			read, err := selector.Read(s.CEL.Expression)
			n := 0
			for _, name := range read.Names {
				if !name.Capacity {
					n++
					r.names = append(r.names, resourceapi.QualifiedName(name.Domain+"/"+name.ID), resourceapi.QualifiedName(name.ID))
				}
			}
			// An alias or a loop can read attributes that are not listed.
			r.all = r.all || err != nil || strings.Count(s.CEL.Expression, "attributes") != n
		}
	}
	for _, c := range all {
		add(c.Spec.Selectors)
	}
	for _, c := range claims {
		for _, q := range c.Spec.Devices.Requests {
			for _, e := range exacts(&q) {
				add(e.Selectors)
			}
		}
		for _, k := range c.Spec.Devices.Constraints {
			for _, name := range []*resourceapi.FullyQualifiedName{k.MatchAttribute, k.DistinctAttribute} {
				if name != nil {
					r.compared = append(r.compared, *name)
				}
			}
		}
	}
	slices.Sort(r.names)
	r.names = slices.Compact(r.names)
	return r
}

// exacts returns the request, or its alternatives, as exact requests.
func exacts(q *resourceapi.DeviceRequest) []resourceapi.ExactDeviceRequest {
	if q.Exactly != nil {
		return []resourceapi.ExactDeviceRequest{*q.Exactly}
	}
	var out []resourceapi.ExactDeviceRequest
	for _, s := range q.FirstAvailable {
		out = append(out, resourceapi.ExactDeviceRequest{
			DeviceClassName: s.DeviceClassName, Selectors: s.Selectors, AllocationMode: s.AllocationMode, Count: s.Count,
			Tolerations: s.Tolerations, Capacity: s.Capacity,
		})
	}
	return out
}

// shapes groups the sites.
func (r *reader) shapes(sites []*site) []*shape {
	all := make([]*shape, len(sites))
	keys := make([]uint64, len(sites))
	var work sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	for w := range workers {
		work.Go(func() {
			names := map[string]bool{} // It stays large enough for all nodes of the worker.
			for i := w; i < len(sites); i += workers {
				all[i], keys[i] = r.shape(sites[i], names)
			}
		})
	}
	work.Wait()
	first := map[uint64]*shape{}
	var out []*shape
	for i, s := range all {
		if known := first[keys[i]]; known != nil {
			known.nodes = append(known.nodes, s.nodes[0])
			continue
		}
		first[keys[i]] = s
		out = append(out, s)
	}
	return out
}

// shape hashes what the allocator sees of a node: not its name, the names of devices, or attributes that no selector
// reads. names is scratch space.
func (r *reader) shape(s *site, names map[string]bool) (*shape, uint64) {
	out := &shape{site: s, nodes: []string{s.node.Name}}
	h, allocated := hasher{seed: r.seed}, hasher{seed: r.seed}
	pool := poolID{}
	held := map[string][]hold(nil)
	values := map[string]uint64{}
	for _, slice := range s.slices {
		if id := poolOf(slice); id != pool {
			pool, held = id, s.held[id]
			h.text(id.driver)
		}
		h.number(uint64(slice.Spec.Pool.Generation))
		h.number(uint64(slice.Spec.Pool.ResourceSliceCount))
		perDevice := deref(slice.Spec.PerDeviceNodeSelection)
		mine := perDevice || matches(s.node, slice.Spec.NodeName, slice.Spec.AllNodes, slice.Spec.NodeSelector)
		h.truth(mine)
		for _, set := range slice.Spec.SharedCounters {
			h.text(set.Name)
			h.number(countersHash(r.seed, set.Counters))
		}
		hashes := make([]uint64, len(slice.Spec.Devices))
		for i := range slice.Spec.Devices {
			d := &slice.Spec.Devices[i]
			hashes[i] = r.device(pool.driver, d)
			h.number(hashes[i])
			if perDevice {
				h.truth(matches(s.node, d.NodeName, d.AllNodes, d.NodeSelector))
			}
			h.truth(len(d.BindingConditions) > 0)
			for _, name := range r.compared {
				h.number(r.compare(values, pool.driver, d, name))
			}
			for _, t := range d.Taints {
				h.text(t.Key)
				h.text(t.Value)
				h.text(string(t.Effect))
			}
			for _, c := range d.ConsumesCounters {
				h.text(c.CounterSet)
				h.number(countersHash(r.seed, c.Counters))
			}
			for _, one := range held[d.Name] {
				allocated.truth(one.result.ShareID != nil)
				allocated.number(quantitiesHash(r.seed, one.result.ConsumedCapacity))
			}
			allocated.number(uint64(len(held[d.Name])))
		}
		if mine {
			out.devices += len(slice.Spec.Devices)
		}
		s.hashes = append(s.hashes, hashes)
	}
	h.truth(repeats(s, names))
	out.bare = h.sum
	h.number(allocated.sum)
	return out, h.sum
}

// repeats reports whether a pool of the node has two devices of one name, which makes the pool invalid. names is scratch
// space.
func repeats(s *site, names map[string]bool) bool {
	pool, n := poolID{}, 0
	clear(names)
	for _, slice := range s.slices {
		if id := poolOf(slice); id != pool {
			if len(names) != n {
				return true
			}
			pool, n = id, 0
			clear(names)
		}
		for i := range slice.Spec.Devices {
			names[slice.Spec.Devices[i].Name] = true
		}
		n += len(slice.Spec.Devices)
	}
	return len(names) != n
}

// device hashes what selectors read of a device.
func (r *reader) device(driver string, d *resourceapi.Device) uint64 {
	h := hasher{seed: r.seed}
	h.text(driver)
	h.truth(deref(d.AllowMultipleAllocations))
	if r.all {
		sum := uint64(0) // Sums do not depend on the order of the map.
		for name, a := range d.Attributes {
			one := hasher{seed: r.seed}
			one.text(string(name))
			one.number(attributeHash(r.seed, a))
			sum += one.sum
		}
		h.number(sum)
	}
	for i, name := range r.names {
		if a, ok := d.Attributes[name]; ok && !r.all {
			h.number(uint64(i))
			h.number(attributeHash(r.seed, a))
		}
	}
	sum := uint64(0)
	for name, c := range d.Capacity {
		one := hasher{seed: r.seed}
		one.text(string(name))
		one.quantity(&c.Value)
		if p := c.RequestPolicy; p != nil {
			one.optional(p.Default)
			for i := range p.ValidValues {
				one.quantity(&p.ValidValues[i])
			}
			if v := p.ValidRange; v != nil {
				one.optional(v.Min)
				one.optional(v.Max)
				one.optional(v.Step)
			}
		}
		sum += one.sum
	}
	h.number(sum)
	return h.sum
}

// compare returns a number that is equal for devices of the node with equal values of an attribute.
func (r *reader) compare(values map[string]uint64, driver string, d *resourceapi.Device, name resourceapi.FullyQualifiedName) uint64 {
	domain, id, _ := strings.Cut(string(name), "/")
	a, ok := d.Attributes[resourceapi.QualifiedName(name)]
	if !ok && domain == driver {
		a, ok = d.Attributes[resourceapi.QualifiedName(id)]
	}
	if !ok {
		return 0
	}
	var raw [8]byte
	binary.LittleEndian.PutUint64(raw[:], attributeHash(r.seed, a))
	key := string(name) + string(raw[:])
	if values[key] == 0 {
		values[key] = uint64(len(values) + 1)
	}
	return values[key]
}

func attributeHash(seed maphash.Seed, a resourceapi.DeviceAttribute) uint64 {
	h := hasher{seed: seed}
	switch {
	case a.StringValue != nil:
		h.text(*a.StringValue)
	case a.VersionValue != nil:
		h.number(1)
		h.text(*a.VersionValue)
	case a.IntValue != nil:
		h.number(2)
		h.number(uint64(*a.IntValue))
	case a.BoolValue != nil:
		h.number(3)
		h.truth(*a.BoolValue)
	default: // Lists and later kinds.
		h.text(a.String())
	}
	return h.sum
}

func countersHash(seed maphash.Seed, counters map[string]resourceapi.Counter) (sum uint64) {
	for name, c := range counters {
		h := hasher{seed: seed}
		h.text(name)
		h.quantity(&c.Value)
		sum += h.sum
	}
	return sum
}

func quantitiesHash(seed maphash.Seed, all map[resourceapi.QualifiedName]resource.Quantity) (sum uint64) {
	for name, q := range all {
		h := hasher{seed: seed}
		h.text(string(name))
		h.quantity(&q)
		sum += h.sum
	}
	return sum
}

// hasher combines values in order.
type hasher struct {
	seed maphash.Seed
	sum  uint64
}

func (h *hasher) number(n uint64) {
	// The finalizer of splitmix64.
	x := h.sum*31 + n + 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	h.sum = x ^ x>>31
}

func (h *hasher) text(s string) { h.number(maphash.String(h.seed, s)) }

func (h *hasher) truth(b bool) {
	if b {
		h.number(1)
		return
	}
	h.number(0)
}

// quantity formats only a copy, because formatting changes a Quantity.
func (h *hasher) quantity(q *resource.Quantity) {
	if n, ok := q.AsInt64(); ok {
		h.number(uint64(n))
		return
	}
	odd := q.DeepCopy()
	h.text(odd.String())
}

func (h *hasher) optional(q *resource.Quantity) {
	h.truth(q != nil)
	if q != nil {
		h.quantity(q)
	}
}
