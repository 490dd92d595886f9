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
)

//export nvmlSystemGetDriverVersion
func nvmlSystemGetDriverVersion(version *C.char, length C.u32) C.u32 {
	return system("nvmlSystemGetDriverVersion", version != nil, func(s *engine.State) nvml.Code {
		return putString(version, length, s.Profile.Driver.Version)
	})
}

//export nvmlSystemGetNVMLVersion
func nvmlSystemGetNVMLVersion(version *C.char, length C.u32) C.u32 {
	return system("nvmlSystemGetNVMLVersion", version != nil, func(s *engine.State) nvml.Code {
		return putString(version, length, s.Profile.Driver.NVMLVersion)
	})
}

//export nvmlSystemGetDriverBranch
func nvmlSystemGetDriverBranch(info *C.driverBranch, length C.u32) C.u32 {
	return system("nvmlSystemGetDriverBranch", info != nil, func(s *engine.State) nvml.Code {
		if !versioned(info.version, unsafe.Sizeof(*info), 1) {
			return argumentVersionMismatch
		}
		major, _, _ := strings.Cut(s.Profile.Driver.Version, ".")
		if int(length) < len("r"+major)+1 {
			return nvml.InsufficientSize
		}
		putArray(info.branch[:], "r"+major)
		return 0
	})
}

func cudaVersion(query string, version *C.int) C.u32 {
	return system(query, version != nil, func(s *engine.State) nvml.Code {
		// Without CUDA's library, the first version of the function returns the version that NVML was built with.
		if strings.HasSuffix(query, "_v2") && C.gpusimHasCUDA() == 0 {
			return nvml.LibraryNotFound
		}
		*version = C.int(s.Profile.Driver.CUDA)
		return 0
	})
}

//export nvmlSystemGetCudaDriverVersion
func nvmlSystemGetCudaDriverVersion(version *C.int) C.u32 {
	return cudaVersion("nvmlSystemGetCudaDriverVersion", version)
}

//export nvmlSystemGetCudaDriverVersion_v2
func nvmlSystemGetCudaDriverVersion_v2(version *C.int) C.u32 {
	return cudaVersion("nvmlSystemGetCudaDriverVersion_v2", version)
}

//export nvmlSystemGetProcessName
func nvmlSystemGetProcessName(pid C.u32, name *C.char, length C.u32) C.u32 {
	return system("nvmlSystemGetProcessName", name != nil && length > 0, func(s *engine.State) nvml.Code {
		for i := range s.GPUs {
			for _, p := range s.GPUs[i].Processes {
				if p.PID == uint32(pid) {
					return putString(name, length, p.Name)
				}
			}
		}
		return nvml.NotFound
	})
}

func none(query string, count *C.u32) C.u32 {
	return system(query, count != nil, func(*engine.State) nvml.Code { return put(count, 0) })
}

//export nvmlUnitGetCount
func nvmlUnitGetCount(count *C.u32) C.u32 { return none("nvmlUnitGetCount", count) }

//export nvmlGetExcludedDeviceCount
func nvmlGetExcludedDeviceCount(count *C.u32) C.u32 {
	return none("nvmlGetExcludedDeviceCount", count)
}

func deviceCount(query string, count *C.u32) C.u32 {
	s := current()
	return system(query, count != nil, func(*engine.State) nvml.Code { return put(count, s.Count()) })
}

//export nvmlDeviceGetCount
func nvmlDeviceGetCount(count *C.u32) C.u32 { return deviceCount("nvmlDeviceGetCount", count) }

//export nvmlDeviceGetCount_v2
func nvmlDeviceGetCount_v2(count *C.u32) C.u32 { return deviceCount("nvmlDeviceGetCount_v2", count) }
