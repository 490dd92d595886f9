// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/gpu"
)

// Kind holds the attributes by which users choose devices.
type Kind struct {
	Type    gpu.Kind
	Product string
	// Profile is empty for devices other than MIG partitions.
	Profile string
	// GPUs is the size of a group, and 1 for other devices.
	GPUs int
	// Renamed means the shares of devices that the device plugin would rename. Only Publishers has such kinds, beside
	// those of the devices.
	Renamed bool
}

// KindOf reads the kind of a device of this driver. It reads only strings: no selector of a DeviceClass finds the same
// text as a version.
func KindOf(d resourceapi.Device) Kind {
	text := func(name resourceapi.QualifiedName) string {
		// Labels of metrics require UTF-8.
		return strings.ToValidUTF8(ptr.Deref(d.Attributes[name].StringValue, ""), "?")
	}
	k := Kind{Type: gpu.Kind(text("type")), Product: text("productName"), Profile: text("profile"), GPUs: 1}
	if count := d.Attributes["gpuCount"].IntValue; count != nil && *count > 0 && *count <= 1<<10 {
		k.GPUs = int(*count)
	}
	return k
}

// Text returns a string or version attribute of a device, or "" without one.
func Text(d resourceapi.Device, name resourceapi.QualifiedName) string {
	a := d.Attributes[name]
	return ptr.Deref(cmp.Or(a.StringValue, a.VersionValue), "")
}
