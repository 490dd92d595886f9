// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"fmt"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
)

// attributeSource holds the data behind the attributes of one device.
type attributeSource struct {
	device gpu.Device
	gpu    gpu.GPU
	driver gpu.Driver
	// machine is the machine's product name.
	machine string
	// profile is a MIG device's profile; for a whole GPU it is the profile with all engines. nil means unknown.
	profile *gpu.Profile
	// Partitions that do not exist yet have no UUID.
	uuid string
	// group names the device's NVLink group, if any.
	group string
	// migLayout is the name of a whole GPU's MIGLayout; empty if it has none.
	migLayout string
	// offer describes the shares of the device; nil if it is not shared. later describes those of a device that is
	// shared once an object asks for it.
	offer, later *sharing.Offer
}

// described reports whether a scan read the GPU. Otherwise only its address is known, and zero values mean nothing.
func (s attributeSource) described() bool {
	return s.gpu.ProductName != "" || s.gpu.ComputeCapability != (gpu.Version{})
}

// value returns an attribute, or nil without one. The note explains a changed or missing value.
type value func(attributeSource) (attribute *resourceapi.DeviceAttribute, note string)

// text returns a string attribute. The API limits it to 64 bytes of UTF-8.
func text(get func(attributeSource) string) value {
	return func(s attributeSource) (*resourceapi.DeviceAttribute, string) {
		full := get(s)
		v := truncate(full, resourceapi.DeviceAttributeMaxValueLength)
		if v == "" {
			return nil, ""
		}
		note := ""
		if v != full {
			note = fmt.Sprintf("%q is published as %q: the API allows only %d bytes of UTF-8", full, v,
				resourceapi.DeviceAttributeMaxValueLength)
		}
		return &resourceapi.DeviceAttribute{StringValue: &v}, note
	}
}

// truncate shortens a string to a number of bytes between two characters, and replaces invalid UTF-8.
func truncate(s string, limit int) string {
	s = strings.ToValidUTF8(s, "?")
	return strings.ToValidUTF8(s[:min(len(s), limit)], "")
}

func boolean(get func(attributeSource) bool) value {
	return func(s attributeSource) (*resourceapi.DeviceAttribute, string) {
		if !s.described() {
			return nil, ""
		}
		return &resourceapi.DeviceAttribute{BoolValue: new(get(s))}, ""
	}
}

// number returns an int attribute, or none if the number is unknown.
func number(get func(attributeSource) (n int, known bool)) value {
	return func(s attributeSource) (*resourceapi.DeviceAttribute, string) {
		n, known := get(s)
		if !known || !s.described() {
			return nil, ""
		}
		return &resourceapi.DeviceAttribute{IntValue: new(int64(n))}, ""
	}
}

// version returns a semantic version. An empty version yields no attribute; an invalid one yields a note.
func version(get func(attributeSource) string) value {
	return func(s attributeSource) (*resourceapi.DeviceAttribute, string) {
		raw := get(s)
		if raw == "" {
			return nil, ""
		}
		v, err := semver(raw)
		if err != nil {
			return nil, "left out: " + err.Error()
		}
		return &resourceapi.DeviceAttribute{VersionValue: &v}, ""
	}
}

// semver converts NVIDIA's versions to semantic versions, which have three numbers without leading zeros: 580.126.09
// becomes 580.126.9, 13.0 becomes 13.0.0.
func semver(raw string) (string, error) {
	parts := strings.Split(raw, ".")
	if len(parts) > 3 {
		return "", fmt.Errorf("%q has more than the three parts of a semantic version", raw)
	}
	var numbers [3]uint64
	for i, p := range parts {
		n, err := strconv.ParseUint(p, 10, 32)
		if err != nil {
			return "", fmt.Errorf("%q is not a version of up to three numbers", raw)
		}
		numbers[i] = n
	}
	return fmt.Sprintf("%d.%d.%d", numbers[0], numbers[1], numbers[2]), nil
}

// versionText formats a version; an unknown one is empty.
func versionText(v gpu.Version) string {
	if v == (gpu.Version{}) {
		return ""
	}
	return fmt.Sprintf("%d.%d", v.Major, v.Minor)
}
