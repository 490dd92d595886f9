// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

// #include "abi.h"
import "C"

import (
	"strings"
	"unsafe"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/profiles"
)

func pciOf(query string, dev C.handle, ok bool, fill func(engine.View, profiles.Address)) C.u32 {
	return device(query, dev, ok, func(v engine.View) nvml.Code {
		a, err := profiles.ParseAddress(v.Address)
		if err != nil {
			return nvml.Unknown
		}
		fill(v, a)
		return 0
	})
}

func fillPCI(info *C.pciInfo, v engine.View, a profiles.Address) {
	putArray(info.busIdLegacy[:], strings.ToUpper(v.Address))
	putArray(info.busId[:], v.BusID())
	info.domain, info.bus, info.device = C.u32(a.Domain), C.u32(a.Bus), C.u32(a.Device)
	info.pciDeviceId, info.pciSubSystemId = C.u32(v.Board.DeviceID()), C.u32(v.Board.SubsystemID())
}

func fillPCIV2(info *C.pciInfoV2, v engine.View, a profiles.Address) {
	putArray(info.busIdLegacy[:], strings.ToUpper(v.Address))
	info.domain, info.bus, info.device = C.u32(a.Domain), C.u32(a.Bus), C.u32(a.Device)
	info.pciDeviceId, info.pciSubSystemId = C.u32(v.Board.DeviceID()), C.u32(v.Board.SubsystemID())
}

func pciInto(query string, dev C.handle, info *C.pciInfo) C.u32 {
	return pciOf(query, dev, info != nil, func(v engine.View, a profiles.Address) { fillPCI(info, v, a) })
}

func pciIntoV2(query string, dev C.handle, info *C.pciInfoV2) C.u32 {
	return pciOf(query, dev, info != nil, func(v engine.View, a profiles.Address) { fillPCIV2(info, v, a) })
}

// The first version ends before pciSubSystemId, the second has four reserved words after it.

//export nvmlDeviceGetPciInfo
func nvmlDeviceGetPciInfo(dev C.handle, info *C.pciInfo) C.u32 {
	const query = "nvmlDeviceGetPciInfo"
	return pciOf(query, dev, info != nil, func(v engine.View, a profiles.Address) {
		putArray(info.busIdLegacy[:], strings.ToUpper(v.Address))
		info.domain, info.bus, info.device = C.u32(a.Domain), C.u32(a.Bus), C.u32(a.Device)
		info.pciDeviceId = C.u32(v.Board.DeviceID())
	})
}

//export nvmlDeviceGetPciInfo_v2
func nvmlDeviceGetPciInfo_v2(dev C.handle, info *C.pciInfoV2) C.u32 {
	return pciIntoV2("nvmlDeviceGetPciInfo_v2", dev, info)
}

//export nvmlDeviceGetPciInfo_v3
func nvmlDeviceGetPciInfo_v3(dev C.handle, info *C.pciInfo) C.u32 {
	return pciInto("nvmlDeviceGetPciInfo_v3", dev, info)
}

//export nvmlDeviceGetPciInfoExt
func nvmlDeviceGetPciInfoExt(dev C.handle, info *C.pciInfoExt) C.u32 {
	if info != nil && current() != nil && !versioned(info.version, unsafe.Sizeof(*info), 1) {
		return C.u32(argumentVersionMismatch)
	}
	return pciOf("nvmlDeviceGetPciInfoExt", dev, info != nil, func(v engine.View, a profiles.Address) {
		const display, threeD = 3, 2
		info.domain, info.bus, info.device = C.u32(a.Domain), C.u32(a.Bus), C.u32(a.Device)
		info.pciDeviceId, info.pciSubSystemId = C.u32(v.Board.DeviceID()), C.u32(v.Board.SubsystemID())
		info.baseClass, info.subClass = display, threeD
		putArray(info.busId[:], v.BusID())
	})
}

//export nvmlDeviceGetCurrPcieLinkGeneration
func nvmlDeviceGetCurrPcieLinkGeneration(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetCurrPcieLinkGeneration", dev, to, func(v engine.View) int { return v.Board.PCIeGen })
}

//export nvmlDeviceGetMaxPcieLinkGeneration
func nvmlDeviceGetMaxPcieLinkGeneration(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetMaxPcieLinkGeneration", dev, to, func(v engine.View) int { return v.Board.PCIeGen })
}

//export nvmlDeviceGetGpuMaxPcieLinkGeneration
func nvmlDeviceGetGpuMaxPcieLinkGeneration(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetGpuMaxPcieLinkGeneration", dev, to, func(v engine.View) int { return v.Board.PCIeGen })
}

//export nvmlDeviceGetCurrPcieLinkWidth
func nvmlDeviceGetCurrPcieLinkWidth(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetCurrPcieLinkWidth", dev, to, engine.View.PCIeWidth)
}

//export nvmlDeviceGetMaxPcieLinkWidth
func nvmlDeviceGetMaxPcieLinkWidth(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetMaxPcieLinkWidth", dev, to, func(v engine.View) int { return v.Board.PCIeWidth })
}

//export nvmlDeviceGetPcieThroughput
func nvmlDeviceGetPcieThroughput(dev C.handle, counter C.u32, to *C.u32) C.u32 {
	return number("nvmlDeviceGetPcieThroughput", dev, to, func(engine.View) int { return 0 })
}

//export nvmlDeviceGetPcieReplayCounter
func nvmlDeviceGetPcieReplayCounter(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetPcieReplayCounter", dev, to, func(engine.View) int { return 0 })
}
