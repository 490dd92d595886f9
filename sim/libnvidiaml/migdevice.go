// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

// #include "abi.h"
import "C"

import (
	"strings"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/engine"
)

// A MIG device represents a compute instance. It has a handle like a GPU's, which some of the GPU queries accept.

// either runs a query that accepts the handle of a GPU or of a MIG device.
func either(query string, dev C.handle, ok bool, whole func(engine.View) nvml.Code, partition func(found) nvml.Code) C.u32 {
	if _, is := partOf(dev, migDevice); is {
		return ofPart(query, dev, migDevice, ok, partition)
	}
	return device(query, dev, ok, whole)
}

// migUUID finds the MIG device with a UUID on a GPU.
func migUUID(slot int, g *engine.GPU, uuid string) (part, bool) {
	for i := range g.Instances {
		for c := range g.Instances[i].Computes {
			if g.Instances[i].Computes[c].UUID == uuid {
				return computePart(migDevice, slot, g.Instances[i].ID, &g.Instances[i].Computes[c]), true
			}
		}
	}
	return part{}, false
}

// byUUID finds a GPU or a MIG device.
func byUUID(query string, ok bool, uuid func() string, dev *C.handle) C.u32 {
	if !ok || !strings.HasPrefix(uuid(), "MIG-") {
		return find(query, ok, dev, func(g *engine.GPU) bool { return g.UUID == uuid() })
	}
	var at part
	code := find(query, ok, dev, func(g *engine.GPU) (there bool) {
		at, there = migUUID(0, g, uuid())
		return there
	})
	if code == 0 {
		at.slot, _ = slotOf(*dev)
		*dev = handleOfPart(at)
	}
	return code
}

//export nvmlDeviceSetMigMode
func nvmlDeviceSetMigMode(dev C.handle, mode C.u32, activation *C.u32) C.u32 {
	return mutate("nvmlDeviceSetMigMode", dev, activation != nil && mode <= 1, func(_ int, s *engine.State, g *engine.GPU) nvml.Code {
		status := s.SetMIGMode(g, mode == 1)
		if status == nvml.NotSupported {
			return status
		}
		*activation = C.u32(status)
		return 0
	})
}

//export nvmlDeviceGetMigMode
func nvmlDeviceGetMigMode(dev C.handle, mode, pending *C.u32) C.u32 {
	return device("nvmlDeviceGetMigMode", dev, mode != nil && pending != nil, func(v engine.View) nvml.Code {
		if !v.Board.MIGCapable {
			return nvml.NotSupported
		}
		*mode, *pending = C.u32(flag(v.MIGEnabled)), C.u32(flag(v.MIGPending))
		return 0
	})
}

//export nvmlDeviceGetMaxMigDeviceCount
func nvmlDeviceGetMaxMigDeviceCount(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetMaxMigDeviceCount", dev, to, func(v engine.View) int {
		if !v.MIGEnabled {
			return 0
		}
		return v.Board.MaxMIGDevices
	})
}

//export nvmlDeviceGetMigDeviceHandleByIndex
func nvmlDeviceGetMigDeviceHandleByIndex(dev C.handle, index C.u32, to *C.handle) C.u32 {
	return device("nvmlDeviceGetMigDeviceHandleByIndex", dev, to != nil, func(v engine.View) nvml.Code {
		if !v.Board.MIGCapable {
			return nvml.NotSupported
		}
		s := current()
		if s == nil {
			return nvml.Uninitialized
		}
		all := s.Handles(v)
		if !v.MIGEnabled || uint32(index) >= uint32(len(all)) {
			return nvml.NotFound
		}
		h := all[index]
		*to = handleOfPart(part{kind: migDevice, slot: v.Slot, gi: h.GPUInstance, ci: h.ComputeInstance, mark: h.UUID})
		return 0
	})
}

//export nvmlDeviceIsMigDeviceHandle
func nvmlDeviceIsMigDeviceHandle(dev C.handle, to *C.u32) C.u32 {
	return either("nvmlDeviceIsMigDeviceHandle", dev, to != nil,
		func(engine.View) nvml.Code { return put(to, 0) }, func(found) nvml.Code { return put(to, 1) })
}

// ofMIG runs a query that only a MIG device supports.
func ofMIG(query string, dev C.handle, ok bool, answer func(found) nvml.Code) C.u32 {
	return either(query, dev, ok, func(engine.View) nvml.Code { return nvml.InvalidArgument }, answer)
}

//export nvmlDeviceGetGpuInstanceId
func nvmlDeviceGetGpuInstanceId(dev C.handle, to *C.u32) C.u32 {
	return ofMIG("nvmlDeviceGetGpuInstanceId", dev, to != nil, func(f found) nvml.Code { return put(to, f.gi) })
}

//export nvmlDeviceGetComputeInstanceId
func nvmlDeviceGetComputeInstanceId(dev C.handle, to *C.u32) C.u32 {
	return ofMIG("nvmlDeviceGetComputeInstanceId", dev, to != nil, func(f found) nvml.Code { return put(to, f.ci) })
}

//export nvmlDeviceGetDeviceHandleFromMigDeviceHandle
func nvmlDeviceGetDeviceHandleFromMigDeviceHandle(dev C.handle, to *C.handle) C.u32 {
	return ofMIG("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", dev, to != nil, func(f found) nvml.Code {
		*to = handleOf(f.slot)
		return 0
	})
}

func attributes(query string, dev C.handle, a *C.deviceAttributes) C.u32 {
	whole := func(engine.View) nvml.Code { return nvml.NotSupported }
	return either(query, dev, a != nil, whole, func(f found) nvml.Code {
		e := f.profile.Engines
		*a = C.deviceAttributes{
			multiprocessors: C.u32(f.computeProfile.Multiprocessors), copyEngines: C.u32(e.Copy), decoders: C.u32(e.Decoder),
			encoders: C.u32(e.Encoder), jpegEngines: C.u32(e.JPEG), ofaEngines: C.u32(e.OFA), gpuInstanceSlices: C.u32(f.profile.Slices),
			computeInstanceSlices: C.u32(f.compute.Slices), memoryMB: C.u64(f.profile.MemoryMiB),
		}
		return 0
	})
}

//export nvmlDeviceGetAttributes
func nvmlDeviceGetAttributes(dev C.handle, a *C.deviceAttributes) C.u32 {
	return attributes("nvmlDeviceGetAttributes", dev, a)
}

//export nvmlDeviceGetAttributes_v2
func nvmlDeviceGetAttributes_v2(dev C.handle, a *C.deviceAttributes) C.u32 {
	return attributes("nvmlDeviceGetAttributes_v2", dev, a)
}

// memory returns the GPU instance's memory, which its compute instances share.
func (f found) memory() nvml.MemoryInfo {
	return f.View.InstanceMemory(f.instance)
}

// index returns the MIG device's index on its GPU.
func (f found) index() int {
	n := 0
	for _, i := range f.Instances {
		for _, c := range i.Computes {
			if i.ID == f.gi && c.ID == f.ci {
				return n
			}
			n++
		}
	}
	return n
}

// name returns the names of the GPU and of the instance: "NVIDIA H100 80GB HBM3 MIG 1g.10gb".
func (f found) name() string { return f.Board.ProductName + " MIG " + f.computeProfile.Name }
