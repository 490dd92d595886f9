// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package native

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpu-dra-driver/internal/nvml"
)

// requireMIG returns NotSupported for a GPU without MIG, for which NVML's other queries return different codes.
func (d *device) requireMIG() error {
	_, _, err := d.MIGMode()
	return err
}

// requireMIGOn returns NotSupported for instances while the mode is off, since drivers return different codes then.
func (d *device) requireMIGOn(symbol string) error {
	on, _, err := d.MIGMode()
	if err == nil && !on {
		return &nvml.Error{Query: symbol, Code: nvml.NotSupported}
	}
	return err
}

// SetMIGMode checks both of NVML's results: whether the driver accepted the mode, and whether it is in force.
func (d *device) SetMIGMode(on bool) error {
	before, pendingBefore, err := d.MIGMode()
	if err != nil {
		return err
	}
	err = d.setMIGMode(on)
	if errors.Is(err, nvml.InUse) && before == pendingBefore && on != before {
		// NVML would leave the mode pending, and a later unrelated reset would apply it.
		if _, pending, asked := d.MIGMode(); asked == nil && pending != before {
			_ = d.setMIGMode(before)
		}
	}
	return err
}

func (d *device) setMIGMode(on bool) error {
	mode := gonvml.DEVICE_MIG_DISABLE
	if on {
		mode = gonvml.DEVICE_MIG_ENABLE
	}
	return d.session.query("nvmlDeviceSetMigMode", func() gonvml.Return {
		activation, ret := d.handle.SetMigMode(mode)
		if ret != gonvml.SUCCESS {
			return ret
		}
		return activation
	})
}

func (d *device) GPUInstanceProfiles() ([]nvml.GPUInstanceProfile, error) {
	if err := d.requireMIG(); err != nil {
		return nil, err
	}
	return each(func(index int) (nvml.GPUInstanceProfile, error) {
		p, err := get(d.session, "nvmlDeviceGetGpuInstanceProfileInfoV", d.handle.GetGpuInstanceProfileInfoV(index).V2)
		return nvml.GPUInstanceProfile{
			ID:              int(p.Id),
			Name:            profileName(p.Name[:]),
			Slices:          int(p.SliceCount),
			Instances:       int(p.InstanceCount),
			MemoryMiB:       p.MemorySizeMB,
			Multiprocessors: int(p.MultiprocessorCount),
			CopyEngines:     int(p.CopyEngineCount),
			Decoders:        int(p.DecoderCount),
			Encoders:        int(p.EncoderCount),
			JPEGEngines:     int(p.JpegCount),
			OFAEngines:      int(p.OfaCount),
		}, err
	})
}

func profileName(buffer []int8) string { return strings.TrimPrefix(text(buffer), "MIG ") }

func (d *device) GPUInstancePlacements(profileID int) ([]nvml.MIGPlacement, error) {
	const symbol = "nvmlDeviceGetGpuInstancePossiblePlacements_v2"
	if err := d.requireMIG(); err != nil {
		return nil, err
	}
	if profileID < 0 {
		return nil, &nvml.Error{Query: symbol, Code: nvml.InvalidArgument}
	}
	info := gonvml.GpuInstanceProfileInfo{Id: uint32(profileID)}
	found, err := list(d.session, symbol, with(d.handle.GetGpuInstancePossiblePlacements, &info))
	if err != nil {
		return nil, err
	}
	var out []nvml.MIGPlacement
	for _, p := range found {
		out = append(out, nvml.MIGPlacement{Start: int(p.Start), Size: int(p.Size)})
	}
	slices.SortFunc(out, func(a, b nvml.MIGPlacement) int { return cmp.Compare(a.Start, b.Start) })
	return out, nil
}

// GPUInstances queries each profile's instances: NVML cannot list all instances.
func (d *device) GPUInstances() ([]nvml.GPUInstance, error) {
	const symbol = "nvmlDeviceGetGpuInstances"
	if err := d.requireMIGOn(symbol); err != nil {
		return nil, err
	}
	profiles := d.profiles.Load()
	if profiles == nil {
		all, err := d.GPUInstanceProfiles()
		if err != nil {
			return nil, err
		}
		profiles = &all
		d.profiles.Store(profiles)
	}
	instances := func() (all []nvml.GPUInstance, err error) {
		for _, p := range *profiles {
			info := gonvml.GpuInstanceProfileInfo{Id: uint32(p.ID), InstanceCount: maxEntries}
			found, err := list(d.session, symbol, with(d.handle.GetGpuInstances, &info))
			if err != nil {
				return nil, err
			}
			for _, handle := range found {
				all = append(all, newGPUInstance(d.session, handle))
			}
		}
		return all, nil
	}
	return inOrder(instances, func(i nvml.GPUInstance) (int, error) { info, err := i.Info(); return info.ID, err })
}

func (d *device) GPUInstance(id int) (nvml.GPUInstance, error) {
	const symbol = "nvmlDeviceGetGpuInstanceById"
	if id < 0 {
		return nil, &nvml.Error{Query: symbol, Code: nvml.InvalidArgument}
	}
	handle, err := get(d.session, symbol, with(d.handle.GetGpuInstanceById, id))
	if err != nil {
		return nil, err
	}
	return newGPUInstance(d.session, handle), nil
}

func (d *device) CreateGPUInstance(profileID int, at nvml.MIGPlacement) (nvml.GPUInstance, error) {
	const symbol = "nvmlDeviceCreateGpuInstanceWithPlacement"
	if profileID < 0 || at.Start < 0 || at.Size < 0 {
		return nil, &nvml.Error{Query: symbol, Code: nvml.InvalidArgument}
	}
	info := gonvml.GpuInstanceProfileInfo{Id: uint32(profileID)}
	placement := gonvml.GpuInstancePlacement{Start: uint32(at.Start), Size: uint32(at.Size)}
	handle, err := get(d.session, symbol, func() (gonvml.GpuInstance, gonvml.Return) {
		return d.handle.CreateGpuInstanceWithPlacement(&info, &placement)
	})
	if err != nil {
		return nil, err
	}
	return newGPUInstance(d.session, handle), nil
}

func (d *device) MIGDevices() ([]nvml.MIGDevice, error) { return d.migDevices(anyInstance, maxEntries) }

func (d *device) MIGDevicesOf(gpuInstance, count int) ([]nvml.MIGDevice, error) {
	if gpuInstance < 0 {
		return nil, &nvml.Error{Query: migHandle, Code: nvml.InvalidArgument}
	}
	return d.migDevices(gpuInstance, count)
}

const (
	// anyInstance selects all GPU instances.
	anyInstance = -1
	migHandle   = "nvmlDeviceGetMigDeviceHandleByIndex"
)

// migDevices returns up to count devices of a GPU instance.
func (d *device) migDevices(gpuInstance, count int) ([]nvml.MIGDevice, error) {
	if err := d.requireMIGOn(migHandle); err != nil {
		return nil, err
	}
	all, err := get(d.session, "nvmlDeviceGetMaxMigDeviceCount", d.handle.GetMaxMigDeviceCount)
	if err != nil {
		return nil, err
	}
	var out []nvml.MIGDevice
	for index := 0; index < min(all, maxEntries) && len(out) < count; index++ {
		m, err := d.migDevice(index, gpuInstance)
		if nvml.Vanished(err) {
			continue // none at this index, or it vanished between two queries
		}
		if err != nil {
			return nil, err
		}
		if gpuInstance == anyInstance || m.GPUInstance == gpuInstance {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b nvml.MIGDevice) int {
		return cmp.Or(cmp.Compare(a.GPUInstance, b.GPUInstance), cmp.Compare(a.ComputeInstance, b.ComputeInstance))
	})
	return out, nil
}

// migDevice returns the device at an index. Of one of another GPU instance it has only that one's ID.
func (d *device) migDevice(index, gpuInstance int) (m nvml.MIGDevice, err error) {
	handle, err := get(d.session, migHandle, with(d.handle.GetMigDeviceHandleByIndex, index))
	if err != nil {
		return m, err
	}
	part := &device{session: d.session, handle: handle}
	if m.GPUInstance, err = get(part.session, "nvmlDeviceGetGpuInstanceId", handle.GetGpuInstanceId); err != nil {
		return m, err
	}
	if gpuInstance != anyInstance && m.GPUInstance != gpuInstance {
		return m, nil
	}
	if m.UUID, err = part.UUID(); err != nil {
		return m, err
	}
	m.ComputeInstance, err = get(part.session, "nvmlDeviceGetComputeInstanceId", handle.GetComputeInstanceId)
	return m, err
}

// part returns the MIG device with a UUID, which answers some queries of a GPU.
func (d *device) part(uuid string) (*device, error) {
	handle, err := get(d.session, "nvmlDeviceGetHandleByUUID", with(d.session.library.lib.DeviceGetHandleByUUID, uuid))
	if err != nil {
		return nil, err
	}
	return &device{session: d.session, handle: handle}, nil
}

func (d *device) MIGComputeMode(uuid string) (nvml.ComputeMode, error) {
	part, err := d.part(uuid)
	if err != nil {
		return 0, err
	}
	return part.ComputeMode()
}

func (d *device) SetMIGComputeMode(uuid string, m nvml.ComputeMode) error {
	part, err := d.part(uuid)
	if err != nil {
		return err
	}
	return part.SetComputeMode(m)
}

// gpuInstance is a handle. It is valid until its session is closed.
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
	instances := func() (all []nvml.ComputeInstance, err error) {
		for _, p := range profiles {
			info := gonvml.ComputeInstanceProfileInfo{Id: uint32(p.ID), InstanceCount: maxEntries}
			found, err := list(i, "nvmlGpuInstanceGetComputeInstances", with(i.handle.GetComputeInstances, &info))
			if err != nil {
				return nil, err
			}
			for _, handle := range found {
				all = append(all, i.newComputeInstance(handle))
			}
		}
		return all, nil
	}
	return inOrder(instances, func(c nvml.ComputeInstance) (int, error) { info, err := c.Info(); return info.ID, err })
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
