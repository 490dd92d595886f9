// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import "gpu-dra-driver/internal/nvml"

// SetComputeMode is what the driver does when asked to: the mode EXCLUSIVE_THREAD went with old drivers, and a cut GPU
// has no mode.
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
