// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package real

import (
	"cmp"
	"errors"
	"slices"
	"sync/atomic"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpu-dra-driver/internal/nvml"
)

// gpuInstance is a handle of use while its session is open. Once destroyed through it, it is not passed to NVML again,
// which need not survive that.
type gpuInstance struct {
	session   *session
	handle    gonvml.GpuInstance
	destroyed atomic.Bool
}

// query is the session's, but for an instance that this handle destroyed.
func (i *gpuInstance) query(symbol string, call func() gonvml.Return) error {
	if i.destroyed.Load() {
		return &nvml.Error{Query: symbol, Code: nvml.NotFound}
	}
	return i.session.query(symbol, call)
}

func (i *gpuInstance) Info() (nvml.GPUInstanceInfo, error) {
	info, err := ask(i, "nvmlGpuInstanceGetInfo", i.handle.GetInfo)
	if err != nil {
		return nvml.GPUInstanceInfo{}, err
	}
	return nvml.GPUInstanceInfo{ID: int(info.Id), ProfileID: int(info.ProfileId),
		Placement: nvml.MIGPlacement{Start: int(info.Placement.Start), Size: int(info.Placement.Size)}}, nil
}

func (i *gpuInstance) ComputeInstanceProfiles() ([]nvml.ComputeInstanceProfile, error) {
	return each(func(index int) (nvml.ComputeInstanceProfile, error) {
		p, err := ask(i, "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
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
		found, err := list(i, "nvmlGpuInstanceGetComputeInstances", func() ([]gonvml.ComputeInstance, gonvml.Return) {
			return i.handle.GetComputeInstances(&info)
		})
		if err != nil {
			return nil, err
		}
		for _, handle := range found {
			all = append(all, &computeInstance{parent: i, handle: handle})
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
	handle, err := ask(i, symbol, func() (gonvml.ComputeInstance, gonvml.Return) { return i.handle.CreateComputeInstance(&info) })
	if err != nil {
		return nil, err
	}
	return &computeInstance{parent: i, handle: handle}, nil
}

func (i *gpuInstance) Destroy() error {
	err := i.query("nvmlGpuInstanceDestroy", i.handle.Destroy)
	if err == nil {
		i.destroyed.Store(true)
	}
	return err
}

type computeInstance struct {
	parent    *gpuInstance
	handle    gonvml.ComputeInstance
	destroyed atomic.Bool
}

func (c *computeInstance) query(symbol string, call func() gonvml.Return) error {
	if c.destroyed.Load() {
		return &nvml.Error{Query: symbol, Code: nvml.NotFound}
	}
	return c.parent.query(symbol, call)
}

func (c *computeInstance) Info() (nvml.ComputeInstanceInfo, error) {
	info, err := ask(c, "nvmlComputeInstanceGetInfo_v2", c.handle.GetInfo)
	return nvml.ComputeInstanceInfo{ID: int(info.Id), ProfileID: int(info.ProfileId)}, err
}

func (c *computeInstance) Destroy() error {
	err := c.query("nvmlComputeInstanceDestroy", c.handle.Destroy)
	if err == nil {
		c.destroyed.Store(true)
	}
	return err
}

// gone says that a query met something that is no longer there.
func gone(err error) bool {
	return errors.Is(err, nvml.NotFound) || errors.Is(err, nvml.InvalidArgument)
}

// inOrder sorts instances by their IDs, each once, without those that went since they were listed.
func inOrder[T any](all []T, id func(T) (int, error)) ([]T, error) {
	byID := map[int]T{}
	var ids []int
	for _, i := range all {
		n, err := id(i)
		switch _, seen := byID[n]; {
		case gone(err):
		case err != nil:
			return nil, err
		case !seen:
			byID[n], ids = i, append(ids, n)
		}
	}
	slices.SortFunc(ids, cmp.Compare[int])
	var out []T
	for _, n := range ids {
		out = append(out, byID[n])
	}
	return out, nil
}
