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

// lastGPUProfile is the largest index of nvml.h: above it a query returns INVALID_ARGUMENT, which ends an
// enumeration.
const lastGPUProfile = 17

// listsInstances reports whether queries of GPU instances answer in any MIG mode. NVML's field for that is
// IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE, which an H200 has. The simulator's older boards refuse them with the mode off.
func listsInstances(v engine.View) bool {
	const hopper = 9
	return v.MIGEnabled || v.Board.MIGCapable && v.Board.Architecture >= hopper
}

func gpuProfileByIndex(v engine.View, index C.u32) (profiles.GPUInstanceProfile, nvml.Code) {
	if !v.Board.MIGCapable {
		return profiles.GPUInstanceProfile{}, nvml.NotSupported
	}
	for _, p := range v.Board.MIG.GPUInstances {
		if C.u32(p.Index) == index {
			return p, 0
		}
	}
	if index > lastGPUProfile {
		return profiles.GPUInstanceProfile{}, nvml.InvalidArgument
	}
	return profiles.GPUInstanceProfile{}, nvml.NotSupported
}

func gpuProfileByID(v engine.View, id C.u32) (profiles.GPUInstanceProfile, nvml.Code) {
	if !v.Board.MIGCapable {
		return profiles.GPUInstanceProfile{}, nvml.NotSupported
	}
	if p, ok := v.Board.MIG.Profile(int(id)); ok {
		return p, 0
	}
	return profiles.GPUInstanceProfile{}, nvml.InvalidArgument
}

//export nvmlDeviceGetGpuInstanceProfileInfo
func nvmlDeviceGetGpuInstanceProfileInfo(dev C.handle, index C.u32, to *C.gpuProfile) C.u32 {
	return device("nvmlDeviceGetGpuInstanceProfileInfo", dev, to != nil, func(v engine.View) nvml.Code {
		p, code := gpuProfileByIndex(v, index)
		if code != 0 {
			return code
		}
		*to = C.gpuProfile{
			id: C.u32(p.ID), sliceCount: C.u32(p.Slices), instanceCount: C.u32(p.Instances), multiprocessorCount: C.u32(p.Multiprocessors),
			copyEngineCount: C.u32(p.Engines.Copy), decoderCount: C.u32(p.Engines.Decoder), encoderCount: C.u32(p.Engines.Encoder),
			jpegCount: C.u32(p.Engines.JPEG), ofaCount: C.u32(p.Engines.OFA), memorySizeMB: C.u64(p.MemoryMiB),
		}
		return 0
	})
}

func gpuProfileV(query string, dev C.handle, to *C.gpuProfileV2, find func(engine.View) (profiles.GPUInstanceProfile, nvml.Code)) C.u32 {
	return device(query, dev, to != nil, func(v engine.View) nvml.Code {
		v3 := (*C.gpuProfileV3)(unsafe.Pointer(to))
		second, third := versioned(to.version, unsafe.Sizeof(*to), 2), versioned(to.version, unsafe.Sizeof(*v3), 3)
		if !second && !third {
			return argumentVersionMismatch
		}
		p, code := find(v)
		if code != 0 {
			return code
		}
		e := p.Engines
		if second {
			*to = C.gpuProfileV2{
				version: to.version, id: C.u32(p.ID), sliceCount: C.u32(p.Slices), instanceCount: C.u32(p.Instances),
				multiprocessorCount: C.u32(p.Multiprocessors), copyEngineCount: C.u32(e.Copy), decoderCount: C.u32(e.Decoder),
				encoderCount: C.u32(e.Encoder), jpegCount: C.u32(e.JPEG), ofaCount: C.u32(e.OFA), memorySizeMB: C.u64(p.MemoryMiB),
			}
			putArray(to.name[:], "MIG "+p.Name)
			return 0
		}
		*v3 = C.gpuProfileV3{
			version: to.version, id: C.u32(p.ID), sliceCount: C.u32(p.Slices), instanceCount: C.u32(p.Instances),
			multiprocessorCount: C.u32(p.Multiprocessors), copyEngineCount: C.u32(e.Copy), decoderCount: C.u32(e.Decoder),
			encoderCount: C.u32(e.Encoder), jpegCount: C.u32(e.JPEG), ofaCount: C.u32(e.OFA), memorySizeMB: C.u64(p.MemoryMiB),
		}
		putArray(v3.name[:], "MIG "+p.Name)
		return 0
	})
}

//export nvmlDeviceGetGpuInstanceProfileInfoV
func nvmlDeviceGetGpuInstanceProfileInfoV(dev C.handle, index C.u32, to *C.gpuProfileV2) C.u32 {
	return gpuProfileV("nvmlDeviceGetGpuInstanceProfileInfoV", dev, to, func(v engine.View) (profiles.GPUInstanceProfile, nvml.Code) {
		return gpuProfileByIndex(v, index)
	})
}

//export nvmlDeviceGetGpuInstanceProfileInfoByIdV
func nvmlDeviceGetGpuInstanceProfileInfoByIdV(dev C.handle, id C.u32, to *C.gpuProfileV2) C.u32 {
	return gpuProfileV("nvmlDeviceGetGpuInstanceProfileInfoByIdV", dev, to, func(v engine.View) (profiles.GPUInstanceProfile, nvml.Code) {
		return gpuProfileByID(v, id)
	})
}

func gpuPlacements(query string, dev C.handle, id C.u32, to *C.placement, count *C.u32) C.u32 {
	return device(query, dev, count != nil, func(v engine.View) nvml.Code {
		p, code := gpuProfileByID(v, id)
		if code != 0 {
			return code
		}
		*count = C.u32(len(p.Starts))
		if to == nil {
			return 0
		}
		for i, start := range p.Starts {
			unsafe.Slice(to, i+1)[i] = C.placement{start: C.u32(start), size: C.u32(p.Size)}
		}
		return 0
	})
}

//export nvmlDeviceGetGpuInstancePossiblePlacements
func nvmlDeviceGetGpuInstancePossiblePlacements(dev C.handle, id C.u32, to *C.placement, count *C.u32) C.u32 {
	return gpuPlacements("nvmlDeviceGetGpuInstancePossiblePlacements", dev, id, to, count)
}

//export nvmlDeviceGetGpuInstancePossiblePlacements_v2
func nvmlDeviceGetGpuInstancePossiblePlacements_v2(dev C.handle, id C.u32, to *C.placement, count *C.u32) C.u32 {
	return gpuPlacements("nvmlDeviceGetGpuInstancePossiblePlacements_v2", dev, id, to, count)
}

//export nvmlDeviceGetGpuInstanceRemainingCapacity
func nvmlDeviceGetGpuInstanceRemainingCapacity(dev C.handle, id C.u32, count *C.u32) C.u32 {
	return device("nvmlDeviceGetGpuInstanceRemainingCapacity", dev, count != nil, func(v engine.View) nvml.Code {
		if !listsInstances(v) {
			return nvml.NotSupported
		}
		n, code := v.RemainingInstances(v.GPU, int(id))
		if code != 0 {
			return code
		}
		return put(count, n)
	})
}

func createGPUInstance(query string, dev C.handle, id C.u32, ok bool, place func(profiles.GPUInstanceProfile) (int, bool), to *C.handle) C.u32 {
	return mutate(query, dev, ok && to != nil, func(slot int, s *engine.State, g *engine.GPU) nvml.Code {
		p, known := s.Profile.Board.MIG.Profile(int(id))
		start, possible := place(p)
		if g.MIGEnabled && (!known || !possible) {
			return nvml.InvalidArgument
		}
		i, code := s.CreateInstance(g, int(id), start)
		if code != 0 {
			return code
		}
		*to = handleOfPart(gpuInstancePart(slot, &i))
		return 0
	})
}

//export nvmlDeviceCreateGpuInstance
func nvmlDeviceCreateGpuInstance(dev C.handle, id C.u32, to *C.handle) C.u32 {
	return createGPUInstance("nvmlDeviceCreateGpuInstance", dev, id, true,
		func(profiles.GPUInstanceProfile) (int, bool) { return engine.AnyStart, true }, to)
}

//export nvmlDeviceCreateGpuInstanceWithPlacement
func nvmlDeviceCreateGpuInstanceWithPlacement(dev C.handle, id C.u32, at *C.placement, to *C.handle) C.u32 {
	return createGPUInstance("nvmlDeviceCreateGpuInstanceWithPlacement", dev, id, at != nil,
		func(p profiles.GPUInstanceProfile) (int, bool) { return int(at.start), int(at.size) == p.Size }, to)
}

//export nvmlDeviceGetGpuInstances
func nvmlDeviceGetGpuInstances(dev C.handle, id C.u32, to *C.handle, n *C.u32) C.u32 {
	return device("nvmlDeviceGetGpuInstances", dev, to != nil && n != nil, func(v engine.View) nvml.Code {
		if _, code := gpuProfileByID(v, id); code != 0 {
			return code
		}
		if !listsInstances(v) {
			return nvml.NotSupported
		}
		*n = 0
		for k := range v.Instances {
			if i := &v.Instances[k]; i.ProfileID == int(id) {
				unsafe.Slice(to, *n+1)[*n] = handleOfPart(gpuInstancePart(v.Slot, i))
				*n++
			}
		}
		return 0
	})
}

//export nvmlDeviceGetGpuInstanceById
func nvmlDeviceGetGpuInstanceById(dev C.handle, id C.u32, to *C.handle) C.u32 {
	return device("nvmlDeviceGetGpuInstanceById", dev, to != nil, func(v engine.View) nvml.Code {
		if !listsInstances(v) {
			return nvml.NotSupported
		}
		i := v.Instance(int(id))
		if i == nil {
			return nvml.NotFound
		}
		*to = handleOfPart(gpuInstancePart(v.Slot, i))
		return 0
	})
}

//export nvmlGpuInstanceGetInfo
func nvmlGpuInstanceGetInfo(h C.handle, to *C.gpuInstanceInfo) C.u32 {
	return ofPart("nvmlGpuInstanceGetInfo", h, gpuInstance, to != nil, func(f found) nvml.Code {
		i := f.instance
		*to = C.gpuInstanceInfo{device: handleOf(f.slot), id: C.u32(i.ID), profileId: C.u32(i.ProfileID),
			at: C.placement{start: C.u32(i.Start), size: C.u32(i.Size)}}
		return 0
	})
}

//export nvmlGpuInstanceDestroy
func nvmlGpuInstanceDestroy(h C.handle) C.u32 {
	return mutatePart("nvmlGpuInstanceDestroy", h, gpuInstance, true, func(f found, s *engine.State, g *engine.GPU) nvml.Code {
		code := s.DestroyInstance(g, f.gi)
		if code == 0 {
			forget(f.part)
		}
		return code
	})
}
