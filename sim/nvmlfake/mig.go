// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nvmlfake

import (
	"slices"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/profiles"
)

func (d *device) mutate(query string, change func(*engine.State, *engine.GPU) nvml.Code) error {
	inner, code := d.session.open()
	if code != 0 {
		return failed(query, code)
	}
	return failed(query, inner.Mutate(query, d.slot, change))
}

// cut runs a query of a GPU whose MIG mode is on.
func cut[T any](d *device, query string, answer func(engine.View) (T, nvml.Code)) (T, error) {
	return ask(d, query, func(v engine.View) (T, nvml.Code) {
		if !v.MIGEnabled {
			var none T
			return none, nvml.NotSupported
		}
		return answer(v)
	})
}

func (d *device) SetMIGMode(on bool) error {
	return d.mutate("nvmlDeviceSetMigMode", func(s *engine.State, g *engine.GPU) nvml.Code {
		settled := g.MIGEnabled == g.MIGPending
		code := s.SetMIGMode(g, on)
		if code == nvml.InUse && settled {
			g.MIGPending = g.MIGEnabled // the real binding reverts a mode that a later reset would apply
		}
		return code
	})
}

func (d *device) GPUInstanceProfiles() ([]nvml.GPUInstanceProfile, error) {
	return ask(d, "nvmlDeviceGetGpuInstanceProfileInfoV", func(v engine.View) ([]nvml.GPUInstanceProfile, nvml.Code) {
		if v.Board.MIG == nil {
			return nil, nvml.NotSupported
		}
		var out []nvml.GPUInstanceProfile
		for _, p := range v.Board.MIG.GPUInstances {
			out = append(out, nvml.GPUInstanceProfile{
				ID: p.ID, Name: p.Name, Slices: p.Slices, Instances: p.Instances, MemoryMiB: p.MemoryMiB,
				Multiprocessors: p.Multiprocessors, CopyEngines: p.Engines.Copy, Decoders: p.Engines.Decoder,
				Encoders: p.Engines.Encoder, JPEGEngines: p.Engines.JPEG, OFAEngines: p.Engines.OFA,
			})
		}
		return out, 0
	})
}

func (d *device) GPUInstancePlacements(profileID int) ([]nvml.MIGPlacement, error) {
	return ask(d, "nvmlDeviceGetGpuInstancePossiblePlacements_v2", func(v engine.View) ([]nvml.MIGPlacement, nvml.Code) {
		if v.Board.MIG == nil {
			return nil, nvml.NotSupported
		}
		p, ok := v.Board.MIG.Profile(profileID)
		if !ok {
			return nil, nvml.InvalidArgument
		}
		var out []nvml.MIGPlacement
		for _, start := range p.Starts {
			out = append(out, nvml.MIGPlacement{Start: start, Size: p.Size})
		}
		return out, 0
	})
}

func (d *device) GPUInstances() ([]nvml.GPUInstance, error) {
	return cut(d, "nvmlDeviceGetGpuInstances", func(v engine.View) ([]nvml.GPUInstance, nvml.Code) {
		var out []nvml.GPUInstance
		for _, i := range v.Instances {
			out = append(out, gpuInstance{d, i.ID})
		}
		return out, 0
	})
}

func (d *device) GPUInstance(id int) (nvml.GPUInstance, error) {
	return cut(d, "nvmlDeviceGetGpuInstanceById", func(v engine.View) (nvml.GPUInstance, nvml.Code) {
		if v.Instance(id) == nil {
			return nil, nvml.NotFound
		}
		return gpuInstance{d, id}, 0
	})
}

func (d *device) CreateGPUInstance(profileID int, at nvml.MIGPlacement) (nvml.GPUInstance, error) {
	var made engine.Instance
	err := d.mutate("nvmlDeviceCreateGpuInstanceWithPlacement", func(s *engine.State, g *engine.GPU) (code nvml.Code) {
		if p, ok := s.Profile.Board.MIG.Profile(profileID); at.Start < 0 || ok && p.Size != at.Size {
			return nvml.InvalidArgument
		}
		made, code = s.CreateInstance(g, profileID, at.Start)
		return code
	})
	if err != nil {
		return nil, err
	}
	return gpuInstance{d, made.ID}, nil
}

func (d *device) MIGDevices() ([]nvml.MIGDevice, error) {
	return d.migDevices(func(nvml.MIGDevice) bool { return true })
}

func (d *device) MIGDevicesOf(gpuInstance, count int) ([]nvml.MIGDevice, error) {
	return d.migDevices(func(m nvml.MIGDevice) bool {
		if m.GPUInstance == gpuInstance {
			count--
		}
		return m.GPUInstance == gpuInstance && count >= 0
	})
}

func (d *device) migDevices(wanted func(nvml.MIGDevice) bool) ([]nvml.MIGDevice, error) {
	for _, query := range []string{"nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId"} {
		if _, err := cut(d, query, func(engine.View) (bool, nvml.Code) { return true, 0 }); err != nil {
			return nil, err
		}
	}
	inner, code := d.session.open()
	if code != 0 {
		return nil, failed("nvmlDeviceGetMigDeviceHandleByIndex", code)
	}
	return cut(d, "nvmlDeviceGetMigDeviceHandleByIndex", func(v engine.View) ([]nvml.MIGDevice, nvml.Code) {
		var out []nvml.MIGDevice
		for _, h := range inner.Handles(v) {
			if m := (nvml.MIGDevice{UUID: h.UUID, GPUInstance: h.GPUInstance, ComputeInstance: h.ComputeInstance}); wanted(m) {
				out = append(out, m)
			}
		}
		return out, 0
	})
}

func (d *device) findPart(uuid string) error {
	_, err := ask(d, "nvmlDeviceGetHandleByUUID", func(v engine.View) (bool, nvml.Code) {
		if v.Part(uuid) == nil {
			return false, nvml.NotFound
		}
		return true, 0
	})
	return err
}

func (d *device) MIGComputeMode(uuid string) (nvml.ComputeMode, error) {
	if err := d.findPart(uuid); err != nil {
		return 0, err
	}
	return ask(d, "nvmlDeviceGetComputeMode", func(v engine.View) (nvml.ComputeMode, nvml.Code) {
		if c := v.Part(uuid); c != nil {
			return v.PartMode(c)
		}
		return 0, nvml.InvalidArgument
	})
}

func (d *device) SetMIGComputeMode(uuid string, m nvml.ComputeMode) error {
	if err := d.findPart(uuid); err != nil {
		return err
	}
	return d.mutate("nvmlDeviceSetComputeMode", func(s *engine.State, g *engine.GPU) nvml.Code {
		if c := g.Part(uuid); c != nil {
			return s.SetPartMode(c, m)
		}
		return nvml.InvalidArgument
	})
}

// gpuInstance is a GPU instance by its ID.
type gpuInstance struct {
	device *device
	id     int
}

// inside runs a query of an existing GPU instance.
func inside[T any](i gpuInstance, query string, answer func(engine.View, *engine.Instance) (T, nvml.Code)) (T, error) {
	return cut(i.device, query, func(v engine.View) (T, nvml.Code) {
		found := v.Instance(i.id)
		if found == nil {
			var none T
			return none, nvml.NotFound
		}
		return answer(v, found)
	})
}

func (i gpuInstance) Info() (nvml.GPUInstanceInfo, error) {
	return inside(i, "nvmlGpuInstanceGetInfo", func(_ engine.View, found *engine.Instance) (nvml.GPUInstanceInfo, nvml.Code) {
		return nvml.GPUInstanceInfo{
			ID: found.ID, ProfileID: found.ProfileID, Placement: nvml.MIGPlacement{Start: found.Start, Size: found.Size},
		}, 0
	})
}

func (i gpuInstance) ComputeInstanceProfiles() ([]nvml.ComputeInstanceProfile, error) {
	const query = "nvmlGpuInstanceGetComputeInstanceProfileInfoV"
	return inside(i, query, func(v engine.View, found *engine.Instance) ([]nvml.ComputeInstanceProfile, nvml.Code) {
		p, _ := v.Board.MIG.Profile(found.ProfileID)
		var out []nvml.ComputeInstanceProfile
		for _, c := range sorted(p.ComputeInstances()) {
			out = append(out, nvml.ComputeInstanceProfile{
				ID: c.ID, Name: c.Name, Slices: c.Slices, Instances: c.Instances, Multiprocessors: c.Multiprocessors,
			})
		}
		return out, 0
	})
}

func sorted(all []profiles.ComputeInstanceProfile) []profiles.ComputeInstanceProfile {
	slices.SortFunc(all, func(a, b profiles.ComputeInstanceProfile) int { return a.Index - b.Index })
	return all
}

func (i gpuInstance) ComputeInstances() ([]nvml.ComputeInstance, error) {
	return inside(i, "nvmlGpuInstanceGetComputeInstances", func(_ engine.View, found *engine.Instance) ([]nvml.ComputeInstance, nvml.Code) {
		var out []nvml.ComputeInstance
		for _, c := range found.Computes {
			out = append(out, computeInstance{i, c.ID})
		}
		return out, 0
	})
}

func (i gpuInstance) CreateComputeInstance(profileID int) (nvml.ComputeInstance, error) {
	var made engine.Compute
	err := i.device.mutate("nvmlGpuInstanceCreateComputeInstance", func(s *engine.State, g *engine.GPU) (code nvml.Code) {
		made, code = s.CreateCompute(g, i.id, profileID)
		return code
	})
	if err != nil {
		return nil, err
	}
	return computeInstance{i, made.ID}, nil
}

func (i gpuInstance) Destroy() error {
	return i.device.mutate("nvmlGpuInstanceDestroy", func(s *engine.State, g *engine.GPU) nvml.Code {
		return s.DestroyInstance(g, i.id)
	})
}

// computeInstance is a compute instance by its ID.
type computeInstance struct {
	in gpuInstance
	id int
}

func (c computeInstance) Info() (nvml.ComputeInstanceInfo, error) {
	return inside(c.in, "nvmlComputeInstanceGetInfo_v2", func(_ engine.View, found *engine.Instance) (nvml.ComputeInstanceInfo, nvml.Code) {
		compute := found.Compute(c.id)
		if compute == nil {
			return nvml.ComputeInstanceInfo{}, nvml.NotFound
		}
		return nvml.ComputeInstanceInfo{ID: compute.ID, ProfileID: compute.ProfileID}, 0
	})
}

func (c computeInstance) Destroy() error {
	return c.in.device.mutate("nvmlComputeInstanceDestroy", func(s *engine.State, g *engine.GPU) nvml.Code {
		return s.DestroyCompute(g, c.in.id, c.id)
	})
}
