// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Kind is the kind of a published device, the value of its "type" attribute.
type Kind string

const (
	KindGPU Kind = "gpu"
	// KindMIG is a MIG partition of a GPU: a profile at a placement, whether it exists yet or not.
	KindMIG Kind = "mig"
	// KindMonitor is a GPU to monitor, not to use: for claims with admin access.
	KindMonitor Kind = "monitor"
	KindGroup   Kind = "nvlink-group"
)

// Device is the content of a device name.
type Device struct {
	Kind Kind
	// PCIAddress is the GPU's, in the form dddd:bb:dd.f in lower case; for a group it is the first member's.
	PCIAddress string
	// Profile and Start identify the partition of a MIG device.
	Profile string
	Start   int
	// Size is the number of GPUs of a group. The node's NVLinks decide which GPUs they are.
	Size int
}

// Name is a DNS label: gpu-0000-1b-00-0, gpu-0000-1b-00-0-mig-1g-10gb-4, monitor-0000-1b-00-0 or
// nvlink-4-0000-1b-00-0.
func (d Device) Name() string {
	address := strings.NewReplacer(":", "-", ".", "-").Replace(d.PCIAddress)
	switch d.Kind {
	case KindMIG:
		return fmt.Sprintf("gpu-%s-mig-%s-%d", address, ProfileLabel(d.Profile), d.Start)
	case KindGroup:
		return fmt.Sprintf("nvlink-%d-%s", d.Size, address)
	}
	return string(d.Kind) + "-" + address
}

// NameOf returns the name of the whole GPU at a PCI address.
func NameOf(address string) string { return Device{Kind: KindGPU, PCIAddress: address}.Name() }

// ProfileLabel spells a profile as part of a DNS label: "+x" becomes "-x" and "-x" becomes "-no-x".
// A board can have both "1g.24gb+me" and "1g.24gb-me".
func ProfileLabel(profile string) string {
	return strings.NewReplacer("-", "-no-", "+", "-", ".", "-").Replace(profile)
}

var (
	groupForm = regexp.MustCompile(`^nvlink-([1-9][0-9]?)-([0-9a-f]{4,8})-([0-9a-f]{2})-([01][0-9a-f])-([0-7])$`)
	nameForm  = regexp.MustCompile(
		`^(gpu|monitor)-([0-9a-f]{4,8})-([0-9a-f]{2})-([01][0-9a-f])-([0-7])` +
			`(?:-mig-([0-9]+g)-([0-9]+gb)((?:-[a-z]+)*)-([0-9]{1,3}))?$`)
	addressForm = regexp.MustCompile(`^([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([01][0-9a-fA-F])(?:\.([0-7]))?$`)
	profileForm = regexp.MustCompile(`^[1-9][0-9]{0,2}g\.[1-9][0-9]{0,4}gb([+-](?:[a-z]+)(?:\.all)?)*$`)
)

// ValidProfile reports whether device names can hold this profile name, such as "1g.10gb" or "1g.24gb+me.all".
func ValidProfile(profile string) bool {
	if !profileForm.MatchString(profile) {
		return false
	}
	for _, part := range strings.FieldsFunc(profile, func(r rune) bool { return r == '+' || r == '-' })[1:] {
		if part == "no" || part == "all" {
			return false // ProfileLabel gives these words a meaning.
		}
	}
	return true
}

// ParseName is the inverse of Device.Name.
func ParseName(name string) (Device, error) {
	var d Device
	m := groupForm.FindStringSubmatch(name)
	if m != nil {
		d.Kind = KindGroup
		if d.Size, _ = strconv.Atoi(m[1]); d.Size < 2 { // Up to two digits.
			return Device{}, fmt.Errorf("device name %q has the group size 1, but a group has at least 2 GPUs", name)
		}
	} else if m = nameForm.FindStringSubmatch(name); m == nil {
		return Device{}, fmt.Errorf("device name %q does not belong to this driver "+
			"(examples: gpu-0000-1b-00-0, gpu-0000-1b-00-0-mig-1g-10gb-4, nvlink-4-0000-1b-00-0)", name)
	} else if d.Kind = Kind(m[1]); m[6] != "" {
		d.Kind, d.Profile = KindMIG, m[6]+"."+m[7]+profileSuffix(m[8])
		d.Start, _ = strconv.Atoi(m[9]) // Up to three digits.
		if !ValidProfile(d.Profile) {
			return Device{}, fmt.Errorf("device name %q does not contain a valid MIG profile", name)
		}
	}
	d.PCIAddress = m[2] + ":" + m[3] + ":" + m[4] + "." + m[5]
	if canonical, err := CanonicalAddress(d.PCIAddress); err != nil || canonical != d.PCIAddress || d.Name() != name {
		return Device{}, fmt.Errorf("device name %q is not in its shortest form", name)
	}
	return d, nil
}

// profileSuffix reverses ProfileLabel after the size: "-me" was "+me", "-no-me" was "-me", "-me-all" was "+me.all".
func profileSuffix(label string) string {
	var out strings.Builder
	sign := "+"
	for _, word := range strings.Split(label, "-") {
		switch word {
		case "":
		case "no":
			sign = "-"
		case "all":
			out.WriteString(".all")
		default:
			out.WriteString(sign + word)
			sign = "+"
		}
	}
	return out.String()
}

// CanonicalAddress converts any spelling of a PCI address, such as NVML's 00000000:1B:00.0, to the kernel's
// dddd:bb:dd.f in lower case. Domains of more than four digits, which exist behind VMD and in some clouds, keep them
// all.
func CanonicalAddress(address string) (string, error) {
	m := addressForm.FindStringSubmatch(strings.TrimSpace(address))
	if m == nil {
		return "", fmt.Errorf("%q is not a PCI address (like 0000:1b:00.0)", address)
	}
	domain, _ := strconv.ParseUint(m[1], 16, 32) // Up to eight digits.
	return fmt.Sprintf("%04x:%s:%s.%s", domain, strings.ToLower(m[2]), strings.ToLower(m[3]), cmp.Or(m[4], "0")), nil
}
