// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

// #include "abi.h"
import "C"

import (
	"time"
	"unsafe"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/engine"
)

//export nvmlDeviceGetUtilizationRates
func nvmlDeviceGetUtilizationRates(dev C.handle, u *C.utilizationRates) C.u32 {
	return device("nvmlDeviceGetUtilizationRates", dev, u != nil, func(v engine.View) nvml.Code {
		if v.MIGEnabled {
			return nvml.NotSupported
		}
		u.gpu, u.memory = C.u32(v.LoadPercent()), C.u32(v.MemoryLoadPercent())
		return 0
	})
}

func engineUtilization(query string, dev C.handle, utilization, period *C.u32) C.u32 {
	return device(query, dev, utilization != nil && period != nil, func(v engine.View) nvml.Code {
		if v.MIGEnabled {
			return nvml.NotSupported
		}
		*utilization, *period = 0, 167000
		return 0
	})
}

//export nvmlDeviceGetEncoderUtilization
func nvmlDeviceGetEncoderUtilization(dev C.handle, utilization, period *C.u32) C.u32 {
	return engineUtilization("nvmlDeviceGetEncoderUtilization", dev, utilization, period)
}

//export nvmlDeviceGetDecoderUtilization
func nvmlDeviceGetDecoderUtilization(dev C.handle, utilization, period *C.u32) C.u32 {
	return engineUtilization("nvmlDeviceGetDecoderUtilization", dev, utilization, period)
}

//export nvmlDeviceGetJpgUtilization
func nvmlDeviceGetJpgUtilization(dev C.handle, utilization, period *C.u32) C.u32 {
	return engineUtilization("nvmlDeviceGetJpgUtilization", dev, utilization, period)
}

//export nvmlDeviceGetOfaUtilization
func nvmlDeviceGetOfaUtilization(dev C.handle, utilization, period *C.u32) C.u32 {
	return engineUtilization("nvmlDeviceGetOfaUtilization", dev, utilization, period)
}

//export nvmlDeviceGetTemperature
func nvmlDeviceGetTemperature(dev C.handle, sensor C.u32, to *C.u32) C.u32 {
	const gpu = 0
	return device("nvmlDeviceGetTemperature", dev, to != nil && sensor == gpu, func(v engine.View) nvml.Code {
		return put(to, v.HeatC())
	})
}

//export nvmlDeviceGetTemperatureV
func nvmlDeviceGetTemperatureV(dev C.handle, t *C.temperatureV) C.u32 {
	return device("nvmlDeviceGetTemperatureV", dev, t != nil, func(v engine.View) nvml.Code {
		if !versioned(t.version, unsafe.Sizeof(*t), 1) {
			return argumentVersionMismatch
		}
		if t.sensor != 0 {
			return nvml.InvalidArgument
		}
		t.temperature = C.int(v.HeatC())
		return 0
	})
}

//export nvmlDeviceGetTemperatureThreshold
func nvmlDeviceGetTemperatureThreshold(dev C.handle, kind C.u32, to *C.u32) C.u32 {
	return number("nvmlDeviceGetTemperatureThreshold", dev, to, func(v engine.View) int {
		switch kind {
		case 0:
			return v.Board.ShutdownTempC
		case 1:
			return v.Board.SlowdownTempC
		}
		return -1
	})
}

// All powers are in milliwatts.

//export nvmlDeviceGetPowerUsage
func nvmlDeviceGetPowerUsage(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetPowerUsage", dev, to, func(v engine.View) int { return v.DrawW() * 1000 })
}

//export nvmlDeviceGetPowerManagementLimit
func nvmlDeviceGetPowerManagementLimit(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetPowerManagementLimit", dev, to, func(v engine.View) int { return v.Board.Power.Default * 1000 })
}

//export nvmlDeviceGetPowerManagementDefaultLimit
func nvmlDeviceGetPowerManagementDefaultLimit(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetPowerManagementDefaultLimit", dev, to, func(v engine.View) int { return v.Board.Power.Default * 1000 })
}

//export nvmlDeviceGetEnforcedPowerLimit
func nvmlDeviceGetEnforcedPowerLimit(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetEnforcedPowerLimit", dev, to, func(v engine.View) int { return v.Board.Power.Default * 1000 })
}

//export nvmlDeviceGetPowerManagementMode
func nvmlDeviceGetPowerManagementMode(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetPowerManagementMode", dev, to, func(engine.View) int { return 1 })
}

//export nvmlDeviceGetPowerManagementLimitConstraints
func nvmlDeviceGetPowerManagementLimitConstraints(dev C.handle, low, high *C.u32) C.u32 {
	return device("nvmlDeviceGetPowerManagementLimitConstraints", dev, low != nil && high != nil, func(v engine.View) nvml.Code {
		*low, *high = C.u32(v.Board.Power.Min*1000), C.u32(v.Board.Power.Max*1000)
		return 0
	})
}

//export nvmlDeviceGetTotalEnergyConsumption
func nvmlDeviceGetTotalEnergyConsumption(dev C.handle, to *C.u64) C.u32 {
	return device("nvmlDeviceGetTotalEnergyConsumption", dev, to != nil, func(v engine.View) nvml.Code {
		*to = C.u64(energy(v))
		return 0
	})
}

// energy is in millijoules.
func energy(v engine.View) uint64 { return v.MeterAt(time.Now()).EnergyMJ }

// nvmlDeviceGetViolationStatus returns microseconds of the clock, and nanoseconds of low clocks for a reason.
//
//export nvmlDeviceGetViolationStatus
func nvmlDeviceGetViolationStatus(dev C.handle, policy C.u32, to *C.violationTime) C.u32 {
	const thermal, reliability, total, totalBase = 1, 5, 10, 11
	known := policy <= reliability || policy == total || policy == totalBase
	return device("nvmlDeviceGetViolationStatus", dev, to != nil && known, func(v engine.View) nvml.Code {
		now := time.Now()
		m := v.MeterAt(now)
		sum := uint64(0)
		switch policy {
		case thermal:
			sum = m.SoftwareThermalMS + m.HardwareThermalMS
		case total, totalBase:
			sum = m.SoftwareThermalMS + m.HardwareThermalMS + m.PowerBrakeMS
		}
		*to = C.violationTime{reference: C.u64(now.UnixMicro()), violation: C.u64(sum * 1_000_000)}
		return 0
	})
}

func perfState(query string, dev C.handle, to *C.u32) C.u32 {
	return number(query, dev, to, func(v engine.View) int {
		if v.LoadPercent() > 0 {
			return 0
		}
		return v.Board.IdlePerfState
	})
}

//export nvmlDeviceGetPerformanceState
func nvmlDeviceGetPerformanceState(dev C.handle, to *C.u32) C.u32 {
	return perfState("nvmlDeviceGetPerformanceState", dev, to)
}

//export nvmlDeviceGetPowerState
func nvmlDeviceGetPowerState(dev C.handle, to *C.u32) C.u32 {
	return perfState("nvmlDeviceGetPowerState", dev, to)
}

//export nvmlDeviceGetNumFans
func nvmlDeviceGetNumFans(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetNumFans", dev, to, func(v engine.View) int { return v.Board.Fans })
}
