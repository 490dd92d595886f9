// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"iter"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"gpu-dra-driver/pkg/gpu"
)

// Slice is a ResourceSlice of any driver: its Shape, and what differs from other slices of the Shape. It has the
// metadata that a cache needs, and no other.
type Slice struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	// Node is empty if the slice is not for one node.
	Node string
	Pool resourceapi.ResourcePool
	// Shape is nil if the slice is unreadable.
	Shape *Shape
	// Possible means that its devices are not published: Pool.With made it.
	Possible bool
	// Unhealthy are the taints of devices that are unavailable to new claims: those of faults and of cordons.
	Unhealthy []Tainted
	// Clique is the NVLink fabric and clique of the GPUs, as uuid.number. It is empty if there is none or more than
	// one.
	Clique string
	// identities are the encoded values at the shape's places; nil if they are the shape's own, or not kept.
	identities []string
}

// Tainted is the taint of an unhealthy, cordoned or reserved device.
type Tainted struct {
	// Device is the index of the device.
	Device int
	Taint  resourceapi.DeviceTaint
}

// ID identifies a pool of devices.
type ID struct{ Driver, Pool string }

// ID returns the slice's pool.
func (s *Slice) ID() ID { return ID{s.Shape.Spec.Driver, s.Pool.Name} }

// begins reports whether the first device is of a kind. Slices of monitor devices have no others, and whole GPUs are
// first.
func (s *Slice) begins(with gpu.Kind) bool {
	return s.Shape != nil && len(s.Shape.Kinds) > 0 && s.Shape.Kinds[0].Type == with
}

// Identities iterates over the attributes in which the slice can differ from others of its Shape.
func (s *Slice) Identities() iter.Seq2[Place, resourceapi.DeviceAttribute] {
	return func(yield func(Place, resourceapi.DeviceAttribute) bool) {
		for i, encoded := range s.identities {
			var a resourceapi.DeviceAttribute
			if a.Unmarshal([]byte(encoded)) != nil {
				a = resourceapi.DeviceAttribute{} // Like an attribute of an unknown kind.
			}
			if !yield(s.Shape.places[i], a) {
				return
			}
		}
	}
}

// ResourceSlice returns the slice as it is published. It shares memory with the Shape, so the caller must not change
// its devices.
func (s *Slice) ResourceSlice() *resourceapi.ResourceSlice {
	out := &resourceapi.ResourceSlice{ObjectMeta: s.ObjectMeta, Spec: s.Shape.Spec}
	out.Spec.Pool = s.Pool
	if s.Node != "" {
		out.Spec.NodeName = &s.Node
	}
	if len(s.identities)+len(s.Unhealthy) > 0 {
		out.Spec.Devices = slices.Clone(out.Spec.Devices)
	}
	last := -1
	for at, value := range s.Identities() {
		d := &out.Spec.Devices[at.Device]
		if at.Device != last {
			d.Attributes, last = maps.Clone(d.Attributes), at.Device
		}
		d.Attributes[at.Name] = value
	}
	for _, u := range s.Unhealthy {
		d := &out.Spec.Devices[u.Device]
		d.Taints = append(slices.Clone(d.Taints), u.Taint)
	}
	return out
}

const (
	fabricAttribute resourceapi.QualifiedName = "fabricClusterUUID"
	cliqueAttribute resourceapi.QualifiedName = "cliqueID"
)

func (s *Slice) clique() string {
	named := func(d resourceapi.Device) bool { _, ok := d.Attributes[cliqueAttribute]; return ok }
	if !slices.ContainsFunc(s.Shape.Spec.Devices, named) {
		return ""
	}
	found := ""
	for _, d := range s.ResourceSlice().Spec.Devices {
		fabric, number := Text(d, fabricAttribute), d.Attributes[cliqueAttribute].IntValue
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

// SliceList is a list of slices for a cache.
type SliceList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []Slice
}

// DeepCopyObject implements runtime.Object.
func (l *SliceList) DeepCopyObject() runtime.Object {
	out := *l
	out.Items = slices.Clone(l.Items)
	return &out
}
