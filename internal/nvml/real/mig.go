// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package real

import "gpu-dra-driver/internal/nvml"

func unsupported(query string) error { return &nvml.Error{Query: query, Code: nvml.NotSupported} }

func (d *device) SetMIGMode(bool) error { return unsupported("nvmlDeviceSetMigMode") }

func (d *device) GPUInstanceProfiles() ([]nvml.GPUInstanceProfile, error) {
	return nil, unsupported("nvmlDeviceGetGpuInstanceProfileInfoV")
}

func (d *device) GPUInstancePlacements(int) ([]nvml.MIGPlacement, error) {
	return nil, unsupported("nvmlDeviceGetGpuInstancePossiblePlacements_v2")
}

func (d *device) GPUInstances() ([]nvml.GPUInstance, error) {
	return nil, unsupported("nvmlDeviceGetGpuInstances")
}

func (d *device) CreateGPUInstance(int, nvml.MIGPlacement) (nvml.GPUInstance, error) {
	return nil, unsupported("nvmlDeviceCreateGpuInstanceWithPlacement")
}

func (d *device) MIGDevices() ([]nvml.MIGDevice, error) {
	return nil, unsupported("nvmlDeviceGetMigDeviceHandleByIndex")
}
