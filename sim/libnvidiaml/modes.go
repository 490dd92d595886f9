// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

// #include "abi.h"
import "C"

import (
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/engine"
)

//export nvmlDeviceGetPersistenceMode
func nvmlDeviceGetPersistenceMode(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetPersistenceMode", dev, to, func(v engine.View) int { return flag(v.Persistence) })
}

//export nvmlDeviceGetComputeMode
func nvmlDeviceGetComputeMode(dev C.handle, to *C.u32) C.u32 {
	return either("nvmlDeviceGetComputeMode", dev, to != nil, func(v engine.View) nvml.Code { return put(to, v.ComputeMode) },
		func(f found) nvml.Code {
			mode, code := f.View.PartMode(f.compute)
			if code != 0 {
				return code
			}
			return put(to, int(mode))
		})
}

//export nvmlDeviceSetComputeMode
func nvmlDeviceSetComputeMode(dev C.handle, mode C.u32) C.u32 {
	if _, is := partOf(dev, migDevice); is {
		return mutatePart("nvmlDeviceSetComputeMode", dev, migDevice, true, func(f found, s *engine.State, _ *engine.GPU) nvml.Code {
			return s.SetPartMode(f.compute, nvml.ComputeMode(mode))
		})
	}
	return mutate("nvmlDeviceSetComputeMode", dev, true, func(_ int, _ *engine.State, g *engine.GPU) nvml.Code {
		return g.SetComputeMode(nvml.ComputeMode(mode))
	})
}

//export nvmlDeviceGetEccMode
func nvmlDeviceGetEccMode(dev C.handle, mode, pending *C.u32) C.u32 {
	answer := func(v engine.View) nvml.Code {
		if !v.Board.ECC {
			return nvml.NotSupported
		}
		*mode, *pending = 1, 1
		return 0
	}
	return either("nvmlDeviceGetEccMode", dev, mode != nil && pending != nil, answer, func(f found) nvml.Code { return answer(f.View) })
}

//export nvmlDeviceGetDefaultEccMode
func nvmlDeviceGetDefaultEccMode(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetDefaultEccMode", dev, to, func(v engine.View) int { return flag(v.Board.ECC) })
}

// nvmlDeviceGetDisplayMode is deprecated: a board without outputs returns 1 too.
//
//export nvmlDeviceGetDisplayMode
func nvmlDeviceGetDisplayMode(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetDisplayMode", dev, to, func(engine.View) int { return 1 })
}

//export nvmlDeviceGetDisplayActive
func nvmlDeviceGetDisplayActive(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetDisplayActive", dev, to, func(engine.View) int { return 0 })
}

//export nvmlDeviceGetAccountingMode
func nvmlDeviceGetAccountingMode(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetAccountingMode", dev, to, func(engine.View) int { return 0 })
}

//export nvmlDeviceGetVirtualizationMode
func nvmlDeviceGetVirtualizationMode(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetVirtualizationMode", dev, to, func(v engine.View) int { return int(v.Virtualization) })
}

//export nvmlDeviceGetGspFirmwareMode
func nvmlDeviceGetGspFirmwareMode(dev C.handle, enabled, byDefault *C.u32) C.u32 {
	return device("nvmlDeviceGetGspFirmwareMode", dev, enabled != nil && byDefault != nil, func(engine.View) nvml.Code {
		*enabled, *byDefault = 1, 1
		return 0
	})
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}
