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

const mib = 1 << 20

// The first version includes the driver's reserved memory in the used memory.

//export nvmlDeviceGetMemoryInfo
func nvmlDeviceGetMemoryInfo(dev C.handle, m *C.memoryV1) C.u32 {
	answer := func(info nvml.MemoryInfo) nvml.Code {
		m.total, m.free, m.used = C.u64(info.Total), C.u64(info.Free), C.u64(info.Used+info.Reserved)
		return 0
	}
	return either("nvmlDeviceGetMemoryInfo", dev, m != nil,
		func(v engine.View) nvml.Code { return answer(v.Memory()) }, func(f found) nvml.Code { return answer(f.memory()) })
}

//export nvmlDeviceGetMemoryInfo_v2
func nvmlDeviceGetMemoryInfo_v2(dev C.handle, m *C.memoryV2) C.u32 {
	answer := func(info nvml.MemoryInfo) nvml.Code {
		if !versioned(m.version, unsafe.Sizeof(*m), 2) {
			return argumentVersionMismatch
		}
		m.total, m.reserved, m.free, m.used = C.u64(info.Total), C.u64(info.Reserved), C.u64(info.Free), C.u64(info.Used)
		return 0
	}
	return either("nvmlDeviceGetMemoryInfo_v2", dev, m != nil,
		func(v engine.View) nvml.Code { return answer(v.Memory()) }, func(f found) nvml.Code { return answer(f.memory()) })
}

//export nvmlDeviceGetBAR1MemoryInfo
func nvmlDeviceGetBAR1MemoryInfo(dev C.handle, m *C.bar1Memory) C.u32 {
	// A MIG device has the part of BAR1 that its instance has of the memory slices, and uses nothing.
	answer := func(total, used uint64) nvml.Code {
		m.total, m.free, m.used = C.u64(total*mib), C.u64((total-used)*mib), C.u64(used*mib)
		return 0
	}
	return either("nvmlDeviceGetBAR1MemoryInfo", dev, m != nil,
		func(v engine.View) nvml.Code { return answer(v.Board.BAR1MiB, 1) },
		func(f found) nvml.Code {
			return answer(f.Board.BAR1MiB*uint64(f.instance.Size)/uint64(f.Board.MIG.Slices), 0)
		})
}

// cgroup returns the identity of the cgroup with a directory.
func cgroup(dir *C.char) (string, nvml.Code) {
	id, err := engine.CgroupAt(C.GoString(dir))
	if err != nil {
		return "", nvml.OperatingSystem
	}
	return id, 0
}

//export nvmlDeviceGetMemoryLimits_v1
func nvmlDeviceGetMemoryLimits_v1(dev C.handle, m *C.usedMemoryLimits) C.u32 {
	return device("nvmlDeviceGetMemoryLimits_v1", dev, m != nil && m.nameSpace != nil, func(v engine.View) nvml.Code {
		id, code := cgroup(m.nameSpace)
		if code != 0 {
			return code
		}
		l, used, code := v.MemoryLimit(v.GPU, id)
		if code == 0 {
			m.softLimit, m.hardLimit, m.currentUsed = C.u64(l.Soft), C.u64(l.Hard), C.u64(used)
		}
		return code
	})
}

//export nvmlDeviceSetMemoryLimits_v1
func nvmlDeviceSetMemoryLimits_v1(dev C.handle, m *C.memoryLimits) C.u32 {
	return mutate("nvmlDeviceSetMemoryLimits_v1", dev, m != nil && m.nameSpace != nil, func(_ int, s *engine.State, g *engine.GPU) nvml.Code {
		id, code := cgroup(m.nameSpace)
		if code != 0 {
			return code
		}
		return s.SetMemoryLimit(g, engine.MemoryLimit{Cgroup: id, Soft: uint64(m.softLimit), Hard: uint64(m.hardLimit)})
	})
}

// processes fills a counted array: for a GPU the processes that use it or a part of it, for a MIG device its own. If
// the count is too small, it returns INSUFFICIENT_SIZE and the required count.
func processes(query string, dev C.handle, count *C.u32, graphics bool, room unsafe.Pointer, fill func(i int, p engine.Process)) C.u32 {
	answer := func(all []engine.Process, on func(engine.Process) bool) nvml.Code {
		var held []engine.Process
		for _, p := range all {
			if p.Graphics == graphics && on(p) {
				held = append(held, p)
			}
		}
		have := int(*count)
		*count = C.u32(len(held))
		if have < len(held) {
			return nvml.InsufficientSize
		}
		for i, p := range held {
			fill(i, p)
		}
		return 0
	}
	return either(query, dev, count != nil && (*count == 0 || room != nil),
		func(v engine.View) nvml.Code { return answer(v.Processes, func(engine.Process) bool { return true }) },
		func(f found) nvml.Code {
			return answer(f.Processes, func(p engine.Process) bool {
				return p.Place != nil && p.Place.GPUInstance == f.gi && p.Place.ComputeInstance == f.ci
			})
		})
}

func processesV1(query string, dev C.handle, count *C.u32, to *C.processV1, graphics bool) C.u32 {
	return processes(query, dev, count, graphics, unsafe.Pointer(to), func(i int, p engine.Process) {
		unsafe.Slice(to, i+1)[i] = C.processV1{pid: C.u32(p.PID), usedGpuMemory: C.u64(p.MemoryMiB * mib)}
	})
}

func processesV2(query string, dev C.handle, count *C.u32, to *C.processV2, graphics bool) C.u32 {
	const noInstance = 0xffffffff
	return processes(query, dev, count, graphics, unsafe.Pointer(to), func(i int, p engine.Process) {
		unsafe.Slice(to, i+1)[i] = C.processV2{pid: C.u32(p.PID), usedGpuMemory: C.u64(p.MemoryMiB * mib),
			gpuInstanceId: noInstance, computeInstanceId: noInstance}
		if p.Place != nil {
			at := &unsafe.Slice(to, i+1)[i]
			at.gpuInstanceId, at.computeInstanceId = C.u32(p.Place.GPUInstance), C.u32(p.Place.ComputeInstance)
		}
	})
}

//export nvmlDeviceGetComputeRunningProcesses
func nvmlDeviceGetComputeRunningProcesses(dev C.handle, count *C.u32, to *C.processV1) C.u32 {
	return processesV1("nvmlDeviceGetComputeRunningProcesses", dev, count, to, false)
}

//export nvmlDeviceGetComputeRunningProcesses_v2
func nvmlDeviceGetComputeRunningProcesses_v2(dev C.handle, count *C.u32, to *C.processV2) C.u32 {
	return processesV2("nvmlDeviceGetComputeRunningProcesses_v2", dev, count, to, false)
}

//export nvmlDeviceGetComputeRunningProcesses_v3
func nvmlDeviceGetComputeRunningProcesses_v3(dev C.handle, count *C.u32, to *C.processV2) C.u32 {
	return processesV2("nvmlDeviceGetComputeRunningProcesses_v3", dev, count, to, false)
}

//export nvmlDeviceGetGraphicsRunningProcesses
func nvmlDeviceGetGraphicsRunningProcesses(dev C.handle, count *C.u32, to *C.processV1) C.u32 {
	return processesV1("nvmlDeviceGetGraphicsRunningProcesses", dev, count, to, true)
}

//export nvmlDeviceGetGraphicsRunningProcesses_v2
func nvmlDeviceGetGraphicsRunningProcesses_v2(dev C.handle, count *C.u32, to *C.processV2) C.u32 {
	return processesV2("nvmlDeviceGetGraphicsRunningProcesses_v2", dev, count, to, true)
}

//export nvmlDeviceGetGraphicsRunningProcesses_v3
func nvmlDeviceGetGraphicsRunningProcesses_v3(dev C.handle, count *C.u32, to *C.processV2) C.u32 {
	return processesV2("nvmlDeviceGetGraphicsRunningProcesses_v3", dev, count, to, true)
}

func mpsProcesses(query string, dev C.handle, count *C.u32) C.u32 {
	return device(query, dev, count != nil, func(engine.View) nvml.Code { return put(count, 0) })
}

//export nvmlDeviceGetMPSComputeRunningProcesses
func nvmlDeviceGetMPSComputeRunningProcesses(dev C.handle, count *C.u32, to *C.processV1) C.u32 {
	return mpsProcesses("nvmlDeviceGetMPSComputeRunningProcesses", dev, count)
}

//export nvmlDeviceGetMPSComputeRunningProcesses_v2
func nvmlDeviceGetMPSComputeRunningProcesses_v2(dev C.handle, count *C.u32, to *C.processV2) C.u32 {
	return mpsProcesses("nvmlDeviceGetMPSComputeRunningProcesses_v2", dev, count)
}

//export nvmlDeviceGetMPSComputeRunningProcesses_v3
func nvmlDeviceGetMPSComputeRunningProcesses_v3(dev C.handle, count *C.u32, to *C.processV2) C.u32 {
	return mpsProcesses("nvmlDeviceGetMPSComputeRunningProcesses_v3", dev, count)
}
