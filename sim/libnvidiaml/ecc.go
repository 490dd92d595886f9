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

// uncorrected is nvml.h's type of errors that ECC detects and cannot correct.
const uncorrected = 1

// eccErrors also answers for a MIG device, to which the driver attributes no error.
func eccErrors(query string, dev C.handle, errorType C.u32, to *C.u64, ok bool) C.u32 {
	whole := func(v engine.View) nvml.Code {
		field := uint32(engine.FieldCorrectable)
		if errorType == uncorrected {
			field = engine.FieldUncorrectable
		}
		n, code := v.HealthField(field)
		if code == 0 {
			*to = C.u64(n)
		}
		return code
	}
	return either(query, dev, ok && to != nil && errorType <= uncorrected, whole, noErrors(to))
}

func noErrors(to *C.u64) func(found) nvml.Code {
	return func(f found) nvml.Code {
		if !f.Board.ECC {
			return nvml.NotSupported
		}
		*to = 0
		return 0
	}
}

//export nvmlDeviceGetTotalEccErrors
func nvmlDeviceGetTotalEccErrors(dev C.handle, errorType, counter C.u32, to *C.u64) C.u32 {
	return eccErrors("nvmlDeviceGetTotalEccErrors", dev, errorType, to, counter <= 1)
}

// nvmlDeviceGetMemoryErrorCounter counts all errors as those of device memory.
//
//export nvmlDeviceGetMemoryErrorCounter
func nvmlDeviceGetMemoryErrorCounter(dev C.handle, errorType, counter, location C.u32, to *C.u64) C.u32 {
	const query, deviceMemory, locations = "nvmlDeviceGetMemoryErrorCounter", 2, 9
	if location == deviceMemory {
		return eccErrors(query, dev, errorType, to, counter <= 1)
	}
	whole := func(v engine.View) nvml.Code { return noErrors(to)(found{View: v}) }
	return either(query, dev, to != nil && errorType <= uncorrected && counter <= 1 && location < locations, whole, noErrors(to))
}

//export nvmlDeviceGetRemappedRows
func nvmlDeviceGetRemappedRows(dev C.handle, corrected, uncorrected, pending, failed *C.u32) C.u32 {
	ok := corrected != nil && uncorrected != nil && pending != nil && failed != nil
	return device("nvmlDeviceGetRemappedRows", dev, ok, func(v engine.View) nvml.Code {
		waits, code := v.HealthField(engine.FieldRemapPending)
		if code != 0 {
			return code
		}
		fails, _ := v.HealthField(engine.FieldRemapFailed)
		*corrected, *uncorrected, *pending, *failed = 0, C.u32(v.RemappedRows), C.u32(waits), C.u32(fails)
		return 0
	})
}

// nvmlDeviceGetRowRemapperHistogram counts banks of memory by their free rows. Each replaced row is in another bank.
//
//export nvmlDeviceGetRowRemapperHistogram
func nvmlDeviceGetRowRemapperHistogram(dev C.handle, to *C.rowRemapHistogram) C.u32 {
	const banks = 640
	return device("nvmlDeviceGetRowRemapperHistogram", dev, to != nil, func(v engine.View) nvml.Code {
		fails, code := v.HealthField(engine.FieldRemapFailed)
		if code != 0 {
			return code
		}
		used := min(v.RemappedRows, banks-1)
		*to = C.rowRemapHistogram{max: C.u32(banks - used - int(fails)), high: C.u32(used), none: C.u32(fails)}
		return 0
	})
}

//export nvmlDeviceGetRepairStatus
func nvmlDeviceGetRepairStatus(dev C.handle, status *C.repairStatus) C.u32 {
	return device("nvmlDeviceGetRepairStatus", dev, status != nil, func(v engine.View) nvml.Code {
		if !versioned(status.version, unsafe.Sizeof(*status), 1) {
			return argumentVersionMismatch
		}
		if v.Board.Architecture < engine.RemapArchitecture {
			return nvml.NotSupported
		}
		status.channelPending, status.tpcPending = 0, 0
		return 0
	})
}

//export nvmlDeviceGetSramEccErrorStatus
func nvmlDeviceGetSramEccErrorStatus(dev C.handle, status *C.sramErrors) C.u32 {
	return device("nvmlDeviceGetSramEccErrorStatus", dev, status != nil, func(v engine.View) nvml.Code {
		if !versioned(status.version, unsafe.Sizeof(*status), 1) {
			return argumentVersionMismatch
		}
		if v.Board.Architecture < engine.RemapArchitecture || !v.Board.ECC {
			return nvml.NotSupported
		}
		*status = C.sramErrors{version: status.version, thresholdExceeded: C.u32(flag(v.SRAMThreshold))}
		return 0
	})
}

//export nvmlDeviceGetUnrepairableMemoryFlag_v1
func nvmlDeviceGetUnrepairableMemoryFlag_v1(dev C.handle, to *C.u32) C.u32 {
	return number("nvmlDeviceGetUnrepairableMemoryFlag_v1", dev, to, func(v engine.View) int { return flag(v.UnrepairableMemory) })
}
