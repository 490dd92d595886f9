// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

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
	var p Pool
	newest, missing := map[string]int64{}, map[string]int64{}
	for _, s := range all {
		newest[s.Pool.Name] = max(newest[s.Pool.Name], s.Pool.Generation)
	}
	for _, s := range all {
		if s.Pool.Generation != newest[s.Pool.Name] || s.Shape == nil {
			continue
		}
		if _, known := missing[s.Pool.Name]; !known {
			missing[s.Pool.Name] = s.Pool.ResourceSliceCount
		}
		missing[s.Pool.Name]--
		p.Node, p.Slices = s.Node, append(p.Slices, s)
	}
	slices.SortFunc(p.Slices, func(a, b *Slice) int {
		return cmp.Or(cmp.Compare(a.Pool.Name, b.Pool.Name), cmp.Compare(a.Name, b.Name))
	})
	p.Whole = !OnlyMonitors(p.Slices) && !slices.ContainsFunc(slices.Collect(maps.Values(missing)), func(n int64) bool { return n != 0 })
	return p
}

// OnlyMonitors reports whether there is no slice but those of monitor devices. Such a node is not complete: the slices
// of its other pool are missing.
func OnlyMonitors(all []*Slice) bool {
	return !slices.ContainsFunc(all, func(s *Slice) bool { return !s.monitors() })
}

// Monitored reports whether there is a slice of monitor devices.
func Monitored(all []*Slice) bool { return slices.ContainsFunc(all, (*Slice).monitors) }

func (s *Slice) monitors() bool {
	return s.Shape != nil && len(s.Shape.Kinds) > 0 && s.Shape.Kinds[0].Type == gpu.KindMonitor
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
func (p Pool) Devices() iter.Seq2[resourceapi.Device, Kind] {
	return func(yield func(resourceapi.Device, Kind) bool) {
		for _, s := range p.Slices {
			for i, d := range s.Shape.Devices {
				if !yield(d, s.Shape.Kinds[i]) {
					return
				}
			}
		}
	}
}

// Published returns the pool's slices for the scheduler's allocator, with all devices healthy.
func (p Pool) Published(driver string) []*resourceapi.ResourceSlice {
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
				Driver: driver, NodeName: &p.Node, Pool: pool, Devices: s.Shape.Devices, SharedCounters: s.Shape.SharedCounters,
			},
		})
	}
	return out
}

// Slice is a ResourceSlice that refers to its Shape. It implements the part of an API object that a cache needs.
type Slice struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	Node string
	Pool resourceapi.ResourcePool
	// Shape is nil if the slice is unreadable.
	Shape *Shape
	// Possible means that its devices are not published: WithGroups made it.
	Possible bool
	// Unhealthy are the names of devices that are unavailable to new claims.
	Unhealthy []string
	// Clique is the NVLink fabric and clique of the GPUs, as uuid.number. It is empty if there is none or more than
	// one.
	Clique string
}

type SliceList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []Slice
}

// Trim converts a ResourceSlice. The caller must not use it afterwards.
func (s *Shapes) Trim(in *resourceapi.ResourceSlice) Slice {
	out := Slice{
		ObjectMeta: metav1.ObjectMeta{Name: in.Name, UID: in.UID, ResourceVersion: in.ResourceVersion},
		Node:       ptr.Deref(in.Spec.NodeName, ""),
		Pool:       in.Spec.Pool,
	}
	out.Clique = clique(in.Spec.Devices)
	// A slice without a shape has no devices. Of fails only for a slice that no API server can return.
	out.Shape, out.Unhealthy, _ = s.Of(in)
	return out
}

func clique(devices []resourceapi.Device) string {
	found := ""
	for _, d := range devices {
		fabric, number := Text(d, "fabricClusterUUID"), d.Attributes["cliqueID"].IntValue
		if fabric == "" || number == nil {
			continue
		}
		one := fmt.Sprintf("%s.%d", fabric, *number)
		if found != "" && found != one {
			return ""
		}
		found = one
	}
	return found
}

// DeepCopyObject implements runtime.Object. It does not copy the Shape, which is immutable.
func (s *Slice) DeepCopyObject() runtime.Object {
	out := *s
	s.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Unhealthy = slices.Clone(s.Unhealthy)
	return &out
}

// DeepCopyObject implements runtime.Object.
func (l *SliceList) DeepCopyObject() runtime.Object {
	out := *l
	out.Items = slices.Clone(l.Items)
	return &out
}
