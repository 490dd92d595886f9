// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

// #include "abi.h"
import "C"

import (
	"errors"
	"unsafe"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/profiles"
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
		links := v.NVLinks(v.GPU)
		return put(active, flag(int(link) < len(links) && links[link].Up))
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
		links := v.NVLinks(v.GPU)
		if int(link) >= len(links) {
			return nvml.NotSupported // The link is not connected.
		}
		return put(remote, int(links[link].Remote))
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
	const counters = 5
	return nvlink("nvmlDeviceGetNvLinkErrorCounter", dev, link, to != nil && counter < counters, func(v engine.View) nvml.Code {
		*to = C.u64(v.LinkErrorsOf(int(link)))
		return 0
	})
}

// remotePCI returns the GPU at the other end of a link. This driver does not report switches.
func remotePCI(query string, dev C.handle, link C.u32, ok bool, fill func(engine.View, profiles.Address)) C.u32 {
	return nvlink(query, dev, link, ok, func(v engine.View) nvml.Code {
		links := v.NVLinks(v.GPU)
		if int(link) >= len(links) || links[link].Peer == nil {
			return nvml.NotSupported
		}
		peer := v
		peer.GPU = links[link].Peer
		a, err := profiles.ParseAddress(peer.GPU.Address)
		if err != nil {
			return nvml.Unknown
		}
		fill(peer, a)
		return 0
	})
}

//export nvmlDeviceGetNvLinkRemotePciInfo
func nvmlDeviceGetNvLinkRemotePciInfo(dev C.handle, link C.u32, info *C.pciInfoV2) C.u32 {
	return remotePCI("nvmlDeviceGetNvLinkRemotePciInfo", dev, link, info != nil, func(v engine.View, a profiles.Address) { fillPCIV2(info, v, a) })
}

//export nvmlDeviceGetNvLinkRemotePciInfo_v2
func nvmlDeviceGetNvLinkRemotePciInfo_v2(dev C.handle, link C.u32, info *C.pciInfo) C.u32 {
	return remotePCI("nvmlDeviceGetNvLinkRemotePciInfo_v2", dev, link, info != nil, func(v engine.View, a profiles.Address) { fillPCI(info, v, a) })
}

// healthUnset is nvml.h's value for an unknown health.
const healthUnset = 0

func fabric(query string, dev C.handle, ok bool, fill func(f nvml.Fabric, cluster [16]C.uchar, status C.u32)) C.u32 {
	return device(query, dev, ok, func(v engine.View) nvml.Code {
		f := v.FabricOf(v.GPU)
		var cluster [16]C.uchar
		for i, b := range f.ClusterUUID {
			cluster[i] = C.uchar(b)
		}
		var code nvml.Code
		errors.As(f.Status, &code)
		fill(f, cluster, C.u32(code))
		return 0
	})
}

//export nvmlDeviceGetGpuFabricInfo
func nvmlDeviceGetGpuFabricInfo(dev C.handle, info *C.fabricInfo) C.u32 {
	return fabric("nvmlDeviceGetGpuFabricInfo", dev, info != nil, func(f nvml.Fabric, cluster [16]C.uchar, status C.u32) {
		*info = C.fabricInfo{clusterUuid: cluster, status: status, cliqueId: C.u32(f.CliqueID), state: C.uchar(f.State)}
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
		return fabric(query, dev, true, func(f nvml.Fabric, cluster [16]C.uchar, status C.u32) {
			*v2 = C.fabricInfoV2{version: v2.version, clusterUuid: cluster, status: status, cliqueId: C.u32(f.CliqueID), state: C.uchar(f.State), healthMask: healthUnset}
		})
	case versioned(info.version, unsafe.Sizeof(*info), 3):
		return fabric(query, dev, true, func(f nvml.Fabric, cluster [16]C.uchar, status C.u32) {
			*info = C.fabricInfoV3{version: info.version, clusterUuid: cluster, status: status, cliqueId: C.u32(f.CliqueID), state: C.uchar(f.State), healthMask: healthUnset}
		})
	}
	return C.u32(argumentVersionMismatch)
}
