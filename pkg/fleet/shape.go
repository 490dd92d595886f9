// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package fleet is what the ResourceSlices of a whole cluster say of its GPUs, in little memory: nodes of one make
// publish the same but for what identifies a board, so what they publish is kept once, as a Shape.
package fleet

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"weak"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/resourceslices"
)

// identities are the attributes that tell one board or fabric from another of the same make. A Shape is without them.
var identities = []resourceapi.QualifiedName{"uuid", "parentUUID", "nvlinkGroup", "fabricClusterUUID", "cliqueID"}

// Identity says whether an attribute of the driver's domain is one of them. In a Shape its value is that of some node.
func Identity(name string) bool { return slices.Contains(identities, resourceapi.QualifiedName(name)) }

// Shape is what ResourceSlices of different nodes have in common. It is never changed.
type Shape struct {
	// Devices and SharedCounters are as one of the slices has them, identities included, without the taint of what is
	// not well at the moment.
	Devices        []resourceapi.Device
	SharedCounters []resourceapi.CounterSet
	// Kinds are those of the devices, at the same places.
	Kinds []Kind
}

// Kind is what users tell devices apart by.
type Kind struct {
	Type    gpu.Kind
	Product string
	// Profile is a MIG partition's.
	Profile string
	// GPUs is the size of a group, 1 for all else.
	GPUs int
}

// Shapes keeps each Shape once, for as long as something refers to it. It is safe for concurrent use.
type Shapes struct {
	mu    sync.Mutex
	known map[[sha256.Size]byte]weak.Pointer[Shape]
}

// Of is the shape of a slice, which it changes: what identifies boards and nodes is taken out of it. Unhealthy are the names
// of its devices that are not for new claims.
func (s *Shapes) Of(slice *resourceapi.ResourceSlice) (shape *Shape, unhealthy []string, err error) {
	// The first of a shape keeps its identities, so they are put back.
	type identity struct {
		device int
		name   resourceapi.QualifiedName
		value  resourceapi.DeviceAttribute
	}
	var held []identity
	for i := range slice.Spec.Devices {
		d := &slice.Spec.Devices[i]
		if removeUnhealthyTaint(d) {
			unhealthy = append(unhealthy, d.Name)
		}
		for _, name := range identities {
			if value, ok := d.Attributes[name]; ok {
				held = append(held, identity{i, name, value})
				d.Attributes[name] = resourceapi.DeviceAttribute{}
			}
		}
	}
	common := resourceapi.ResourceSliceSpec{Devices: slice.Spec.Devices, SharedCounters: slice.Spec.SharedCounters}
	data, err := common.Marshal() // Maps are in order in it.
	if err != nil {
		return nil, nil, fmt.Errorf("ResourceSlice %s: %w", slice.Name, err)
	}
	key := sha256.Sum256(data)
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.known[key].Value(); known != nil {
		return known, unhealthy, nil
	}
	for _, h := range held {
		slice.Spec.Devices[h.device].Attributes[h.name] = h.value
	}
	shape = &Shape{Devices: slice.Spec.Devices, SharedCounters: slice.Spec.SharedCounters}
	for _, d := range shape.Devices {
		shape.Kinds = append(shape.Kinds, kindOf(d))
	}
	if s.known == nil {
		s.known = map[[sha256.Size]byte]weak.Pointer[Shape]{}
	}
	s.known[key] = weak.Make(shape)
	runtime.AddCleanup(shape, s.forget, key)
	return shape, unhealthy, nil
}

// forget drops a shape that is gone, unless it has come again.
func (s *Shapes) forget(key [sha256.Size]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known[key].Value() == nil {
		delete(s.known, key)
	}
}

// Len is how many shapes are known.
func (s *Shapes) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.known)
}

// removeUnhealthyTaint takes the taint of an unhealthy device off and says whether there was one.
func removeUnhealthyTaint(d *resourceapi.Device) (unhealthy bool) {
	rest := slices.DeleteFunc(slices.Clone(d.Taints), func(t resourceapi.DeviceTaint) bool {
		return t.Key == resourceslices.UnhealthyTaint
	})
	unhealthy = len(rest) < len(d.Taints)
	d.Taints = rest
	return unhealthy
}

func kindOf(d resourceapi.Device) Kind {
	k := Kind{Type: gpu.Kind(Text(d, "type")), Product: plain(Text(d, "productName")), Profile: plain(Text(d, "profile")), GPUs: 1}
	if count := d.Attributes["gpuCount"].IntValue; count != nil && *count > 0 && *count <= 1<<10 {
		k.GPUs = int(*count)
	}
	return k
}

// plain keeps what stands in slices from breaking what is made of it: labels of metrics are UTF-8.
func plain(text string) string { return strings.ToValidUTF8(text, "?") }

// Text is a device's attribute, empty where it has none of that name that is a string or version.
func Text(d resourceapi.Device, name resourceapi.QualifiedName) string {
	a := d.Attributes[name]
	return ptr.Deref(cmp.Or(a.StringValue, a.VersionValue), "")
}

// Bool is a device's attribute that is a truth value, false where it has none.
func Bool(d resourceapi.Device, name resourceapi.QualifiedName) bool {
	return ptr.Deref(d.Attributes[name].BoolValue, false)
}
