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

func text(query string, dev C.handle, to *C.char, length C.u32, value func(engine.View) string) C.u32 {
	return device(query, dev, to != nil, func(v engine.View) nvml.Code {
		s := value(v)
		if s == "" {
			return nvml.NotSupported
		}
		return putString(to, length, s)
	})
}

// number returns NotSupported for a negative value.
func number(query string, dev C.handle, to *C.u32, value func(engine.View) int) C.u32 {
	return device(query, dev, to != nil, func(v engine.View) nvml.Code {
		n := value(v)
		if n < 0 {
			return nvml.NotSupported
		}
		return put(to, n)
	})
}

//export nvmlDeviceGetName
func nvmlDeviceGetName(dev C.handle, to *C.char, length C.u32) C.u32 {
	return either("nvmlDeviceGetName", dev, to != nil,
		func(v engine.View) nvml.Code { return putString(to, length, v.Board.ProductName) },
		func(f found) nvml.Code { return putString(to, length, f.name()) })
}

//export nvmlDeviceGetUUID
func nvmlDeviceGetUUID(dev C.handle, to *C.char, length C.u32) C.u32 {
	return either("nvmlDeviceGetUUID", dev, to != nil,
		func(v engine.View) nvml.Code { return putString(to, length, v.UUID) },
		func(f found) nvml.Code { return putString(to, length, f.compute.UUID) })
}

//export nvmlDeviceGetSerial
func nvmlDeviceGetSerial(dev C.handle, to *C.char, length C.u32) C.u32 {
	return text("nvmlDeviceGetSerial", dev, to, length, func(v engine.View) string { return v.Serial })
}

//export nvmlDeviceGetVbiosVersion
func nvmlDeviceGetVbiosVersion(dev C.handle, to *C.char, length C.u32) C.u32 {
	return text("nvmlDeviceGetVbiosVersion", dev, to, length, func(v engine.View) string { return v.Board.VBIOS })
}

//export nvmlDeviceGetBoardPartNumber
func nvmlDeviceGetBoardPartNumber(dev C.handle, to *C.char, length C.u32) C.u32 {
	return text("nvmlDeviceGetBoardPartNumber", dev, to, length, func(v engine.View) string { return v.Board.PartNumber })
}

//export nvmlDeviceGetInforomImageVersion
func nvmlDeviceGetInforomImageVersion(dev C.handle, to *C.char, length C.u32) C.u32 {
	return text("nvmlDeviceGetInforomImageVersion", dev, to, length, func(v engine.View) string { return v.Board.InforomImage })
}

//export nvmlDeviceGetGspFirmwareVersion
func nvmlDeviceGetGspFirmwareVersion(dev C.handle, to *C.char) C.u32 {
	return text("nvmlDeviceGetGspFirmwareVersion", dev, to, 64, func(v engine.View) string { return v.Profile.Driver.Version })
}

//export nvmlDeviceGetIndex
func nvmlDeviceGetIndex(dev C.handle, to *C.u32) C.u32 {
	return either("nvmlDeviceGetIndex", dev, to != nil,
		func(v engine.View) nvml.Code { return put(to, v.Index) }, func(f found) nvml.Code { return put(to, f.index()) })
}

//export nvmlDeviceGetMinorNumber
func nvmlDeviceGetMinorNumber(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetMinorNumber", dev, to, func(v engine.View) int { return v.Minor })
}

//export nvmlDeviceGetModuleId
func nvmlDeviceGetModuleId(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetModuleId", dev, to, func(v engine.View) int { return v.State.Slot(v.GPU).ModuleID })
}

//export nvmlDeviceGetBoardId
func nvmlDeviceGetBoardId(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetBoardId", dev, to, func(v engine.View) int {
		a, _ := profiles.ParseAddress(v.Address)
		return int(a.Domain<<16 | a.Bus<<8 | a.Device)
	})
}

//export nvmlDeviceGetMultiGpuBoard
func nvmlDeviceGetMultiGpuBoard(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetMultiGpuBoard", dev, to, func(engine.View) int { return 0 })
}

//export nvmlDeviceGetBrand
func nvmlDeviceGetBrand(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetBrand", dev, to, func(v engine.View) int { return v.Board.Brand })
}

//export nvmlDeviceGetArchitecture
func nvmlDeviceGetArchitecture(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetArchitecture", dev, to, func(v engine.View) int { return v.Board.Architecture })
}

//export nvmlDeviceGetCudaComputeCapability
func nvmlDeviceGetCudaComputeCapability(dev C.handle, major, minor *C.int) C.u32 {
	return device("nvmlDeviceGetCudaComputeCapability", dev, major != nil && minor != nil, func(v engine.View) nvml.Code {
		*major, *minor = C.int(v.Board.ComputeMajor), C.int(v.Board.ComputeMinor)
		return 0
	})
}

//export nvmlDeviceGetAddressingMode
func nvmlDeviceGetAddressingMode(dev C.handle, mode *C.versionedValue) C.u32 {
	return device("nvmlDeviceGetAddressingMode", dev, mode != nil, func(v engine.View) nvml.Code {
		if !versioned(mode.version, unsafe.Sizeof(*mode), 1) {
			return argumentVersionMismatch
		}
		if !v.Board.AddressingModeReported {
			return nvml.NotSupported
		}
		mode.value = C.u32(v.Board.AddressingMode)
		return 0
	})
}

//export nvmlDeviceGetNumGpuCores
func nvmlDeviceGetNumGpuCores(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetNumGpuCores", dev, to, engine.View.Cores)
}

//export nvmlDeviceGetMemoryBusWidth
func nvmlDeviceGetMemoryBusWidth(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetMemoryBusWidth", dev, to, func(v engine.View) int { return v.Board.MemoryBusWidth })
}
