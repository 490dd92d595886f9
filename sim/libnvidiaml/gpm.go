// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

// #include "abi.h"
// #include <stdlib.h>
import "C"

import (
	"time"
	"unsafe"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/engine"
)

//export nvmlGpmQueryDeviceSupport
func nvmlGpmQueryDeviceSupport(dev C.handle, support *C.gpmSupport) C.u32 {
	return device("nvmlGpmQueryDeviceSupport", dev, support != nil, func(v engine.View) nvml.Code {
		support.supported = 0
		if v.GPMSupported() {
			support.supported = 1
		}
		return 0
	})
}

//export nvmlGpmSampleAlloc
func nvmlGpmSampleAlloc(to *C.handle) C.u32 {
	return system("nvmlGpmSampleAlloc", to != nil, func(*engine.State) nvml.Code {
		*to = C.handle(C.calloc(1, C.sizeof_gpmSample))
		return 0
	})
}

//export nvmlGpmSampleFree
func nvmlGpmSampleFree(sample C.handle) C.u32 {
	return system("nvmlGpmSampleFree", sample != nil, func(*engine.State) nvml.Code {
		C.free(unsafe.Pointer(sample))
		return 0
	})
}

func gpmSample(query string, dev, sample C.handle, instance int) C.u32 {
	return device(query, dev, sample != nil, func(v engine.View) nvml.Code {
		s, code := v.GPMAt(instance, time.Now())
		if code == 0 {
			*(*C.gpmSample)(sample) = C.gpmSample{
				device: dev, instance: C.u32(instance), multiprocessors: C.u32(s.Multiprocessors), atMS: C.longlong(s.AtMS),
				busy: C.u64(s.Busy), pcieSent: C.u64(s.Traffic.PCIeSent), pcieReceived: C.u64(s.Traffic.PCIeReceived), nvlink: C.u64(s.Traffic.NVLink),
			}
		}
		return code
	})
}

//export nvmlGpmSampleGet
func nvmlGpmSampleGet(dev, sample C.handle) C.u32 {
	return gpmSample("nvmlGpmSampleGet", dev, sample, -1)
}

//export nvmlGpmMigSampleGet
func nvmlGpmMigSampleGet(dev C.handle, instance C.u32, sample C.handle) C.u32 {
	return gpmSample("nvmlGpmMigSampleGet", dev, sample, int(instance))
}

//export nvmlGpmMetricsGet
func nvmlGpmMetricsGet(g *C.gpmMetrics) C.u32 {
	const most = 1000
	ok := g != nil && g.first != nil && g.second != nil && g.count <= most
	return system("nvmlGpmMetricsGet", ok, func(*engine.State) nvml.Code {
		if g.version != 1 {
			return argumentVersionMismatch
		}
		a, b := (*C.gpmSample)(g.first), (*C.gpmSample)(g.second)
		if a.device != b.device || a.instance != b.instance {
			return nvml.InvalidArgument
		}
		first := (*C.gpmMetric)(unsafe.Add(unsafe.Pointer(g), C.sizeof_gpmMetrics))
		for i := range unsafe.Slice(first, g.count) {
			m := &unsafe.Slice(first, g.count)[i]
			value, code := sampleOf(a).Metric(sampleOf(b), int(m.id))
			m.value, m.code, m.shortName, m.longName, m.unit = C.double(value), C.u32(code), nil, nil, nil
		}
		return 0
	})
}

func sampleOf(s *C.gpmSample) engine.GPMSample {
	return engine.GPMSample{
		AtMS: int64(s.atMS), Multiprocessors: int(s.multiprocessors), Busy: uint64(s.busy),
		Traffic: engine.Traffic{PCIeSent: uint64(s.pcieSent), PCIeReceived: uint64(s.pcieReceived), NVLink: uint64(s.nvlink)},
	}
}

// nvmlDeviceGetProcessUtilization returns a sample for each process, or NOT_FOUND without any. The times are microseconds of
// the clock.
//
//export nvmlDeviceGetProcessUtilization
func nvmlDeviceGetProcessUtilization(dev C.handle, to *C.processUtilization, count *C.u32, after C.u64) C.u32 {
	return device("nvmlDeviceGetProcessUtilization", dev, count != nil, func(v engine.View) nvml.Code {
		loads, code := v.ProcessLoads()
		now := uint64(time.Now().UnixMicro())
		switch {
		case code != 0:
			return code
		case len(loads) == 0 || now <= uint64(after):
			return nvml.NotFound
		}
		have := int(*count)
		*count = C.u32(len(loads))
		if to == nil || have < len(loads) {
			return nvml.InsufficientSize
		}
		for i, p := range v.Processes {
			unsafe.Slice(to, len(loads))[i] = C.processUtilization{pid: C.u32(p.PID), timeStamp: C.u64(now), sm: C.u32(loads[i])}
		}
		return 0
	})
}
