// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package engine

// The kernel module numbers capabilities once for all: two for the machine, then for each GPU 15 GPU instances with 8
// compute instances each, whether they exist or not (nv-caps.c, /proc/driver/nvidia-caps/mig-minors).
// MaxInstances and MaxComputes are the most that the numbers allow for.
const (
	firstInstanceMinor = 3
	MaxInstances       = 15
	MaxComputes        = 8
	perInstance        = 1 + MaxComputes
	perGPU             = MaxInstances * perInstance
)

// InstanceMinor is the minor number of a GPU instance's capability, ComputeMinor of a compute instance's.
func InstanceMinor(gpuMinor, gpuInstance int) uint32 {
	return uint32(firstInstanceMinor + gpuMinor*perGPU + gpuInstance*perInstance)
}

// ComputeMinor is the minor number of a compute instance's capability.
func ComputeMinor(gpuMinor, gpuInstance, computeInstance int) uint32 {
	return InstanceMinor(gpuMinor, gpuInstance) + 1 + uint32(computeInstance)
}
