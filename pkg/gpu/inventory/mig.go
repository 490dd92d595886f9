// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"fmt"
	"slices"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/gpu"
)

// mig reads the MIG modes, profiles and partitions. A failure only becomes this GPU's MIG.Fault, unless the GPU is
// lost or needs a reset.
func (r *reader) mig(d nvml.Device, architecture nvml.Architecture, g *gpu.GPU) {
	m := &g.MIG
	current, pending, err := d.MIGMode()
	if !r.essential("the MIG mode", err) {
		return
	}
	*m = gpu.MIG{Capable: true, Enabled: current, Pending: pending, Switchable: architecture >= nvml.ArchHopper}
	m.Profiles, err = r.profiles(d, profileKey{g.UUID, r.driver, m.Enabled})
	if err == nil && m.Enabled {
		err = readPartitions(d, m)
	}
	if sessionpool.IsGone(err) {
		r.require("the MIG state", err)
	}
	if err != nil {
		m.Profiles, m.Partitions, m.Fault = nil, nil, err.Error()
	}
}

// profileKey identifies what a GPU's profiles depend on.
type profileKey struct {
	uuid, driver string
	enabled      bool
}

// profiles returns the GPU's MIG profiles, which it reads once. They are most of a scan's queries.
func (r *reader) profiles(d nvml.Device, key profileKey) ([]gpu.Profile, error) {
	if known, ok := r.known.Load(key); ok {
		return known.([]gpu.Profile), nil
	}
	profiles, err := readProfiles(d)
	if err == nil {
		r.known.Store(key, profiles)
	}
	return profiles, err
}

func readProfiles(d nvml.Device) ([]gpu.Profile, error) {
	profiles, err := d.GPUInstanceProfiles()
	if err != nil {
		return nil, fmt.Errorf("read the MIG profiles: %w", err)
	}
	var out []gpu.Profile
	for _, p := range profiles {
		profile := gpu.Profile{
			ID: p.ID, Name: p.Name, Slices: p.Slices, Instances: p.Instances, MemoryBytes: p.MemoryMiB << 20,
			Multiprocessors: p.Multiprocessors, CopyEngines: p.CopyEngines, Decoders: p.Decoders, Encoders: p.Encoders,
			JPEGEngines: p.JPEGEngines, OFAEngines: p.OFAEngines,
		}
		placements, err := d.GPUInstancePlacements(p.ID)
		if err != nil {
			return nil, fmt.Errorf("read the placements of MIG profile %s: %w", p.Name, err)
		}
		for _, at := range placements {
			profile.Placements = append(profile.Placements, gpu.Placement(at))
		}
		slices.SortFunc(profile.Placements, func(a, b gpu.Placement) int {
			return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.Size, b.Size))
		})
		out = append(out, profile)
	}
	return out, nil
}

// readPartitions lists GPU instances, not MIG devices: an instance without a compute instance has no device but
// occupies its placement.
func readPartitions(d nvml.Device, m *gpu.MIG) error {
	instances, err := d.GPUInstances()
	if err != nil {
		return fmt.Errorf("read the GPU instances: %w", err)
	}
	devices, err := d.MIGDevices()
	if err != nil {
		return fmt.Errorf("read the MIG devices: %w", err)
	}
	for _, i := range instances {
		info, err := i.Info()
		if nvml.Vanished(err) {
			continue // Destroyed meanwhile.
		}
		if err != nil {
			return fmt.Errorf("read a GPU instance: %w", err)
		}
		p := gpu.Partition{GPUInstance: info.ID, Placement: gpu.Placement(info.Placement)}
		if n := slices.IndexFunc(m.Profiles, func(p gpu.Profile) bool { return p.ID == info.ProfileID }); n >= 0 {
			p.Profile = m.Profiles[n].Name
		}
		for _, device := range devices {
			if device.GPUInstance == info.ID {
				p.Devices = append(p.Devices,
					gpu.PartitionDevice{UUID: device.UUID, ComputeInstance: device.ComputeInstance})
			}
		}
		if len(p.Devices) == 0 {
			computes, err := i.ComputeInstances()
			if err != nil && !nvml.Vanished(err) {
				return fmt.Errorf("read the compute instances of a GPU instance: %w", err)
			}
			p.Unlisted = len(computes) > 0
		}
		m.Partitions = append(m.Partitions, p)
	}
	slices.SortFunc(m.Partitions, func(a, b gpu.Partition) int {
		return cmp.Or(cmp.Compare(a.Placement.Start, b.Placement.Start), cmp.Compare(a.GPUInstance, b.GPUInstance))
	})
	return nil
}
