// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package pool stores the ResourceSlices of a whole cluster in little memory: pools, counters, and nodes that are
// alike. Such nodes publish equal slices except for the identities of boards, so the equal part is stored once, as a
// Shape.
package pool

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/pkg/gpu"
)

// Pool holds the slices of one node, of all its pools; each pool is sorted by name like the scheduler does.
type Pool struct {
	Node   string
	Slices []*Slice
	// Whole means that all slices of each pool's newest generation exist; during an update some are missing.
	Whole bool
}

// Of returns the pool of a node's slices. Like the scheduler, it leaves out slices of older generations.
func Of(all []*Slice) Pool {
	p := Pool{Whole: true}
	for _, g := range Generations(all) {
		readable := slices.DeleteFunc(g.Slices, func(s *Slice) bool { return s.Shape == nil })
		if len(readable) == 0 {
			continue
		}
		p.Node, p.Slices = readable[0].Node, append(p.Slices, readable...)
		p.Whole = p.Whole && len(readable) == int(readable[0].Pool.ResourceSliceCount)
	}
	p.Whole = p.Whole && !OnlyMonitors(p.Slices)
	return p
}

// Generation is the newest generation of a pool of devices.
type Generation struct {
	// Slices exist, sorted by name.
	Slices []*Slice
	// Outdated is the number of slices of older generations.
	Outdated int
}

// Generations returns the newest generation of each pool, sorted by the pools' names.
func Generations(all []*Slice) []Generation {
	found := map[string]*Generation{}
	for _, s := range all {
		g := found[s.Pool.Name]
		switch {
		case g == nil:
			found[s.Pool.Name] = &Generation{Slices: []*Slice{s}}
		case s.Pool.Generation > g.Slices[0].Pool.Generation:
			*g = Generation{[]*Slice{s}, g.Outdated + len(g.Slices)}
		case s.Pool.Generation < g.Slices[0].Pool.Generation:
			g.Outdated++
		default:
			g.Slices = append(g.Slices, s)
		}
	}
	var out []Generation
	for _, name := range slices.Sorted(maps.Keys(found)) {
		slices.SortFunc(found[name].Slices, func(a, b *Slice) int { return cmp.Compare(a.Name, b.Name) })
		out = append(out, *found[name])
	}
	return out
}

// OnlyMonitors reports whether there is no slice but those of monitor devices. Such a node is not complete: the slices
// of its other pool are missing.
func OnlyMonitors(all []*Slice) bool {
	return !slices.ContainsFunc(all, func(s *Slice) bool { return !s.begins(gpu.KindMonitor) })
}

// Described reports whether there is a slice of monitor devices or of whole GPUs, which have all attributes of a GPU.
func Described(all []*Slice) bool {
	return slices.ContainsFunc(all, func(s *Slice) bool { return s.begins(gpu.KindMonitor) || s.begins(gpu.KindGPU) })
}

// Shape is equal for pools of one shape, with healthy and with unhealthy devices. ok is false if there are too many
// slices.
func (p Pool) Shape() (shape [32]*Shape, ok bool) {
	if len(p.Slices) > len(shape) {
		return shape, false
	}
	for i, s := range p.Slices {
		shape[i] = s.Shape
	}
	return shape, true
}

// Devices iterates over the pool's devices and their kinds.
func (p Pool) Devices() iter.Seq2[resourceapi.Device, Kind] { return devices(p.Slices) }

// published iterates over the devices without those that the node could publish and does not.
func (p Pool) published() iter.Seq2[resourceapi.Device, Kind] {
	return devices(slices.DeleteFunc(slices.Clone(p.Slices), func(s *Slice) bool { return s.Possible }))
}

func devices(all []*Slice) iter.Seq2[resourceapi.Device, Kind] {
	return func(yield func(resourceapi.Device, Kind) bool) {
		for _, s := range all {
			for i, d := range s.Shape.Spec.Devices {
				if !yield(d, s.Shape.Kinds[i]) {
					return
				}
			}
		}
	}
}

// Published returns the pool's slices for the scheduler's allocator, with all devices healthy.
func (p Pool) Published() []*resourceapi.ResourceSlice {
	var out []*resourceapi.ResourceSlice
	count := map[string]int64{}
	for _, s := range p.Slices {
		count[s.Pool.Name]++
	}
	for _, s := range p.Slices {
		pool := s.Pool
		pool.Generation, pool.ResourceSliceCount = 1, count[pool.Name]
		out = append(out, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: s.Name},
			Spec: resourceapi.ResourceSliceSpec{
				Driver:         s.Shape.Spec.Driver,
				NodeName:       &p.Node,
				Pool:           pool,
				Devices:        s.Shape.Spec.Devices,
				SharedCounters: s.Shape.Spec.SharedCounters,
			},
		})
	}
	return out
}
