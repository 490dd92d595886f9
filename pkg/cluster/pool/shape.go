// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package pool stores the ResourceSlices of a whole cluster in little memory. Nodes of one make publish equal slices
// except for the identities of boards, so the equal part is stored once, as a Shape.
package pool

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
	"gpu-dra-driver/pkg/node/resourceslices"
)

// identities are the attributes that differ among boards or fabrics of one make. Shapes are compared without them.
var identities = []resourceapi.QualifiedName{"uuid", "parentUUID", "fabricClusterUUID", "cliqueID"}

// Identity reports whether an attribute of the driver's domain is an identity. In a Shape its value is from any one
// node.
func Identity(name string) bool { return slices.Contains(identities, resourceapi.QualifiedName(name)) }

// Shape is the common part of equal ResourceSlices of different nodes. It is immutable.
type Shape struct {
	// Devices and SharedCounters are those of one of the slices, with its identities and without the taints of unhealthy
	// devices.
	Devices        []resourceapi.Device
	SharedCounters []resourceapi.CounterSet
	// Kinds are the kinds of the devices, by the same index.
	Kinds []Kind
	// groups are those of WithGroups.
	groups []*Shape
}

// Kind holds the attributes by which users choose devices.
type Kind struct {
	Type    gpu.Kind
	Product string
	// Profile is empty for devices other than MIG partitions.
	Profile string
	// GPUs is the size of a group, and 1 for other devices.
	GPUs int
}

// Shapes stores each Shape once, while references to it exist. It is safe for concurrent use.
type Shapes struct {
	mu    sync.Mutex
	known map[[sha256.Size]byte]weak.Pointer[Shape]
}

// Of returns the shape of a slice and the names of its unhealthy devices. It removes the identities of boards and nodes
// from the slice.
func (s *Shapes) Of(slice *resourceapi.ResourceSlice) (shape *Shape, unhealthy []string, err error) {
	// The first slice of a shape keeps its identities, so they are restored below.
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
	data, err := common.Marshal() // Marshal sorts maps.
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
	shape.groups = possibleGroups(shape)
	if s.known == nil {
		s.known = map[[sha256.Size]byte]weak.Pointer[Shape]{}
	}
	s.known[key] = weak.Make(shape)
	runtime.AddCleanup(shape, s.forget, key)
	return shape, unhealthy, nil
}

// forget drops a shape without references, unless a new one has its key.
func (s *Shapes) forget(key [sha256.Size]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known[key].Value() == nil {
		delete(s.known, key)
	}
}

func (s *Shapes) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.known)
}

// removeUnhealthyTaint removes the taint of an unhealthy device and reports whether there was one.
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

// plain makes text valid UTF-8, because metric labels require it.
func plain(text string) string { return strings.ToValidUTF8(text, "?") }

// Text returns a string or version attribute of a device, or "" without one.
func Text(d resourceapi.Device, name resourceapi.QualifiedName) string {
	a := d.Attributes[name]
	return ptr.Deref(cmp.Or(a.StringValue, a.VersionValue), "")
}
