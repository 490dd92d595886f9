// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

// #include "abi.h"
import "C"

import (
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/profiles"
)

// Clock domains of nvmlClockType_t.
const (
	clockGraphics = 0
	clockSM       = 1
	clockMemory   = 2
	clockVideo    = 3
)

func maxClock(c profiles.Clocks, domain C.u32) int {
	switch domain {
	case clockGraphics, clockSM:
		return c.MaxGraphics
	case clockMemory:
		return c.MaxMemory
	case clockVideo:
		return c.MaxVideo
	}
	return -1
}

func clockNow(v engine.View, domain C.u32) int {
	c := v.Board.Clocks
	if v.LoadPercent() == 0 {
		switch domain {
		case clockGraphics, clockSM:
			return c.IdleGraphics
		case clockMemory:
			return c.IdleMemory
		}
	}
	return maxClock(c, domain)
}

func clock(query string, dev C.handle, domain C.u32, to *C.u32, value func(engine.View, C.u32) int) C.u32 {
	return device(query, dev, to != nil && domain <= clockVideo, func(v engine.View) nvml.Code { return put(to, value(v, domain)) })
}

func boardMax(v engine.View, domain C.u32) int { return maxClock(v.Board.Clocks, domain) }

//export nvmlDeviceGetClockInfo
func nvmlDeviceGetClockInfo(dev C.handle, domain C.u32, to *C.u32) C.u32 {
	return clock("nvmlDeviceGetClockInfo", dev, domain, to, clockNow)
}

//export nvmlDeviceGetMaxClockInfo
func nvmlDeviceGetMaxClockInfo(dev C.handle, domain C.u32, to *C.u32) C.u32 {
	return clock("nvmlDeviceGetMaxClockInfo", dev, domain, to, boardMax)
}

//export nvmlDeviceGetMaxCustomerBoostClock
func nvmlDeviceGetMaxCustomerBoostClock(dev C.handle, domain C.u32, to *C.u32) C.u32 {
	return clock("nvmlDeviceGetMaxCustomerBoostClock", dev, domain, to, boardMax)
}

//export nvmlDeviceGetApplicationsClock
func nvmlDeviceGetApplicationsClock(dev C.handle, domain C.u32, to *C.u32) C.u32 {
	return clock("nvmlDeviceGetApplicationsClock", dev, domain, to, boardMax)
}

//export nvmlDeviceGetDefaultApplicationsClock
func nvmlDeviceGetDefaultApplicationsClock(dev C.handle, domain C.u32, to *C.u32) C.u32 {
	return clock("nvmlDeviceGetDefaultApplicationsClock", dev, domain, to, boardMax)
}

func clocksList(query string, dev C.handle, count, to *C.u32, value func(engine.View) int) C.u32 {
	return device(query, dev, count != nil && (*count == 0 || to != nil), func(v engine.View) nvml.Code {
		room := *count
		*count = 1
		if room < 1 {
			return nvml.InsufficientSize
		}
		return put(to, value(v))
	})
}

//export nvmlDeviceGetSupportedMemoryClocks
func nvmlDeviceGetSupportedMemoryClocks(dev C.handle, count, to *C.u32) C.u32 {
	return clocksList("nvmlDeviceGetSupportedMemoryClocks", dev, count, to, func(v engine.View) int { return v.Board.Clocks.MaxMemory })
}

//export nvmlDeviceGetSupportedGraphicsClocks
func nvmlDeviceGetSupportedGraphicsClocks(dev C.handle, memory C.u32, count, to *C.u32) C.u32 {
	return clocksList("nvmlDeviceGetSupportedGraphicsClocks", dev, count, to, func(v engine.View) int { return v.Board.Clocks.MaxGraphics })
}

func eventReasons(query string, dev C.handle, to *C.u64) C.u32 {
	return device(query, dev, to != nil, func(v engine.View) nvml.Code {
		const idle = 1
		*to = C.u64(v.Slowdowns)
		if v.LoadPercent() == 0 {
			*to |= idle
		}
		return 0
	})
}

//export nvmlDeviceGetCurrentClocksEventReasons
func nvmlDeviceGetCurrentClocksEventReasons(dev C.handle, to *C.u64) C.u32 {
	return eventReasons("nvmlDeviceGetCurrentClocksEventReasons", dev, to)
}

//export nvmlDeviceGetCurrentClocksThrottleReasons
func nvmlDeviceGetCurrentClocksThrottleReasons(dev C.handle, to *C.u64) C.u32 {
	return eventReasons("nvmlDeviceGetCurrentClocksThrottleReasons", dev, to)
}
