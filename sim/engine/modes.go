// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import "gpu-dra-driver/internal/nvml"

// SetComputeMode sets the mode as the driver does: EXCLUSIVE_THREAD exists only in old drivers, and a GPU in MIG mode
// has no compute mode.
func (g *GPU) SetComputeMode(m nvml.ComputeMode) nvml.Code {
	const exclusiveThread = 1
	switch {
	case m < 0 || m > nvml.ComputeExclusiveProcess:
		return nvml.InvalidArgument
	case m == exclusiveThread || g.MIGEnabled:
		return nvml.NotSupported
	}
	g.ComputeMode = int(m)
	return 0
}

// MIGModes is the first CUDA version whose MIG devices have compute modes.
const MIGModes = 13030

// PartMode returns the compute mode of a compute instance.
func (s *State) PartMode(c *Compute) (nvml.ComputeMode, nvml.Code) {
	if s.Profile.Driver.CUDA < MIGModes {
		return 0, nvml.NotSupported
	}
	return nvml.ComputeMode(c.ComputeMode), 0
}

// SetPartMode sets the compute mode of a compute instance.
func (s *State) SetPartMode(c *Compute, m nvml.ComputeMode) nvml.Code {
	if s.Profile.Driver.CUDA < MIGModes {
		return nvml.NotSupported
	}
	whole := GPU{ComputeMode: c.ComputeMode}
	code := whole.SetComputeMode(m)
	c.ComputeMode = whole.ComputeMode
	return code
}

// Part returns the compute instance with a UUID, or nil.
func (g *GPU) Part(uuid string) *Compute {
	for i := range g.Instances {
		for c := range g.Instances[i].Computes {
			if g.Instances[i].Computes[c].UUID == uuid {
				return &g.Instances[i].Computes[c]
			}
		}
	}
	return nil
}
