// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"fmt"
	"slices"
	"strings"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/profiles"
)

// recordMIG makes a board's table of partitions from the GPU's profiles, in any MIG mode.
func recordMIG(d nvml.Device) (*profiles.MIG, error) {
	offered, err := d.GPUInstanceProfiles()
	if err != nil {
		return nil, fmt.Errorf("read the MIG profiles: %w", err)
	}
	architecture, err := d.Architecture()
	if err != nil {
		return nil, err
	}
	m := &profiles.MIG{ResetFree: architecture >= nvml.ArchHopper}
	for _, p := range offered {
		places, err := d.GPUInstancePlacements(p.ID)
		if err != nil {
			return nil, fmt.Errorf("read the placements of MIG profile %s, which root may: %w", p.Name, err)
		}
		r := profiles.GPUInstanceProfile{
			ID: p.ID, Name: p.Name, Slices: p.Slices, Instances: p.Instances, MemoryMiB: p.MemoryMiB, Multiprocessors: p.Multiprocessors,
			Engines: profiles.Engines{Copy: p.CopyEngines, Decoder: p.Decoders, Encoder: p.Encoders, JPEG: p.JPEGEngines, OFA: p.OFAEngines},
		}
		for _, at := range places {
			r.Starts, r.Size = append(r.Starts, at.Start), at.Size
			m.Slices = max(m.Slices, at.Start+at.Size)
		}
		taken := func(o profiles.GPUInstanceProfile) bool { return o.Index == r.Index }
		candidates := indexesOf(p)
		for len(candidates) > 0 {
			r.Index, candidates = candidates[0], candidates[1:]
			if !slices.ContainsFunc(m.GPUInstances, taken) {
				break
			}
		}
		m.GPUInstances = append(m.GPUInstances, r)
	}
	return m, nil
}

// indexesOf lists nvml.h's possible profile indexes of a profile, by its slices and the suffix of its name. The
// type `GPUInstanceProfile` has IDs, not indexes. A second profile of the same slices is a later revision.
func indexesOf(p nvml.GPUInstanceProfile) []int {
	_, added, _ := strings.Cut(p.Name, "gb")
	switch added {
	case "":
		return map[int][]int{1: {0, 9}, 2: {1}, 3: {2}, 4: {3}, 6: {6}, 7: {4}, 8: {5}}[p.Slices]
	case "+me":
		return map[int][]int{1: {7}, 2: {8}}[p.Slices]
	case "+gfx":
		return map[int][]int{1: {10}, 2: {11}, 3: {17}, 4: {12}}[p.Slices]
	case "-me":
		return map[int][]int{1: {13}, 2: {14}}[p.Slices]
	case "+me.all":
		return map[int][]int{1: {15}, 2: {16}}[p.Slices]
	}
	return nil
}

// describeMIG describes a GPU's profiles and partitions, one per line.
func describeMIG(d nvml.Device) ([]string, error) {
	on, pending, err := d.MIGMode()
	if nvml.Unavailable(err) {
		return []string{"no MIG"}, nil
	}
	if err != nil {
		return nil, err
	}
	mode := map[bool]string{false: "off", true: "on"}
	lines := []string{"MIG mode " + mode[on]}
	if on != pending {
		lines[0] += ", pending " + mode[pending]
	}
	offered, err := d.GPUInstanceProfiles()
	if err != nil {
		return lines, err
	}
	names := map[int]string{}
	for _, p := range offered {
		names[p.ID] = p.Name
		places, err := d.GPUInstancePlacements(p.ID)
		if err != nil {
			lines = append(lines, fmt.Sprintf("profile %d %s: placements: %v", p.ID, p.Name, err))
			continue
		}
		var starts []string
		size := 0
		for _, at := range places {
			starts, size = append(starts, fmt.Sprint(at.Start)), at.Size
		}
		lines = append(lines, fmt.Sprintf("profile %d %s: %d at once, at {%s}:%d, %d slices, %d SMs, %d MiB, engines copy %d dec %d enc %d jpeg %d ofa %d",
			p.ID, p.Name, p.Instances, strings.Join(starts, ","), size, p.Slices, p.Multiprocessors, p.MemoryMiB,
			p.CopyEngines, p.Decoders, p.Encoders, p.JPEGEngines, p.OFAEngines))
	}
	if !on {
		return lines, nil
	}
	return describePartitions(d, names, lines)
}

func describePartitions(d nvml.Device, names map[int]string, lines []string) ([]string, error) {
	instances, err := d.GPUInstances()
	if err != nil {
		return lines, err
	}
	for _, i := range instances {
		info, err := i.Info()
		if err != nil {
			return lines, err
		}
		lines = append(lines, fmt.Sprintf("GPU instance %d: %s at %d:%d", info.ID, names[info.ProfileID], info.Placement.Start, info.Placement.Size))
	}
	devices, err := d.MIGDevices()
	for _, m := range devices {
		lines = append(lines, fmt.Sprintf("device %s: compute instance %d/%d", m.UUID, m.GPUInstance, m.ComputeInstance))
	}
	return lines, err
}
