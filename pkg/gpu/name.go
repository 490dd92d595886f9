// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Kind is the kind of a published device, the value of its "type" attribute.
type Kind string

const (
	// KindGPU is a whole GPU.
	KindGPU Kind = "gpu"
	// KindMonitor is a GPU to be watched, not used: for claims with admin access.
	KindMonitor Kind = "monitor"
)

// Device is what a device name says.
type Device struct {
	Kind Kind
	// PCIAddress is the GPU's, lower-case dddd:bb:dd.f.
	PCIAddress string
}

// Name is the device's DNS label: gpu-0000-1b-00-0, monitor-0000-1b-00-0.
func (d Device) Name() string {
	return string(d.Kind) + "-" + strings.NewReplacer(":", "-", ".", "-").Replace(d.PCIAddress)
}

var (
	nameForm    = regexp.MustCompile(`^(gpu|monitor)-([0-9a-f]{4,8})-([0-9a-f]{2})-([01][0-9a-f])-([0-7])$`)
	addressForm = regexp.MustCompile(`^([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([01][0-9a-fA-F])(?:\.([0-7]))?$`)
)

// ParseName is the inverse of Device.Name. The error says what a name looks like.
func ParseName(name string) (Device, error) {
	m := nameForm.FindStringSubmatch(name)
	if m == nil {
		return Device{}, fmt.Errorf("device name %q is not one of this driver's (like gpu-0000-1b-00-0)", name)
	}
	d := Device{Kind: Kind(m[1]), PCIAddress: m[2] + ":" + m[3] + ":" + m[4] + "." + m[5]}
	if canonical, err := CanonicalAddress(d.PCIAddress); err != nil || canonical != d.PCIAddress {
		return Device{}, fmt.Errorf("device name %q holds a PCI address that is not in its shortest form", name)
	}
	return d, nil
}

// CanonicalAddress turns any spelling of a PCI address, NVML's 00000000:1B:00.0 among them, into the kernel's
// lower-case dddd:bb:dd.f. Domains above ffff, which exist behind VMD and on some clouds, keep their digits.
func CanonicalAddress(address string) (string, error) {
	m := addressForm.FindStringSubmatch(strings.TrimSpace(address))
	if m == nil {
		return "", fmt.Errorf("%q is not a PCI address (like 0000:1b:00.0)", address)
	}
	domain, err := strconv.ParseUint(m[1], 16, 32)
	if err != nil {
		return "", fmt.Errorf("%q is not a PCI address: %w", address, err)
	}
	function := m[4]
	if function == "" {
		function = "0"
	}
	return fmt.Sprintf("%04x:%s:%s.%s", domain, strings.ToLower(m[2]), strings.ToLower(m[3]), function), nil
}
