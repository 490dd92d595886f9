// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package gpu

import "testing"

func TestCanonicalAddress_AnySpelling_ReturnsKernelForm(t *testing.T) {
	for in, want := range map[string]string{
		"00000000:1B:00.0": "0000:1b:00.0",
		"0000:1b:00.0":     "0000:1b:00.0",
		"0000:1B:1f.7":     "0000:1b:1f.7",
		"0000:1b:00":       "0000:1b:00.0",
		"00010000:3b:00.0": "10000:3b:00.0",
	} {
		if got, err := CanonicalAddress(in); err != nil || got != want {
			t.Errorf("CanonicalAddress(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"", "1b:00.0", "0000:1b:20.0", "0000:1b:00.8", "gpu-0", "0000:1b:00.0 x"} {
		if got, err := CanonicalAddress(in); err == nil {
			t.Errorf("CanonicalAddress(%q) = %q, want an error", in, got)
		}
	}
}

func TestParseName_DeviceName_ReturnsDevice(t *testing.T) {
	for _, d := range []Device{
		{Kind: KindGPU, PCIAddress: "0000:1b:00.0"},
		{Kind: KindMonitor, PCIAddress: "0000:1b:00.0"},
		{Kind: KindGPU, PCIAddress: "10000:3b:1f.7"},
		{Kind: KindMIG, PCIAddress: "0000:1b:00.0", Profile: "1g.10gb", Start: 4},
		{Kind: KindGroup, PCIAddress: "0000:1b:00.0", Size: 2},
		{Kind: KindGroup, PCIAddress: "10000:1b:00.0", Size: 16},
		{Kind: KindMIG, PCIAddress: "0000:1b:00.0", Profile: "7g.141gb"},
		{Kind: KindMIG, PCIAddress: "0000:1b:00.0", Profile: "1g.24gb+me", Start: 6},
		{Kind: KindMIG, PCIAddress: "0000:1b:00.0", Profile: "1g.24gb-me", Start: 6},
		{Kind: KindMIG, PCIAddress: "10000:1b:00.0", Profile: "1g.24gb+me.all", Start: 10},
		{Kind: KindMIG, PCIAddress: "0000:1b:00.0", Profile: "4g.96gb+gfx", Start: 0},
	} {
		got, err := ParseName(d.Name())
		if err != nil || got != d {
			t.Errorf("ParseName(%q) = %+v, %v; want %+v", d.Name(), got, err, d)
		}
	}
}

func TestParseName_ForeignName_ReturnsError(t *testing.T) {
	for _, name := range []string{"", "gpu-0", "gpu-00000-1b-00-0", "nic-0000-1b-00-0", "gpu-0000-1B-00-0", "gpu-0000-1b-00-0-x",
		"gpu-0000-1b-00-0-mig-1g-10gb", "gpu-0000-1b-00-0-mig-1g-10gb-04", "monitor-0000-1b-00-0-mig-1g-10gb-0", "gpu-0000-1b-00-0-mig-1g-10gb-no-0",
		"nvlink-1-0000-1b-00-0", "nvlink-02-0000-1b-00-0", "nvlink-0000-1b-00-0", "nvlink-2-0000-1B-00-0", "nvlink-100-0000-1b-00-0",
		"gpu-0000-1b-00-0-mig-1g-10gb-all-0", "gpu-0000-1b-00-0-mig-01g-10gb-0"} {
		if got, err := ParseName(name); err == nil {
			t.Errorf("ParseName(%q) = %+v, want an error", name, got)
		}
	}
}

func FuzzParseName(f *testing.F) {
	for _, s := range []string{"gpu-0000-1b-00-0", "monitor-0000-1b-00-0", "gpu-10000-3b-1f-7", "gpu-", "-",
		"nvlink-8-0000-1b-00-0", "nvlink-1-0000-1b-00-0", "gpu-0000-1b-00-0-mig-1g-24gb-no-me-6", "gpu-0000-1b-00-0-mig-1g-24gb-me-all-0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		d, err := ParseName(name)
		if err != nil {
			return
		}
		if d.Name() != name {
			t.Errorf("ParseName(%q).Name() = %q", name, d.Name())
		}
	})
}
