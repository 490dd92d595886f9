// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

// #include "abi.h"
import "C"

import (
	"unsafe"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/profiles"
)

// lastComputeProfile is the largest index of nvml.h; the only engine profile is 0, shared.
const lastComputeProfile = 8

func (f found) computeProfileByIndex(index, engines C.u32) (profiles.ComputeInstanceProfile, nvml.Code) {
	for _, c := range f.profile.ComputeInstances() {
		if C.u32(c.Index) == index && engines == 0 {
			return c, 0
		}
	}
	if index > lastComputeProfile || engines != 0 {
		return profiles.ComputeInstanceProfile{}, nvml.InvalidArgument
	}
	return profiles.ComputeInstanceProfile{}, nvml.NotSupported
}

func (f found) computeProfileByID(id C.u32) (profiles.ComputeInstanceProfile, nvml.Code) {
	for _, c := range f.profile.ComputeInstances() {
		if C.u32(c.ID) == id {
			return c, 0
		}
	}
	return profiles.ComputeInstanceProfile{}, nvml.InvalidArgument
}

//export nvmlGpuInstanceGetComputeInstanceProfileInfo
func nvmlGpuInstanceGetComputeInstanceProfileInfo(h C.handle, index, engines C.u32, to *C.computeProfile) C.u32 {
	return ofPart("nvmlGpuInstanceGetComputeInstanceProfileInfo", h, gpuInstance, to != nil, func(f found) nvml.Code {
		c, code := f.computeProfileByIndex(index, engines)
		if code != 0 {
			return code
		}
		e := f.profile.Engines
		*to = C.computeProfile{
			id: C.u32(c.ID), sliceCount: C.u32(c.Slices), instanceCount: C.u32(c.Instances), multiprocessorCount: C.u32(c.Multiprocessors),
			sharedCopyEngineCount: C.u32(e.Copy), sharedDecoderCount: C.u32(e.Decoder), sharedEncoderCount: C.u32(e.Encoder),
			sharedJpegCount: C.u32(e.JPEG), sharedOfaCount: C.u32(e.OFA),
		}
		return 0
	})
}

// The third version adds a word of capabilities to the second.

//export nvmlGpuInstanceGetComputeInstanceProfileInfoV
func nvmlGpuInstanceGetComputeInstanceProfileInfoV(h C.handle, index, engines C.u32, to *C.computeProfileV2) C.u32 {
	return ofPart("nvmlGpuInstanceGetComputeInstanceProfileInfoV", h, gpuInstance, to != nil, func(f found) nvml.Code {
		v3 := (*C.computeProfileV3)(unsafe.Pointer(to))
		third := versioned(to.version, unsafe.Sizeof(*v3), 3)
		if !third && !versioned(to.version, unsafe.Sizeof(*to), 2) {
			return argumentVersionMismatch
		}
		c, code := f.computeProfileByIndex(index, engines)
		if code != 0 {
			return code
		}
		e := f.profile.Engines
		*to = C.computeProfileV2{
			version: to.version, id: C.u32(c.ID), sliceCount: C.u32(c.Slices), instanceCount: C.u32(c.Instances),
			multiprocessorCount: C.u32(c.Multiprocessors), sharedCopyEngineCount: C.u32(e.Copy), sharedDecoderCount: C.u32(e.Decoder),
			sharedEncoderCount: C.u32(e.Encoder), sharedJpegCount: C.u32(e.JPEG), sharedOfaCount: C.u32(e.OFA),
		}
		putArray(to.name[:], "MIG "+c.Name)
		if third {
			v3.capabilities = 0
		}
		return 0
	})
}

//export nvmlGpuInstanceGetComputeInstanceRemainingCapacity
func nvmlGpuInstanceGetComputeInstanceRemainingCapacity(h C.handle, id C.u32, count *C.u32) C.u32 {
	return ofPart("nvmlGpuInstanceGetComputeInstanceRemainingCapacity", h, gpuInstance, count != nil, func(f found) nvml.Code {
		if _, code := f.computeProfileByID(id); code != 0 {
			return code
		}
		try, n := f.View.State.Clone(), 0
		for {
			if _, code := try.CreateCompute(&try.GPUs[f.slot], f.gi, int(id)); code != 0 {
				return put(count, n)
			}
			n++
		}
	})
}

//export nvmlGpuInstanceGetComputeInstancePossiblePlacements
func nvmlGpuInstanceGetComputeInstancePossiblePlacements(h C.handle, id C.u32, to *C.placement, count *C.u32) C.u32 {
	return ofPart("nvmlGpuInstanceGetComputeInstancePossiblePlacements", h, gpuInstance, count != nil, func(f found) nvml.Code {
		c, code := f.computeProfileByID(id)
		if code != 0 {
			return code
		}
		*count = C.u32(f.profile.Slices - c.Slices + 1)
		for start := 0; to != nil && start <= f.profile.Slices-c.Slices; start++ {
			unsafe.Slice(to, start+1)[start] = C.placement{start: C.u32(start), size: C.u32(c.Slices)}
		}
		return 0
	})
}

func createCompute(query string, h C.handle, id C.u32, ok bool, move func(*engine.Instance, *engine.Compute, int) nvml.Code, to *C.handle) C.u32 {
	return mutatePart(query, h, gpuInstance, ok && to != nil, func(f found, s *engine.State, g *engine.GPU) nvml.Code {
		c, code := s.CreateCompute(g, f.gi, int(id))
		if code != 0 {
			return code
		}
		i := g.Instance(f.gi)
		if code := move(i, i.Compute(c.ID), f.profile.Slices); code != 0 {
			_ = s.DestroyCompute(g, f.gi, c.ID)
			return code
		}
		*to = handleOfPart(computePart(computeInstance, f.slot, f.gi, &c))
		return 0
	})
}

//export nvmlGpuInstanceCreateComputeInstance
func nvmlGpuInstanceCreateComputeInstance(h C.handle, id C.u32, to *C.handle) C.u32 {
	return createCompute("nvmlGpuInstanceCreateComputeInstance", h, id, true,
		func(*engine.Instance, *engine.Compute, int) nvml.Code { return 0 }, to)
}

//export nvmlGpuInstanceCreateComputeInstanceWithPlacement
func nvmlGpuInstanceCreateComputeInstanceWithPlacement(h C.handle, id C.u32, at *C.placement, to *C.handle) C.u32 {
	return createCompute("nvmlGpuInstanceCreateComputeInstanceWithPlacement", h, id, at != nil,
		func(i *engine.Instance, c *engine.Compute, slices int) nvml.Code {
			start := int(at.start)
			if int(at.size) != c.Slices || start+c.Slices > slices {
				return nvml.InvalidArgument
			}
			for _, o := range i.Computes {
				if o.ID != c.ID && start < o.Start+o.Slices && o.Start < start+c.Slices {
					return nvml.InsufficientResources
				}
			}
			c.Start = start
			return 0
		}, to)
}

//export nvmlGpuInstanceGetComputeInstances
func nvmlGpuInstanceGetComputeInstances(h C.handle, id C.u32, to *C.handle, n *C.u32) C.u32 {
	return ofPart("nvmlGpuInstanceGetComputeInstances", h, gpuInstance, to != nil && n != nil, func(f found) nvml.Code {
		if _, code := f.computeProfileByID(id); code != 0 {
			return code
		}
		*n = 0
		for k := range f.instance.Computes {
			if c := &f.instance.Computes[k]; c.ProfileID == int(id) {
				unsafe.Slice(to, *n+1)[*n] = handleOfPart(computePart(computeInstance, f.slot, f.gi, c))
				*n++
			}
		}
		return 0
	})
}

//export nvmlGpuInstanceGetComputeInstanceById
func nvmlGpuInstanceGetComputeInstanceById(h C.handle, id C.u32, to *C.handle) C.u32 {
	return ofPart("nvmlGpuInstanceGetComputeInstanceById", h, gpuInstance, to != nil, func(f found) nvml.Code {
		c := f.instance.Compute(int(id))
		if c == nil {
			return nvml.NotFound
		}
		*to = handleOfPart(computePart(computeInstance, f.slot, f.gi, c))
		return 0
	})
}

//export nvmlComputeInstanceGetInfo
func nvmlComputeInstanceGetInfo(h C.handle, to *C.computeInstanceInfo) C.u32 {
	return ofPart("nvmlComputeInstanceGetInfo", h, computeInstance, to != nil, func(f found) nvml.Code {
		*to = C.computeInstanceInfo{device: handleOf(f.slot), gpuInstance: handleOfPart(gpuInstancePart(f.slot, f.instance)),
			id: C.u32(f.compute.ID), profileId: C.u32(f.compute.ProfileID)}
		return 0
	})
}

//export nvmlComputeInstanceGetInfo_v2
func nvmlComputeInstanceGetInfo_v2(h C.handle, to *C.computeInstanceInfoV2) C.u32 {
	return ofPart("nvmlComputeInstanceGetInfo_v2", h, computeInstance, to != nil, func(f found) nvml.Code {
		c := f.compute
		*to = C.computeInstanceInfoV2{device: handleOf(f.slot), gpuInstance: handleOfPart(gpuInstancePart(f.slot, f.instance)),
			id: C.u32(c.ID), profileId: C.u32(c.ProfileID), at: C.placement{start: C.u32(c.Start), size: C.u32(c.Slices)}}
		return 0
	})
}

//export nvmlComputeInstanceDestroy
func nvmlComputeInstanceDestroy(h C.handle) C.u32 {
	return mutatePart("nvmlComputeInstanceDestroy", h, computeInstance, true, func(f found, s *engine.State, g *engine.GPU) nvml.Code {
		code := s.DestroyCompute(g, f.gi, f.ci)
		if code == 0 {
			forget(f.part)
			forget(computePart(migDevice, f.slot, f.gi, f.compute))
		}
		return code
	})
}
