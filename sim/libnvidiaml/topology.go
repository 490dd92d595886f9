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

// two runs a query of a pair of GPUs.
func two(query string, a, b C.handle, ok bool, answer func(a, b engine.View) nvml.Code) C.u32 {
	return device(query, a, ok, func(va engine.View) nvml.Code {
		slot, known := slotOf(b)
		if !known {
			return nvml.InvalidArgument
		}
		vb, code := current().Peer(slot)
		if code != 0 {
			return code
		}
		return answer(va, vb)
	})
}

//export nvmlDeviceGetTopologyCommonAncestor
func nvmlDeviceGetTopologyCommonAncestor(a, b C.handle, level *C.u32) C.u32 {
	return two("nvmlDeviceGetTopologyCommonAncestor", a, b, level != nil, func(a, b engine.View) nvml.Code {
		return put(level, engine.CommonAncestor(a, b))
	})
}

//export nvmlDeviceOnSameBoard
func nvmlDeviceOnSameBoard(a, b C.handle, same *C.int) C.u32 {
	return two("nvmlDeviceOnSameBoard", a, b, same != nil, func(a, b engine.View) nvml.Code {
		*same = C.int(flag(a.Slot == b.Slot))
		return 0
	})
}

//export nvmlDeviceGetP2PStatus
func nvmlDeviceGetP2PStatus(a, b C.handle, capability C.u32, status *C.u32) C.u32 {
	const overNVLink, ok, notSupported = 2, 0, 5
	return two("nvmlDeviceGetP2PStatus", a, b, status != nil, func(a, b engine.View) nvml.Code {
		if a.Slot == b.Slot {
			return nvml.InvalidArgument
		}
		if capability == overNVLink && !a.Peers(a.GPU, b.GPU) {
			return put(status, notSupported)
		}
		return put(status, ok)
	})
}

//export nvmlDeviceGetTopologyNearestGpus
func nvmlDeviceGetTopologyNearestGpus(dev C.handle, level C.u32, count *C.u32, to *C.handle) C.u32 {
	return device("nvmlDeviceGetTopologyNearestGpus", dev, count != nil && (*count == 0 || to != nil), func(v engine.View) nvml.Code {
		s := current()
		var near []int
		for i := range s.Count() {
			slot, _ := s.SlotOf(i)
			if other, code := s.Peer(slot); code == 0 && slot != v.Slot && engine.CommonAncestor(v, other) == int(level) {
				near = append(near, slot)
			}
		}
		have := int(*count)
		*count = C.u32(len(near))
		if have == 0 {
			return 0
		}
		if have < len(near) {
			return nvml.InsufficientSize
		}
		for i, slot := range near {
			unsafe.Slice(to, have)[i] = handleOf(slot)
		}
		return 0
	})
}

// bitSet fills an array of unsigned longs.
func bitSet(words []C.ulong, from, to int) {
	clear(words)
	for b := from; b <= to && b/64 < len(words); b++ {
		words[b/64] |= 1 << (b % 64)
	}
}

//export nvmlDeviceGetCpuAffinity
func nvmlDeviceGetCpuAffinity(dev C.handle, size C.u32, set *C.ulong) C.u32 {
	return affinity("nvmlDeviceGetCpuAffinity", dev, size, set)
}

//export nvmlDeviceGetCpuAffinityWithinScope
func nvmlDeviceGetCpuAffinityWithinScope(dev C.handle, size C.u32, set *C.ulong, scope C.u32) C.u32 {
	return affinity("nvmlDeviceGetCpuAffinityWithinScope", dev, size, set)
}

func affinity(query string, dev C.handle, size C.u32, set *C.ulong) C.u32 {
	return device(query, dev, set != nil && size > 0 && size <= 1024, func(v engine.View) nvml.Code {
		first, last := engine.CPUs(v.State.Slot(v.GPU).NUMANode)
		bitSet(unsafe.Slice(set, size), first, last)
		return 0
	})
}

//export nvmlDeviceGetMemoryAffinity
func nvmlDeviceGetMemoryAffinity(dev C.handle, size C.u32, set *C.ulong, scope C.u32) C.u32 {
	return device("nvmlDeviceGetMemoryAffinity", dev, set != nil && size > 0 && size <= 1024, func(v engine.View) nvml.Code {
		n := v.State.Slot(v.GPU).NUMANode
		if n < 0 {
			return nvml.NotSupported
		}
		bitSet(unsafe.Slice(set, size), n, n)
		return 0
	})
}

//export nvmlDeviceGetNumaNodeId
func nvmlDeviceGetNumaNodeId(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetNumaNodeId", dev, to, func(engine.View) int { return -1 }) // only GPUs whose memory is a NUMA node
}
