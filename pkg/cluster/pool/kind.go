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
}

// KindOf reads the kind of a device of this driver.
func KindOf(d resourceapi.Device) Kind {
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
