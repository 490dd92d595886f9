// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"fmt"
	"os"
	"path/filepath"

	"gpu-dra-driver/sim/engine"
)

// PartitionsFile is the firmware file with the MIG devices for containers. It changes while a machine runs, unlike
// the other files.
const PartitionsFile = "gsp_mig.bin"

// Partition is a MIG device.
type Partition struct {
	Profile         string `json:"profile"`
	UUID            string `json:"uuid"`
	GPUInstance     int    `json:"gpuInstance"`
	ComputeInstance int    `json:"computeInstance"`
}

func partitionsOf(s *engine.State, g *engine.GPU) []Partition {
	var out []Partition
	for _, i := range g.Instances {
		p, _ := s.Profile.Board.MIG.Profile(i.ProfileID)
		for _, c := range i.Computes {
			name := p.Name
			if c.Slices < p.Slices {
				name = fmt.Sprintf("%dc.%s", c.Slices, p.Name)
			}
			out = append(out, Partition{Profile: name, UUID: c.UUID, GPUInstance: i.ID, ComputeInstance: c.ID})
		}
	}
	return out
}

// Partitions returns the MIG devices of a machine without other facts.
func Partitions(s *engine.State) Facts {
	var f Facts
	for _, i := range s.OnBus() {
		if g := &s.GPUs[i]; g.MIGEnabled {
			f.GPUs = append(f.GPUs, GPU{Minor: g.Minor, UUID: g.UUID, MIGEnabled: true, Partitions: partitionsOf(s, g)})
		}
	}
	return f
}

// addPartitions adds to a container's GPUs the MIG devices whose capabilities it has.
func addPartitions(f *Facts, root, dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, PartitionsFile))
	if err != nil {
		return nil // A machine without this file has no MIG.
	}
	parts, err := DecodeFirmware(b)
	if err != nil {
		return fmt.Errorf("%s: %w", PartitionsFile, err)
	}
	held := func(minor uint32) bool {
		_, err := os.Stat(filepath.Join(root, "dev/nvidia-caps", fmt.Sprintf("nvidia-cap%d", minor)))
		return err == nil
	}
	for i := range f.GPUs {
		for _, p := range parts.GPUs {
			if p.UUID != f.GPUs[i].UUID {
				continue
			}
			f.GPUs[i].MIGEnabled = p.MIGEnabled
			for _, part := range p.Partitions {
				if held(engine.InstanceMinor(p.Minor, part.GPUInstance)) && held(engine.ComputeMinor(p.Minor, part.GPUInstance, part.ComputeInstance)) {
					f.GPUs[i].Partitions = append(f.GPUs[i].Partitions, part)
				}
			}
		}
	}
	return nil
}
