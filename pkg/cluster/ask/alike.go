// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"context"
	"encoding/binary"
	"hash/maphash"
	"runtime"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/selector"
)

// Alike are nodes that the allocator cannot distinguish for a question.
type Alike struct {
	// Node is the first of them, to ask about.
	*Node
	Names []string
	// Devices is the number of devices that a node can use.
	Devices int
	// Bare is equal for nodes that differ only in their allocated devices.
	Bare uint64
}

// Question knows what the selectors and constraints of claims read. Nodes are alike if they are equal in that.
type Question struct {
	seed maphash.Seed
	// names are the attributes that selectors read; all means that they can read any.
	names []resourceapi.QualifiedName
	all   bool
	// compared are the attributes of constraints: only equality within a node matters.
	compared []resourceapi.FullyQualifiedName
	// identities means that selectors read attributes in which slices of one Shape differ.
	identities bool
	rules      []*resourceapi.DeviceTaintRule
	// known are the summaries of Shapes, and index numbers the Shapes.
	known map[*pool.Shape]summary
	index map[*pool.Shape]int
}

// Question reads the selectors of the claims and of all classes. The rules taint devices.
func (a Asker) Question(claims []*resourceapi.ResourceClaim, rules []*resourceapi.DeviceTaintRule) *Question {
	q := &Question{
		seed:  maphash.MakeSeed(),
		rules: rules,
		known: map[*pool.Shape]summary{},
		index: map[*pool.Shape]int{},
	}
	for _, c := range a.AllClasses() {
		q.read(c.Spec.Selectors)
	}
	for _, c := range claims {
		for one := range selector.Requests(c.Spec.Devices.Requests) {
			q.read(one.Selectors)
		}
		for _, k := range c.Spec.Devices.Constraints {
			for _, name := range []*resourceapi.FullyQualifiedName{k.MatchAttribute, k.DistinctAttribute} {
				if name != nil {
					q.compared = append(q.compared, *name)
				}
			}
		}
	}
	slices.Sort(q.names)
	q.names = slices.Compact(q.names)
	q.identities = q.all || slices.ContainsFunc(q.names, func(name resourceapi.QualifiedName) bool {
		return pool.Identity(string(name))
	})
	return q
}

func (q *Question) read(selectors []resourceapi.DeviceSelector) {
	for _, e := range selector.Expressions(selectors) {
		read, err := selector.Read(e)
		n := 0
		for _, name := range read.Names {
			if !name.Capacity {
				n++
				q.names = append(q.names, resourceapi.QualifiedName(name.Domain+"/"+name.ID),
					resourceapi.QualifiedName(name.ID))
			}
		}
		// An alias or a loop can read attributes that are not listed.
		q.all = q.all || err != nil || strings.Count(e, "attributes") != n
	}
}

// Group groups nodes, and loads the slices of the first of each group.
func (q *Question) Group(nodes []*Node) []*Alike {
	// First, because Quantity.String writes its result into the request policies of a Shape. The goroutines below share
	// Shapes, and only read.
	q.summarize(nodes)
	all := make([]*Alike, len(nodes))
	keys := make([]uint64, len(nodes))
	workers := runtime.GOMAXPROCS(0)
	Each(workers, func(w int) {
		known := map[string]bool{}
		for i := w; i < len(nodes); i += workers {
			all[i], keys[i] = q.alone(nodes[i], known)
		}
	})
	first := map[uint64]*Alike{}
	var out []*Alike
	for i, one := range all {
		if known := first[keys[i]]; known != nil {
			known.Names = append(known.Names, one.Names[0])
			continue
		}
		first[keys[i]] = one
		out = append(out, one)
	}
	Each(len(out), func(i int) { q.Load(out[i].Node) })
	return out
}

// Load sets the Slices of a node, with the taints of the rules.
func (q *Question) Load(n *Node) {
	n.Slices = nil
	for _, s := range n.Packed {
		published := Slice{tainted(s, q.rules), s.Shape}
		if q.identities {
			published.Shape = nil
		}
		n.Slices = append(n.Slices, published)
	}
}

// Each calls f for the numbers below n, some at a time.
func Each(n int, f func(i int)) {
	workqueue.ParallelizeUntil(context.Background(), runtime.GOMAXPROCS(0), n, f)
}

// summary is the part of a slice that the allocator sees, without its node and its place among other slices.
type summary struct {
	sum uint64
	// compared has, for each attribute of a constraint, the value of each device: 0 if the device lacks it.
	compared [][]uint64
}

// summarize reads each Shape of the nodes once.
func (q *Question) summarize(nodes []*Node) {
	var fresh []*pool.Shape
	for _, n := range nodes {
		for _, s := range n.Packed {
			if _, ok := q.index[s.Shape]; !ok {
				q.index[s.Shape] = len(q.index)
				fresh = append(fresh, s.Shape)
			}
		}
	}
	found := make([]summary, len(fresh))
	Each(len(fresh), func(i int) { found[i] = q.summary(nil, fresh[i].Spec) })
	for i, t := range fresh {
		q.known[t] = found[i]
	}
}

// of returns the summary of a slice for a node.
func (q *Question) of(node *corev1.Node, s *pool.Slice) summary {
	if q.identities || len(s.Unhealthy) > 0 || ptr.Deref(s.Shape.Spec.PerDeviceNodeSelection, false) ||
		slices.ContainsFunc(q.rules, func(rule *resourceapi.DeviceTaintRule) bool { return selectsPool(rule, s) }) {
		return q.summary(node, tainted(s, q.rules).Spec)
	}
	out := q.known[s.Shape]
	if len(q.compared) == 0 {
		return out
	}
	copied := false
	for at, a := range s.Identities() {
		for i, name := range q.compared {
			if written, _ := attribute(s.Shape.Spec.Driver, s.Shape.Spec.Devices[at.Device], name); written != at.Name {
				continue
			}
			if !copied {
				out.compared, copied = slices.Clone(out.compared), true
				for j := range out.compared {
					out.compared[j] = slices.Clone(out.compared[j])
				}
			}
			out.compared[i][at.Device] = q.attribute(a)
		}
	}
	return out
}

// summary encodes what the question reads of a slice.
func (q *Question) summary(node *corev1.Node, in resourceapi.ResourceSliceSpec) summary {
	out := summary{compared: make([][]uint64, len(q.compared))}
	for i := range out.compared {
		out.compared[i] = make([]uint64, len(in.Devices))
	}
	seen := resourceapi.ResourceSliceSpec{Driver: in.Driver, SharedCounters: in.SharedCounters,
		Devices: make([]resourceapi.Device, len(in.Devices))}
	for i, d := range in.Devices {
		for j, name := range q.compared {
			if written, ok := attribute(in.Driver, d, name); ok {
				out.compared[j][i] = q.attribute(d.Attributes[written])
			}
		}
		part := resourceapi.Device{
			Capacity:                 d.Capacity,
			ConsumesCounters:         d.ConsumesCounters,
			AllowMultipleAllocations: d.AllowMultipleAllocations,
			Attributes:               d.Attributes,
			BindingConditions:        d.BindingConditions,
		}
		if !q.all {
			part.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
			for _, name := range q.names {
				if a, ok := d.Attributes[name]; ok {
					part.Attributes[name] = a
				}
			}
		}
		if node != nil && ptr.Deref(in.PerDeviceNodeSelection, false) {
			part.AllNodes = new(Matches(node, d.NodeName, d.AllNodes, d.NodeSelector))
		}
		for _, t := range d.Taints {
			part.Taints = append(part.Taints, resourceapi.DeviceTaint{Key: t.Key, Value: t.Value, Effect: t.Effect})
		}
		seen.Devices[i] = part
	}
	encoded, _ := seen.Marshal() // A decoded object always encodes. Marshal sorts maps.
	out.sum = maphash.Bytes(q.seed, encoded)
	return out
}

// attribute returns the name under which a device has an attribute.
func attribute(
	driver string, d resourceapi.Device, name resourceapi.FullyQualifiedName,
) (resourceapi.QualifiedName, bool) {
	if _, ok := d.Attributes[resourceapi.QualifiedName(name)]; ok {
		return resourceapi.QualifiedName(name), true
	}
	domain, id, _ := strings.Cut(string(name), "/")
	_, ok := d.Attributes[resourceapi.QualifiedName(id)]
	return resourceapi.QualifiedName(id), ok && domain == driver
}

// attribute returns a number that is equal for equal values, and never 0.
func (q *Question) attribute(a resourceapi.DeviceAttribute) uint64 {
	encoded, _ := a.Marshal() // A decoded object always encodes.
	return max(1, maphash.Bytes(q.seed, encoded))
}

// alone encodes what the allocator sees of a node: not its name, the names of devices, or attributes that no selector
// reads. repeated remembers the results of repeats.
func (q *Question) alone(n *Node, repeated map[string]bool) (*Alike, uint64) {
	out := &Alike{Node: n, Names: []string{n.Name}}
	var bare, allocated []byte
	id, newest := pool.ID{}, int64(0)
	held := map[string][]hold(nil)
	values := map[string]uint64{}
	for i, s := range n.Packed {
		if one := s.ID(); i == 0 || one != id {
			id, newest, held = one, s.Pool.Generation, n.held[one]
			for _, other := range n.Packed[i:] {
				if other.ID() != id {
					break
				}
				newest = max(newest, other.Pool.Generation)
			}
			bare = append(bare, 1)
		}
		// Generations matter only within a pool.
		bare = binary.AppendVarint(bare, newest-s.Pool.Generation)
		bare = binary.AppendVarint(bare, s.Pool.ResourceSliceCount)
		spec := &s.Shape.Spec
		mine := ptr.Deref(spec.PerDeviceNodeSelection, false) ||
			Matches(n.Node, &s.Node, spec.AllNodes, spec.NodeSelector)
		bare = appendBool(bare, mine)
		one := q.of(n.Node, s)
		bare = binary.LittleEndian.AppendUint64(bare, one.sum)
		if len(held) > 0 {
			allocated = binary.AppendUvarint(allocated, uint64(i))
		}
		for j, d := range spec.Devices {
			for k, name := range q.compared {
				bare = binary.AppendUvarint(bare, pattern(values, name, one.compared[k][j]))
			}
			if len(held) > 0 {
				allocated = binary.AppendUvarint(allocated, uint64(len(held[d.Name])))
			}
			for _, h := range held[d.Name] {
				allocated = appendBool(allocated, h.Result.ShareID != nil)
				consumed, _ := (&resourceapi.DeviceRequestAllocationResult{
					ConsumedCapacity: h.Result.ConsumedCapacity,
				}).Marshal()
				allocated = append(binary.AppendUvarint(allocated, uint64(len(consumed))), consumed...)
			}
		}
		if mine {
			out.Devices += len(spec.Devices)
		}
	}
	bare = appendBool(bare, q.repeats(n, repeated))
	out.Bare = maphash.Bytes(q.seed, bare)
	return out, maphash.Bytes(q.seed, append(binary.LittleEndian.AppendUint64(nil, out.Bare), allocated...))
}

func appendBool(to []byte, b bool) []byte {
	if b {
		return append(to, 1)
	}
	return append(to, 0)
}

// pattern returns a number that is equal for devices of the node with equal values of an attribute.
func pattern(values map[string]uint64, name resourceapi.FullyQualifiedName, value uint64) uint64 {
	if value == 0 {
		return 0
	}
	key := string(binary.LittleEndian.AppendUint64([]byte(name), value))
	if values[key] == 0 {
		values[key] = uint64(len(values) + 1)
	}
	return values[key]
}

// repeats reports whether a pool of the node has two devices of one name, which makes the pool invalid. The Shapes
// determine it; known has the results so far.
func (q *Question) repeats(n *Node, known map[string]bool) bool {
	var key []byte
	for i, s := range n.Packed {
		if i == 0 || s.ID() != n.Packed[i-1].ID() {
			key = append(key, 0xff, 0xff, 0xff, 0xff)
		}
		key = binary.BigEndian.AppendUint32(key, uint32(q.index[s.Shape]))
	}
	result, ok := known[string(key)]
	if ok {
		return result
	}
	names, count := map[string]bool{}, 0
	for i, s := range n.Packed {
		if i > 0 && s.ID() != n.Packed[i-1].ID() {
			clear(names)
			count = 0
		}
		for _, d := range s.Shape.Spec.Devices {
			names[d.Name] = true
		}
		count += len(s.Shape.Spec.Devices)
		result = result || len(names) != count
	}
	known[string(key)] = result
	return result
}

// tainted returns the published slice with the taints of the rules, which the scheduler adds too.
func tainted(s *pool.Slice, rules []*resourceapi.DeviceTaintRule) *resourceapi.ResourceSlice {
	out := s.ResourceSlice()
	copied := false
	for _, r := range rules {
		if !selectsPool(r, s) {
			continue
		}
		for i := range out.Spec.Devices {
			if ptr.Deref(r.Spec.DeviceSelector.Device, out.Spec.Devices[i].Name) != out.Spec.Devices[i].Name {
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

// selectsPool reports whether a rule can taint devices of a slice.
func selectsPool(r *resourceapi.DeviceTaintRule, s *pool.Slice) bool {
	if r == nil || r.Spec.DeviceSelector == nil {
		return false
	}
	q := r.Spec.DeviceSelector
	return ptr.Deref(q.Driver, s.Shape.Spec.Driver) == s.Shape.Spec.Driver &&
		ptr.Deref(q.Pool, s.Pool.Name) == s.Pool.Name
}
