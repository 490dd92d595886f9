// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package real

import (
	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpu-dra-driver/internal/nvml"
)

// gpuInstance is a handle that can be used while its session is open.
type gpuInstance struct {
	destroyable
	handle gonvml.GpuInstance
}

func newGPUInstance(s *session, handle gonvml.GpuInstance) *gpuInstance {
	return &gpuInstance{destroyable: destroyable{querier: s}, handle: handle}
}

func (i *gpuInstance) Info() (nvml.GPUInstanceInfo, error) {
	info, err := get(i, "nvmlGpuInstanceGetInfo", i.handle.GetInfo)
	return nvml.GPUInstanceInfo{ID: int(info.Id), ProfileID: int(info.ProfileId),
		Placement: nvml.MIGPlacement{Start: int(info.Placement.Start), Size: int(info.Placement.Size)}}, err
}

func (i *gpuInstance) ComputeInstanceProfiles() ([]nvml.ComputeInstanceProfile, error) {
	return each(func(index int) (nvml.ComputeInstanceProfile, error) {
		p, err := get(i, "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
			i.handle.GetComputeInstanceProfileInfoV(index, gonvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED).V2)
		return nvml.ComputeInstanceProfile{ID: int(p.Id), Name: profileName(p.Name[:]), Slices: int(p.SliceCount),
			Instances: int(p.InstanceCount), Multiprocessors: int(p.MultiprocessorCount)}, err
	})
}

func (i *gpuInstance) ComputeInstances() ([]nvml.ComputeInstance, error) {
	profiles, err := i.ComputeInstanceProfiles()
	if err != nil {
		return nil, err
	}
	var all []nvml.ComputeInstance
	for _, p := range profiles {
		info := gonvml.ComputeInstanceProfileInfo{Id: uint32(p.ID), InstanceCount: most}
		found, err := list(i, "nvmlGpuInstanceGetComputeInstances", with(i.handle.GetComputeInstances, &info))
		if err != nil {
			return nil, err
		}
		for _, handle := range found {
			all = append(all, i.newComputeInstance(handle))
		}
	}
	return inOrder(all, func(c nvml.ComputeInstance) (int, error) { info, err := c.Info(); return info.ID, err })
}

func (i *gpuInstance) CreateComputeInstance(profileID int) (nvml.ComputeInstance, error) {
	const symbol = "nvmlGpuInstanceCreateComputeInstance"
	if profileID < 0 {
		return nil, &nvml.Error{Query: symbol, Code: nvml.InvalidArgument}
	}
	info := gonvml.ComputeInstanceProfileInfo{Id: uint32(profileID)}
	handle, err := get(i, symbol, with(i.handle.CreateComputeInstance, &info))
	if err != nil {
		return nil, err
	}
	return i.newComputeInstance(handle), nil
}

func (i *gpuInstance) newComputeInstance(handle gonvml.ComputeInstance) *computeInstance {
	return &computeInstance{destroyable: destroyable{querier: i}, handle: handle}
}

func (i *gpuInstance) Destroy() error { return i.destroy("nvmlGpuInstanceDestroy", i.handle.Destroy) }

type computeInstance struct {
	destroyable
	handle gonvml.ComputeInstance
}

func (c *computeInstance) Info() (nvml.ComputeInstanceInfo, error) {
	info, err := get(c, "nvmlComputeInstanceGetInfo_v2", c.handle.GetInfo)
	return nvml.ComputeInstanceInfo{ID: int(info.Id), ProfileID: int(info.ProfileId)}, err
}

func (c *computeInstance) Destroy() error {
	return c.destroy("nvmlComputeInstanceDestroy", c.handle.Destroy)
}
