// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"encoding/binary"
	"hash/maphash"
	"runtime"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/selector"
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
	// identities means that selectors read attributes in which slices of one Template differ.
	identities bool
	rules      []*resourceapi.DeviceTaintRule
	// known are the summaries of Templates, and index numbers the Templates.
	known map[*pool.Template]summary
	index map[*pool.Template]int
}

// newReader reads the selectors of the claims and of the classes.
func newReader(
	claims []*resourceapi.ResourceClaim, classes map[string]*resourceapi.DeviceClass, rules []*resourceapi.DeviceTaintRule,
) *reader {
	r := &reader{seed: maphash.MakeSeed(), rules: rules, known: map[*pool.Template]summary{}, index: map[*pool.Template]int{}}
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
	for _, c := range classes {
		add(c.Spec.Selectors)
	}
	for _, c := range claims {
		for q := range selector.Requests(c.Spec.Devices.Requests) {
			add(q.Selectors)
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
	r.identities = r.all || slices.ContainsFunc(r.names, func(name resourceapi.QualifiedName) bool { return pool.Identity(string(name)) })
	return r
}

// shapes groups the sites, and loads the slices of the node by which each shape is judged.
func (r *reader) shapes(sites []*site) []*shape {
	r.summarize(sites)
	all := make([]*shape, len(sites))
	keys := make([]uint64, len(sites))
	workers := runtime.GOMAXPROCS(0)
	each(workers, func(w int) {
		known := map[string]bool{}
		for i := w; i < len(sites); i += workers {
			all[i], keys[i] = r.shape(sites[i], known)
		}
	})
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
	each(len(out), func(i int) {
		s := out[i]
		for _, p := range s.packed {
			full := tainted(p, r.rules)
			s.slices = append(s.slices, full)
			hashes := make([]uint64, len(full.Spec.Devices))
			for i := range full.Spec.Devices {
				hashes[i] = r.device(full.Spec.Driver, &full.Spec.Devices[i])
			}
			s.hashes = append(s.hashes, hashes)
		}
	})
	return out
}

// summary is the part of a slice that the allocator sees, without its node and its place among other slices.
type summary struct {
	sum uint64
	// compared has, for each attribute of a constraint, the value of each device: 0 if the device lacks it.
	compared [][]uint64
}

// summarize reads each Template of the sites once. It leaves out slices that differ from their Template in what the
// question reads.
func (r *reader) summarize(sites []*site) {
	var fresh []*pool.Template
	for _, s := range sites {
		for _, p := range s.packed {
			if _, ok := r.index[p.Template]; !ok {
				r.index[p.Template] = len(r.index)
				fresh = append(fresh, p.Template)
			}
		}
	}
	found := make([]summary, len(fresh))
	each(len(fresh), func(i int) { found[i] = r.summary(nil, &resourceapi.ResourceSlice{Spec: fresh[i].Spec}) })
	for i, t := range fresh {
		r.known[t] = found[i]
	}
}

// of returns the summary of a slice for a node.
func (r *reader) of(node *corev1.Node, p *pool.Packed) summary {
	if r.identities || ptr.Deref(p.Spec.PerDeviceNodeSelection, false) ||
		slices.ContainsFunc(r.rules, func(rule *resourceapi.DeviceTaintRule) bool { return selectsPool(rule, p) }) {
		return r.summary(node, tainted(p, r.rules))
	}
	out := r.known[p.Template]
	copied := false
	for at, a := range p.Identities() {
		for i, name := range r.compared {
			if q, _ := attribute(p.Spec.Driver, &p.Spec.Devices[at.Device], name); q != at.Name {
				continue
			}
			if !copied {
				out.compared, copied = slices.Clone(out.compared), true
				for j := range out.compared {
					out.compared[j] = slices.Clone(out.compared[j])
				}
			}
			out.compared[i][at.Device] = attributeHash(r.seed, a)
		}
		if len(r.compared) == 0 {
			break
		}
	}
	return out
}

func (r *reader) summary(node *corev1.Node, s *resourceapi.ResourceSlice) summary {
	h := hasher{seed: r.seed}
	out := summary{compared: make([][]uint64, len(r.compared))}
	for i := range out.compared {
		out.compared[i] = make([]uint64, len(s.Spec.Devices))
	}
	h.text(s.Spec.Driver)
	for _, set := range s.Spec.SharedCounters {
		h.text(set.Name)
		h.number(countersHash(r.seed, set.Counters))
	}
	for i := range s.Spec.Devices {
		d := &s.Spec.Devices[i]
		h.number(r.device(s.Spec.Driver, d))
		if node != nil && ptr.Deref(s.Spec.PerDeviceNodeSelection, false) {
			h.truth(matches(node, d.NodeName, d.AllNodes, d.NodeSelector))
		}
		h.truth(len(d.BindingConditions) > 0)
		for j, name := range r.compared {
			if q, ok := attribute(s.Spec.Driver, d, name); ok {
				out.compared[j][i] = attributeHash(r.seed, d.Attributes[q])
			}
		}
		h.number(uint64(len(d.Taints)))
		for _, t := range d.Taints {
			h.text(t.Key)
			h.text(t.Value)
			h.text(string(t.Effect))
		}
		h.number(uint64(len(d.ConsumesCounters)))
		for _, c := range d.ConsumesCounters {
			h.text(c.CounterSet)
			h.number(countersHash(r.seed, c.Counters))
		}
	}
	out.sum = h.sum
	return out
}

// attribute returns the name under which a device has an attribute.
func attribute(driver string, d *resourceapi.Device, name resourceapi.FullyQualifiedName) (resourceapi.QualifiedName, bool) {
	if _, ok := d.Attributes[resourceapi.QualifiedName(name)]; ok {
		return resourceapi.QualifiedName(name), true
	}
	domain, id, _ := strings.Cut(string(name), "/")
	_, ok := d.Attributes[resourceapi.QualifiedName(id)]
	return resourceapi.QualifiedName(id), ok && domain == driver
}

// shape hashes what the allocator sees of a node: not its name, the names of devices, or attributes that no selector
// reads. repeated remembers the results of repeats.
func (r *reader) shape(s *site, repeated map[string]bool) (*shape, uint64) {
	out := &shape{site: s, nodes: []string{s.node.Name}}
	h, allocated := hasher{seed: r.seed}, hasher{seed: r.seed}
	pool, newest := poolID{}, int64(0)
	held := map[string][]hold(nil)
	values := map[string]uint64{}
	for i, p := range s.packed {
		if id := packedPool(p); i == 0 || id != pool {
			pool, newest, held = id, p.Pool.Generation, s.held[id]
			for _, other := range s.packed[i:] {
				if packedPool(other) != id {
					break
				}
				newest = max(newest, other.Pool.Generation)
			}
			h.truth(true)
		}
		// Generations matter only within a pool.
		h.number(uint64(newest - p.Pool.Generation))
		h.number(uint64(p.Pool.ResourceSliceCount))
		mine := ptr.Deref(p.Spec.PerDeviceNodeSelection, false) || matches(s.node, &p.Node, p.Spec.AllNodes, p.Spec.NodeSelector)
		h.truth(mine)
		one := r.of(s.node, p)
		h.number(one.sum)
		if len(held) > 0 {
			allocated.number(uint64(i))
		}
		for j := range p.Spec.Devices {
			for k, name := range r.compared {
				h.number(pattern(values, name, one.compared[k][j]))
			}
			if len(held) == 0 {
				continue
			}
			for _, hold := range held[p.Spec.Devices[j].Name] {
				allocated.truth(hold.result.ShareID != nil)
				allocated.number(quantitiesHash(r.seed, hold.result.ConsumedCapacity))
			}
			allocated.number(uint64(len(held[p.Spec.Devices[j].Name])))
		}
		if mine {
			out.devices += len(p.Spec.Devices)
		}
	}
	h.truth(r.repeats(s, repeated))
	out.bare = h.sum
	h.number(allocated.sum)
	return out, h.sum
}

// pattern returns a number that is equal for devices of the node with equal values of an attribute.
func pattern(values map[string]uint64, name resourceapi.FullyQualifiedName, value uint64) uint64 {
	if value == 0 {
		return 0
	}
	var raw [8]byte
	binary.LittleEndian.PutUint64(raw[:], value)
	key := string(name) + string(raw[:])
	if values[key] == 0 {
		values[key] = uint64(len(values) + 1)
	}
	return values[key]
}

// repeats reports whether a pool of the node has two devices of one name, which makes the pool invalid. The Templates
// determine it; known has the results so far.
func (r *reader) repeats(s *site, known map[string]bool) bool {
	var key []byte
	pool := poolID{}
	for _, p := range s.packed {
		if id := packedPool(p); id != pool {
			pool, key = id, append(key, 0xff, 0xff, 0xff, 0xff)
		}
		key = binary.BigEndian.AppendUint32(key, uint32(r.index[p.Template]))
	}
	result, ok := known[string(key)]
	if ok {
		return result
	}
	names, n := map[string]bool{}, 0
	for i, p := range s.packed {
		if i > 0 && packedPool(p) != packedPool(s.packed[i-1]) {
			clear(names)
			n = 0
		}
		for _, d := range p.Spec.Devices {
			names[d.Name] = true
		}
		n += len(p.Spec.Devices)
		result = result || len(names) != n
	}
	known[string(key)] = result
	return result
}

// device hashes what selectors read of a device.
func (r *reader) device(driver string, d *resourceapi.Device) uint64 {
	h := hasher{seed: r.seed}
	h.text(driver)
	h.truth(ptr.Deref(d.AllowMultipleAllocations, false))
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
