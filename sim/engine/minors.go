// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package engine

// MaxInstances and MaxComputes are the largest numbers for which the kernel module reserves capabilities. It numbers
// all capabilities in advance: two for the machine, then 15 GPU instances with 8 compute instances each for every GPU
// (nv-caps.c, /proc/driver/nvidia-caps/mig-minors).
const (
	firstInstanceMinor = 3
	MaxInstances       = 15
	MaxComputes        = 8
	perInstance        = 1 + MaxComputes
	perGPU             = MaxInstances * perInstance
)

// InstanceMinor returns the minor number of a GPU instance's capability.
func InstanceMinor(gpuMinor, gpuInstance int) uint32 {
	return uint32(firstInstanceMinor + gpuMinor*perGPU + gpuInstance*perInstance)
}

// ComputeMinor returns the minor number of a compute instance's capability.
func ComputeMinor(gpuMinor, gpuInstance, computeInstance int) uint32 {
	return InstanceMinor(gpuMinor, gpuInstance) + 1 + uint32(computeInstance)
}
