// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

// #include "abi.h"
import "C"

import (
	"unsafe"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/engine"
)

const maxLinks = 36

func nvlink(query string, dev C.handle, link C.u32, ok bool, answer func(engine.View) nvml.Code) C.u32 {
	return device(query, dev, ok && link < maxLinks, func(v engine.View) nvml.Code {
		if v.Board.NVLinks == 0 {
			return nvml.NotSupported
		}
		if int(link) >= v.Board.NVLinks {
			return nvml.InvalidArgument
		}
		return answer(v)
	})
}

//export nvmlDeviceGetNvLinkState
func nvmlDeviceGetNvLinkState(dev C.handle, link C.u32, active *C.u32) C.u32 {
	return nvlink("nvmlDeviceGetNvLinkState", dev, link, active != nil, func(v engine.View) nvml.Code {
		return put(active, flag(v.NVLinks(v.GPU)[link].Up))
	})
}

//export nvmlDeviceGetNvLinkVersion
func nvmlDeviceGetNvLinkVersion(dev C.handle, link C.u32, version *C.u32) C.u32 {
	return nvlink("nvmlDeviceGetNvLinkVersion", dev, link, version != nil, func(v engine.View) nvml.Code {
		return put(version, v.Board.NVLinkVersion)
	})
}

//export nvmlDeviceGetNvLinkRemoteDeviceType
func nvmlDeviceGetNvLinkRemoteDeviceType(dev C.handle, link C.u32, remote *C.u32) C.u32 {
	return nvlink("nvmlDeviceGetNvLinkRemoteDeviceType", dev, link, remote != nil, func(v engine.View) nvml.Code {
		return put(remote, int(v.NVLinks(v.GPU)[link].Remote))
	})
}

//export nvmlDeviceGetNvLinkCapability
func nvmlDeviceGetNvLinkCapability(dev C.handle, link, capability C.u32, result *C.u32) C.u32 {
	const known = 6
	return nvlink("nvmlDeviceGetNvLinkCapability", dev, link, result != nil && capability < known, func(engine.View) nvml.Code {
		return put(result, 1)
	})
}

//export nvmlDeviceGetNvLinkErrorCounter
func nvmlDeviceGetNvLinkErrorCounter(dev C.handle, link, counter C.u32, to *C.u64) C.u32 {
	return nvlink("nvmlDeviceGetNvLinkErrorCounter", dev, link, to != nil, func(engine.View) nvml.Code {
		*to = 0
		return 0
	})
}

// Fabric states and health of nvml.h.
const (
	fabricNotSupported = 0
	fabricCompleted    = 3
	healthUnset        = 0
)

func fabric(query string, dev C.handle, ok bool, fill func(state int)) C.u32 {
	return device(query, dev, ok, func(v engine.View) nvml.Code {
		state := fabricNotSupported
		if v.Board.Fabric {
			state = fabricCompleted
		}
		fill(state)
		return 0
	})
}

// A board on a single baseboard completes registration with an all-zero cluster UUID and clique 0.

//export nvmlDeviceGetGpuFabricInfo
func nvmlDeviceGetGpuFabricInfo(dev C.handle, info *C.fabricInfo) C.u32 {
	return fabric("nvmlDeviceGetGpuFabricInfo", dev, info != nil, func(state int) {
		*info = C.fabricInfo{state: C.uchar(state)}
	})
}

//export nvmlDeviceGetGpuFabricInfoV
func nvmlDeviceGetGpuFabricInfoV(dev C.handle, info *C.fabricInfoV3) C.u32 {
	const query = "nvmlDeviceGetGpuFabricInfoV"
	if info == nil || current() == nil {
		return fabric(query, dev, false, nil)
	}
	switch {
	case versioned(info.version, unsafe.Sizeof(C.fabricInfoV2{}), 2):
		v2 := (*C.fabricInfoV2)(unsafe.Pointer(info))
		return fabric(query, dev, true, func(state int) {
			*v2 = C.fabricInfoV2{version: v2.version, state: C.uchar(state), healthMask: healthUnset}
		})
	case versioned(info.version, unsafe.Sizeof(*info), 3):
		return fabric(query, dev, true, func(state int) {
			*info = C.fabricInfoV3{version: info.version, state: C.uchar(state), healthMask: healthUnset}
		})
	}
	return C.u32(argumentVersionMismatch)
}
