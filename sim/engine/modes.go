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
