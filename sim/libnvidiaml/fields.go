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

// Field IDs and value types of nvml.h.
const (
	fieldECCCurrent        = 1
	fieldECCPending        = 2
	fieldMemoryTemperature = 82
	fieldTotalEnergy       = 83
	fieldNVLinkCount       = 91
	fieldPCIeReplays       = 94
	fieldPowerAverage      = 185
	fieldPowerInstant      = 186
	fieldPowerMin          = 187
	fieldPowerMax          = 188
	fieldPowerDefault      = 189
	fieldPowerCurrent      = 190
	fieldPowerRequested    = 192

	valueUint      = 1
	valueULongLong = 3
)

//export nvmlDeviceGetFieldValues
func nvmlDeviceGetFieldValues(dev C.handle, count C.int, values *C.fieldValue) C.u32 {
	const most = 4096
	return device("nvmlDeviceGetFieldValues", dev, values != nil && count > 0 && count <= most, func(v engine.View) nvml.Code {
		now := C.longlong(time.Now().UnixMicro())
		for i := range unsafe.Slice(values, count) {
			f := &unsafe.Slice(values, count)[i]
			value, kind, code := fieldOf(v, uint32(f.fieldId))
			f.timestamp, f.latencyUsec, f.value, f.valueType, f.code = now, 0, C.u64(value), C.u32(kind), C.u32(code)
		}
		return 0
	})
}

func fieldOf(v engine.View, id uint32) (value uint64, kind int, code nvml.Code) {
	b := v.Board
	number := func(n int) (uint64, int, nvml.Code) { return uint64(n), valueUint, 0 }
	switch id {
	case fieldECCCurrent, fieldECCPending:
		return number(flag(b.ECC))
	case fieldMemoryTemperature:
		if b.MemoryIdleTemp > 0 {
			return number(b.MemoryIdleTemp)
		}
	case fieldTotalEnergy:
		return energy(v), valueULongLong, 0
	case fieldNVLinkCount:
		return number(b.NVLinks)
	case fieldPCIeReplays:
		return number(0)
	case fieldPowerAverage, fieldPowerInstant:
		return number(v.PowerW * 1000)
	case fieldPowerMin:
		return number(b.Power.Min * 1000)
	case fieldPowerMax:
		return number(b.Power.Max * 1000)
	case fieldPowerDefault, fieldPowerCurrent, fieldPowerRequested:
		return number(b.Power.Default * 1000)
	case engine.FieldRemapPending, engine.FieldRemapFailed, engine.FieldRecoveryAction:
		value, code = v.HealthField(id)
		return value, valueUint, code
	case engine.FieldCorrectable, engine.FieldUncorrectable:
		value, code = v.HealthField(id)
		return value, valueULongLong, code
	}
	return 0, 0, nvml.NotSupported
}

//export nvmlGpmQueryDeviceSupport
func nvmlGpmQueryDeviceSupport(dev C.handle, support *C.gpmSupport) C.u32 {
	return device("nvmlGpmQueryDeviceSupport", dev, support != nil, func(engine.View) nvml.Code {
		support.supported = 0
		return 0
	})
}
