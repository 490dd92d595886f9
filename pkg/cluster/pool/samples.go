// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"weak"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
)

// Samples has the partitions that nodes could publish, by the attribute migLayout of their GPUs. Until an object asks
// for a profile, one node publishes a placement of it for all nodes with that layout. The name of a layout is a hash of
// it, so no node can have others believe that their GPUs have other partitions. It is safe for concurrent use.
type Samples struct {
	mu    sync.Mutex
	known map[string]resourceslices.MIGLayout
	// added has the results of Add while pools refer to them, so that nodes that are alike stay alike.
	added map[base]weak.Pointer[addition]
}

// base is the input of an addition: the shape of a pool, and the names of its known layouts.
type base struct {
	shape  [32]*Shape
	layout string
}

// addition has the shapes of the slices of a pool, some of them with counters, and then those of more counters and of
// partitions. Its new shapes refer to it.
type addition struct{ shapes []*Shape }

const (
	// maxLayouts is the number of layouts to remember. A cluster has about one for each model.
	maxLayouts = 1000
	// maxOfNode is the number of layouts of a node. A real one has as many as models.
	maxOfNode = 16
)

// NewSamples returns Samples without a layout.
func NewSamples() *Samples {
	return &Samples{known: map[string]resourceslices.MIGLayout{}, added: map[base]weak.Pointer[addition]{}}
}

// Layouts returns the layouts of the pool's whole GPUs, sorted. A pool with more than any real one has none.
func (p Pool) Layouts() (out []string) {
	for _, s := range p.Slices {
		out = append(out, s.Shape.layouts...)
	}
	slices.Sort(out)
	if out = slices.Compact(out); len(out) > maxOfNode {
		return nil
	}
	return out
}

func layoutsOf(of *Shape) (out []string) {
	for i, d := range of.Spec.Devices {
		if name := Text(d, wire.MIGLayoutAttribute); name != "" && of.Kinds[i].Type == gpu.KindGPU &&
			!slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// Learn remembers the layouts of which the pool publishes a partition of each profile, and returns the new ones.
func (x *Samples) Learn(p Pool) (learnt []string) {
	for _, name := range p.Layouts() {
		x.mu.Lock()
		_, known := x.known[name]
		full := len(x.known) >= maxLayouts
		x.mu.Unlock()
		if known || full {
			continue
		}
		if l, ok := p.layout(name); ok {
			learnt = append(learnt, name)
			x.mu.Lock()
			x.known[name] = l
			x.mu.Unlock()
		}
	}
	return learnt
}

// LearnAll learns from the slices of nodes. It skips nodes that cannot have a new layout.
func (x *Samples) LearnAll(nodes map[string][]*Slice) {
	tried := map[[32]*Shape]bool{}
	for _, all := range nodes {
		if !slices.ContainsFunc(all, func(s *Slice) bool { return s.begins(gpu.KindMIG) }) ||
			!slices.ContainsFunc(all, x.hasUnknown) {
			continue
		}
		p := Of(all)
		if shape, _ := p.Shape(); !tried[shape] {
			tried[shape] = true
			x.Learn(p)
		}
	}
}

// Known returns the names of the layouts, sorted.
func (x *Samples) Known() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Sorted(maps.Keys(x.known))
}

// hasUnknown reports whether the slice has a layout that is not known.
func (x *Samples) hasUnknown(s *Slice) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return s.Shape != nil && slices.ContainsFunc(s.Shape.layouts, func(name string) bool {
		_, known := x.known[name]
		return !known
	})
}

// Keep forgets all layouts but these.
func (x *Samples) Keep(names map[string]bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	maps.DeleteFunc(x.known, func(name string, _ resourceslices.MIGLayout) bool { return !names[name] })
}

// Complete reports whether the pool publishes a partition of each profile of a layout.
func (p Pool) Complete(layout string) bool {
	_, ok := p.layout(layout)
	return ok
}

// layout returns the layout with a name; false if the pool lacks a part of it. A GPU without claims and external
// partitions has the counters of the layout.
func (p Pool) layout(name string) (l resourceslices.MIGLayout, ok bool) {
	if !slices.ContainsFunc(p.Slices, func(s *Slice) bool { return s.begins(gpu.KindMIG) }) || p.Faulty() {
		return l, false
	}
	full, ours, product := p.counters(), map[string]bool{}, "" // ours are the counter sets of the layout's GPUs.
	for d, kind := range p.Devices() {
		if kind.Type == gpu.KindGPU && Text(d, wire.MIGLayoutAttribute) == name {
			ours[ownSet(d)], product = true, kind.Product
		}
	}
	delete(ours, "")
	seen := map[string]bool{}
	// The one partition can be on a GPU of which no whole device is published.
	for _, others := range []bool{false, true} {
		for d, kind := range p.Devices() {
			if kind.Type == gpu.KindMIG && kind.Product == product && ours[ownSet(d)] != others &&
				!seen[kind.Profile] && d.Attributes["uuid"].StringValue == nil {
				seen[kind.Profile] = true
				d, _ = resourceslices.Shareable(d) // The name of a layout does not depend on what objects ask for.
				l.Partitions = append(l.Partitions, d)
			}
		}
	}
	for _, set := range slices.Sorted(maps.Keys(ours)) {
		l.Counters = map[string]resourceapi.Counter{}
		for counter, value := range full[set] {
			l.Counters[counter] = resourceapi.Counter{Value: value}
		}
		if l.Name() == name {
			return l, true
		}
	}
	return l, false
}

// ownSet returns the counter set of a device's GPU, or "" without one.
func ownSet(d resourceapi.Device) string {
	for _, use := range d.ConsumesCounters {
		if memorySlices(use.Counters) > 0 {
			return use.CounterSet
		}
	}
	return ""
}

// Add adds the partitions that the node could publish and does not, one of each profile, and the counters of its GPUs.
// Devices that claims can share once an object asks for it are shareable. The result is for readers of a cluster, not
// for the scheduler. It has the published slices first, in their order.
func (x *Samples) Add(p Pool) Pool {
	names := p.Layouts()
	shape, ok := p.Shape()
	x.mu.Lock()
	defer x.mu.Unlock()
	names = slices.DeleteFunc(names, func(name string) bool { _, known := x.known[name]; return !known })
	if len(names) == 0 && !slices.ContainsFunc(p.Slices, func(s *Slice) bool { return s.Shape.shareable }) || !ok {
		return p
	}
	key := base{shape, strings.Join(names, " ")}
	a := x.added[key].Value()
	if a == nil {
		if a = x.add(p); a == nil {
			return p
		}
		x.added[key] = weak.Make(a)
		runtime.AddCleanup(a, x.forget, key)
	}
	all, out := a.shapes, p
	out.Slices = slices.Clone(p.Slices)
	var first *Slice // One of the GPUs' pool.
	for i, s := range out.Slices {
		if len(s.Shape.layouts) > 0 && first == nil {
			first = s
		}
		if all[i] != s.Shape {
			changed := *s
			changed.Shape = all[i]
			out.Slices[i] = &changed
		}
	}
	for _, s := range all[len(p.Slices):] {
		out.Slices = append(out.Slices, &Slice{
			ObjectMeta: first.ObjectMeta,
			Node:       first.Node,
			Pool:       first.Pool,
			Shape:      s,
			Possible:   true,
		})
	}
	return out
}

// forget drops an addition without references, unless there is a new one.
func (x *Samples) forget(key base) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.added[key].Value() == nil {
		delete(x.added, key)
	}
}

// add returns nil if nothing is to be added.
func (x *Samples) add(p Pool) *addition {
	out := &addition{}
	published := p.kinds()
	var sets []resourceapi.CounterSet
	var partitions []resourceapi.Device
	for _, s := range p.Slices {
		changed := s.Shape
		change := func() {
			if changed == s.Shape {
				changed = s.Shape.clone()
				changed.of = out
			}
		}
		for i, d := range s.Shape.Spec.Devices {
			if shared, ok := resourceslices.Shareable(d); ok {
				change()
				changed.Spec.Devices[i], d = shared, shared
			}
			l, known := x.known[Text(d, wire.MIGLayoutAttribute)]
			if s.Shape.Kinds[i].Type != gpu.KindGPU || !known {
				continue
			}
			set := ownSet(d)
			if set == "" {
				set = d.Name + "-counter-set"
				change()
				changed.Spec.Devices[i].ConsumesCounters = append([]resourceapi.DeviceCounterConsumption{
					{CounterSet: set, Counters: l.Counters},
				}, d.ConsumesCounters...)
				sets = append(sets, resourceapi.CounterSet{Name: set, Counters: l.Counters})
			}
			for _, sample := range l.Partitions {
				kind := KindOf(sample)
				kind.Product = s.Shape.Kinds[i].Product
				if published.Has(kind) {
					continue
				}
				published.Insert(kind)
				if one, ok := partitionOf(d, sample, set); ok {
					partitions = append(partitions, one)
				}
			}
		}
		out.shapes = append(out.shapes, changed)
	}
	driver := p.Slices[0].Shape.Spec.Driver
	for chunk := range slices.Chunk(sets, resourceapi.ResourceSliceMaxCounterSets) {
		out.shapes = append(out.shapes,
			&Shape{Spec: resourceapi.ResourceSliceSpec{Driver: driver, SharedCounters: chunk}, of: out})
	}
	if len(partitions) > 0 {
		added := shapeOf(driver, partitions...)
		added.of = out
		out.shapes = append(out.shapes, added)
	}
	if slices.EqualFunc(out.shapes, p.Slices, func(a *Shape, b *Slice) bool { return a == b.Shape }) {
		return nil
	}
	return out
}

// clone returns a copy with devices that can be changed.
func (s *Shape) clone() *Shape {
	out := *s
	out.Spec.Devices = slices.Clone(s.Spec.Devices)
	return &out
}

// partitionOf returns a partition of a GPU like the sample of another GPU with its layout.
func partitionOf(whole, sample resourceapi.Device, set string) (resourceapi.Device, bool) {
	of, err := gpu.ParseName(whole.Name)
	named, sampleErr := gpu.ParseName(sample.Name)
	if err != nil || sampleErr != nil {
		return resourceapi.Device{}, false
	}
	named.PCIAddress, named.Profile = of.PCIAddress, Text(sample, "profile")
	out := resourceapi.Device{
		Name: named.Name(), Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{},
		Capacity: sample.Capacity, AllowMultipleAllocations: sample.AllowMultipleAllocations,
	}
	for _, e := range resourceslices.Catalogue() {
		name := resourceapi.QualifiedName(e.Name)
		if a, ok := whole.Attributes[name]; ok && !e.Capacity && name != "uuid" &&
			slices.Contains(e.Devices, gpu.KindMIG) {
			out.Attributes[name] = a
		}
	}
	for _, name := range resourceslices.OwnPartitionAttributes {
		delete(out.Attributes, name)
		if a, ok := sample.Attributes[name]; ok {
			out.Attributes[name] = a
		}
	}
	if a, ok := whole.Attributes["uuid"]; ok {
		out.Attributes["parentUUID"] = a
	}
	size := int64(0)
	for _, use := range sample.ConsumesCounters {
		if n := memorySlices(use.Counters); n > 0 {
			size = n
			out.ConsumesCounters = append(out.ConsumesCounters,
				resourceapi.DeviceCounterConsumption{CounterSet: set, Counters: use.Counters})
		}
	}
	// With groups, each device of a GPU takes of the GPU's counter in the groups' set.
	for _, use := range whole.ConsumesCounters {
		counter := strings.TrimPrefix(whole.Name, "gpu-")
		if all, grouped := use.Counters[counter]; grouped {
			taken := resourceapi.Counter{Value: *resource.NewQuantity(min(size, all.Value.Value()), resource.DecimalSI)}
			out.ConsumesCounters = append(out.ConsumesCounters, resourceapi.DeviceCounterConsumption{
				CounterSet: use.CounterSet, Counters: map[string]resourceapi.Counter{counter: taken},
			})
		}
	}
	return out, true
}
