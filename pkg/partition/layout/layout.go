// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package layout computes MIG geometry: the placements that exclude each other, and the order in which to offer them.
//
// It uses only the profiles that NVML reports for a GPU, whatever their number, names and sizes. A GPU has as many
// memory slices as its placements cover, and as many engines as the profile with the most of them.
//
// Traps. NVML can report implausible profiles: Check them before other calls. Memory slices alone do not decide which
// partitions fit, because some profiles need an engine that the GPU has once. Compute slices do not either: a 3g takes
// as many memory slices as a 4g.
package layout

import (
	"errors"
	"fmt"

	"gpu-dra-driver/pkg/gpu"
)

// Choice is a profile at one of its placements.
type Choice struct {
	Profile   gpu.Profile
	Placement gpu.Placement
}

func Slices(profiles []gpu.Profile) int {
	n := 0
	for _, p := range profiles {
		for _, at := range p.Placements {
			n = max(n, at.End())
		}
	}
	return n
}

func startingAt(profiles []gpu.Profile, start int) []Choice {
	var out []Choice
	for _, p := range profiles {
		for _, at := range p.Placements {
			if at.Start == start {
				out = append(out, Choice{p, at})
			}
		}
	}
	return out
}

// The limits of plausible reports by NVML.
const (
	// maxSlices leaves one of the 32 counters that the API allows for the memory.
	maxSlices = 31
	// maxProfiles exceeds the number of profile IDs in NVML.
	maxProfiles = 32
	// maxLabel leaves room for a PCI address and a start in a DNS label.
	maxLabel = 30
	maxCount = 1 << 16
	maxBytes = 1 << 50
)

// Check returns an error if the profiles of a GPU are implausible or cannot be published.
func Check(m gpu.MIG) error {
	if m.Fault != "" {
		return errors.New(m.Fault)
	}
	if !m.Capable && len(m.Profiles) > 0 {
		return errors.New("NVML reports MIG profiles for a GPU without MIG")
	}
	if m.Capable && len(m.Profiles) == 0 {
		return errors.New("NVML reports no MIG profiles")
	}
	if len(m.Profiles) > maxProfiles {
		return fmt.Errorf("NVML reports %d MIG profiles, more than %d", len(m.Profiles), maxProfiles)
	}
	names, ids := map[string]bool{}, map[int]string{}
	for _, p := range m.Profiles {
		if err := checkProfile(p); err != nil {
			return fmt.Errorf("MIG profile %q (ID %d) as NVML reports it: %w", p.Name, p.ID, err)
		}
		if names[p.Name] {
			return fmt.Errorf("NVML reports two MIG profiles with the name %q", p.Name)
		}
		if other, ok := ids[p.ID]; ok {
			return fmt.Errorf("NVML reports the MIG profiles %q and %q with the same ID %d", other, p.Name, p.ID)
		}
		names[p.Name], ids[p.ID] = true, p.Name
	}
	return nil
}

func checkProfile(p gpu.Profile) error {
	if !gpu.ValidProfile(p.Name) || len(gpu.ProfileLabel(p.Name)) > maxLabel {
		return errors.New("its name is not a valid MIG profile name")
	}
	if p.ID < 0 {
		return errors.New("its ID is negative")
	}
	for _, n := range []struct {
		what     string
		value    int
		min, max int
	}{
		{"compute slices", p.Slices, 1, maxSlices},
		{"instances", p.Instances, 1, maxSlices},
		{"placements", len(p.Placements), 1, maxSlices},
		{"multiprocessors", p.Multiprocessors, 0, maxCount},
		{"copy engines", p.CopyEngines, 0, maxCount},
		{"decoders", p.Decoders, 0, maxCount},
		{"encoders", p.Encoders, 0, maxCount},
		{"JPEG engines", p.JPEGEngines, 0, maxCount},
		{"OFA engines", p.OFAEngines, 0, maxCount},
	} {
		if n.value < n.min || n.value > n.max {
			return fmt.Errorf("it has %d %s", n.value, n.what)
		}
	}
	if p.MemoryBytes == 0 || p.MemoryBytes > maxBytes {
		return fmt.Errorf("it has %d bytes of memory", p.MemoryBytes)
	}
	starts := map[int]bool{}
	for _, at := range p.Placements {
		switch {
		case at.Start < 0 || at.Start >= maxSlices || at.Size < 1 || at.Size > maxSlices || at.End() > maxSlices:
			return fmt.Errorf("a placement at %d of %d memory slices is not on a GPU of at most %d", at.Start,
				at.Size, maxSlices)
		case at.Size != p.Placements[0].Size:
			return fmt.Errorf("it has placements of %d and of %d memory slices", p.Placements[0].Size, at.Size)
		case starts[at.Start]:
			return fmt.Errorf("it has two placements at %d", at.Start)
		}
		starts[at.Start] = true
	}
	return nil
}
