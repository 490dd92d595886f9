// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"fmt"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/sharing"
)

// attributeSource is what an attribute can be read from.
type attributeSource struct {
	device gpu.Device
	gpu    gpu.GPU
	driver gpu.Driver
	// profile is a MIG device's, or of a whole GPU what stands for its engines; nil where that is not known.
	profile *gpu.Profile
	// uuid is the device's own, empty of a partition that is yet to be made.
	uuid string
	// group is the NVLink group it is in, empty where it is in none.
	group string
	// offer is what of it can be had in shares; nil where it is for one claim.
	offer *sharing.Offer
}

// described says that the GPU was read once, and is not known by its address alone: a zero means something then.
func (s attributeSource) described() bool {
	return s.gpu.ProductName != "" || s.gpu.ComputeCapability != (gpu.Version{})
}

// value gives an attribute, nil where there is none. The note says what was changed or left out.
type value func(attributeSource) (attribute *resourceapi.DeviceAttribute, note string)

// text is a string attribute. The API takes 64 bytes of UTF-8.
func text(get func(attributeSource) string) value {
	return func(s attributeSource) (*resourceapi.DeviceAttribute, string) {
		full := get(s)
		v := truncate(full, resourceapi.DeviceAttributeMaxValueLength)
		if v == "" {
			return nil, ""
		}
		note := ""
		if v != full {
			note = fmt.Sprintf("%q is published as %q: the API takes %d bytes of UTF-8", full, v, resourceapi.DeviceAttributeMaxValueLength)
		}
		return &resourceapi.DeviceAttribute{StringValue: &v}, note
	}
}

// truncate shortens a string to a number of bytes without splitting a character, and replaces what is not UTF-8.
func truncate(s string, limit int) string {
	s = strings.ToValidUTF8(s, "?")
	return strings.ToValidUTF8(s[:min(len(s), limit)], "")
}

// boolean is a bool attribute.
func boolean(get func(attributeSource) bool) value {
	return func(s attributeSource) (*resourceapi.DeviceAttribute, string) {
		if !s.described() {
			return nil, ""
		}
		return &resourceapi.DeviceAttribute{BoolValue: new(get(s))}, ""
	}
}

// number is an int attribute; an unknown number is left out.
func number(get func(attributeSource) (n int, known bool)) value {
	return func(s attributeSource) (*resourceapi.DeviceAttribute, string) {
		n, known := get(s)
		if !known || !s.described() {
			return nil, ""
		}
		return &resourceapi.DeviceAttribute{IntValue: new(int64(n))}, ""
	}
}

// version is a semantic version. An empty one is left out silently, one that cannot be normalised with a note.
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

// semver makes NVIDIA's versions strict semantic versions: three numbers, none with leading zeros. 580.126.09 becomes
// 580.126.9, 13.0 becomes 13.0.0.
func semver(raw string) (string, error) {
	parts := strings.Split(raw, ".")
	if len(parts) > 3 {
		return "", fmt.Errorf("%q has more than three parts, a semantic version has three", raw)
	}
	var numbers [3]uint64
	for i, p := range parts {
		n, err := strconv.ParseUint(p, 10, 32)
		if err != nil {
			return "", fmt.Errorf("%q is no version of up to three numbers", raw)
		}
		numbers[i] = n
	}
	return fmt.Sprintf("%d.%d.%d", numbers[0], numbers[1], numbers[2]), nil
}

// versionText is a two-part version as text, empty where it is unknown.
func versionText(v gpu.Version) string {
	if v == (gpu.Version{}) {
		return ""
	}
	return fmt.Sprintf("%d.%d", v.Major, v.Minor)
}
