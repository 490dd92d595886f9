// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

// Pool is what one node publishes, the slices in the order of their names: the scheduler's order.
type Pool struct {
	Node   string
	Slices []*Slice
	// Whole says that all slices of the newest generation are there. A pool that is being written is not.
	Whole bool
}

// PoolOf puts a node's slices together. Those of an older generation are left out, as the scheduler does.
func PoolOf(all []*Slice) Pool {
	var p Pool
	newest := int64(0)
	for _, s := range all {
		newest = max(newest, s.Pool.Generation)
	}
	want := int64(0)
	for _, s := range all {
		if s.Pool.Generation == newest && s.Shape != nil {
			p.Node, want = s.Node, s.Pool.ResourceSliceCount
			p.Slices = append(p.Slices, s)
		}
	}
	slices.SortFunc(p.Slices, func(a, b *Slice) int { return cmp.Compare(a.Name, b.Name) })
	p.Whole = len(p.Slices) > 0 && int64(len(p.Slices)) == want
	return p
}

// Shape is the same for pools of one shape, whether their devices are well or not; false where there are too many slices
// to tell.
func (p Pool) Shape() (shape [32]*Shape, ok bool) {
	if len(p.Slices) > len(shape) {
		return shape, false
	}
	for i, s := range p.Slices {
		shape[i] = s.Shape
	}
	return shape, true
}

// Key is the shape of a pool whose devices are all well, false of any other.
func (p Pool) Key() (key [32]*Shape, ok bool) {
	for _, s := range p.Slices {
		if len(s.Unhealthy) > 0 {
			return key, false
		}
	}
	return p.Shape()
}

// Devices are the pool's with their kinds.
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

// Published are the pool's slices for the scheduler's allocator, as if all devices were well.
func (p Pool) Published(driver string) []*resourceapi.ResourceSlice {
	var out []*resourceapi.ResourceSlice
	for _, s := range p.Slices {
		pool := s.Pool
		pool.Generation, pool.ResourceSliceCount = 1, int64(len(p.Slices))
		out = append(out, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: s.Name},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: driver, NodeName: &p.Node, Pool: pool, Devices: s.Shape.Devices, SharedCounters: s.Shape.SharedCounters,
			},
		})
	}
	return out
}

// Slice is a ResourceSlice that refers to its Shape. It is an API object as far as a cache of them needs it.
type Slice struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	// Node publishes it.
	Node string
	Pool resourceapi.ResourcePool
	// Shape is nil where the slice could not be read.
	Shape *Shape
	// Unhealthy are the devices that are not for new claims.
	Unhealthy []string
	// Clique is the NVLink fabric and the part of it that the GPUs are attached to, as uuid.number. Empty where there is
	// none, or more than one.
	Clique string
}

// SliceList is a list of them.
type SliceList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []Slice
}

// Trim makes a Slice of a ResourceSlice, which is not to be used after.
func (s *Shapes) Trim(in *resourceapi.ResourceSlice) Slice {
	out := Slice{
		ObjectMeta: metav1.ObjectMeta{Name: in.Name, UID: in.UID, ResourceVersion: in.ResourceVersion},
		Node:       ptr.Deref(in.Spec.NodeName, ""),
		Pool:       in.Spec.Pool,
	}
	out.Clique = clique(in.Spec.Devices)
	// A slice that cannot be marshalled came from no API server; without a shape it has no devices.
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

// DeepCopyObject implements runtime.Object. A Shape is never changed, so it is not copied.
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
