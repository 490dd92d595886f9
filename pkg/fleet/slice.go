// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

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
		Pool:       in.Spec.Pool,
	}
	if in.Spec.NodeName != nil {
		out.Node = *in.Spec.NodeName
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
	out.Unhealthy = append([]string(nil), s.Unhealthy...)
	return &out
}

// DeepCopyObject implements runtime.Object.
func (l *SliceList) DeepCopyObject() runtime.Object {
	out := *l
	out.Items = append([]Slice(nil), l.Items...)
	return &out
}
