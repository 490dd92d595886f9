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
	fieldCorrectableAll    = 5 // since the board was made
	fieldUncorrectableAll  = 6
	fieldViolationFirst    = 74 // times of low clocks, by reason
	fieldViolationThermal  = 75
	fieldViolationClocks   = 80
	fieldViolationLast     = 81
	fieldMemoryTemperature = 82
	fieldTotalEnergy       = 83
	fieldNVLinkCount       = 91
	fieldPCIeReplays       = 94
	fieldPCIeRollovers     = 95
	fieldRemoteLink        = 146
	fieldSwitchLinks       = 147
	fieldPCIeRecoveries    = 169
	fieldPCIeFirst         = 173 // counters of PCIe errors
	fieldPCIeLast          = 183
	fieldResetFreeMIG      = 184
	fieldPowerAverage      = 185
	fieldPowerInstant      = 186
	fieldPowerMin          = 187
	fieldPowerMax          = 188
	fieldPowerDefault      = 189
	fieldPowerCurrent      = 190
	fieldEnergy            = 191
	fieldPowerRequested    = 192
	fieldPCIeSent          = 197
	fieldPCIeReceived      = 198
	fieldMIGQueries        = 199
	fieldReset             = 226
	fieldDrainReset        = 227
	fieldSoftwareThermal   = 269
	fieldHardwareThermal   = 270
	fieldPowerBrake        = 271

	valueDouble    = 0
	valueUint      = 1
	valueULongLong = 3
)

//export nvmlDeviceGetFieldValues
func nvmlDeviceGetFieldValues(dev C.handle, count C.int, values *C.fieldValue) C.u32 {
	const most = 4096
	return device("nvmlDeviceGetFieldValues", dev, values != nil && count > 0 && count <= most, func(v engine.View) nvml.Code {
		now := time.Now()
		for i := range unsafe.Slice(values, count) {
			f := &unsafe.Slice(values, count)[i]
			value, kind, code := fieldOf(v, uint32(f.fieldId), uint32(f.scopeId), now)
			if fault := v.FieldFault(uint32(f.fieldId)); fault != 0 {
				code = fault
			}
			f.timestamp, f.latencyUsec, f.value, f.valueType, f.code = C.longlong(now.UnixMicro()), 0, C.u64(value), C.u32(kind), C.u32(code)
		}
		return 0
	})
}

func fieldOf(v engine.View, id, scope uint32, now time.Time) (value uint64, kind int, code nvml.Code) {
	m := v.MeterAt(now)
	const reset, drainReset = 1, 4
	b := v.Board
	number := func(n int) (uint64, int, nvml.Code) { return uint64(n), valueUint, 0 }
	// Times are in nanoseconds.
	elapsed := func(ms uint64) (uint64, int, nvml.Code) { return ms * 1_000_000, valueULongLong, 0 }
	switch {
	case unknownField(id):
		return 0, 0, nvml.InvalidArgument
	case id == fieldECCCurrent || id == fieldECCPending:
		return uint64(flag(b.ECC)), valueULongLong, 0
	case id == fieldMemoryTemperature && b.MemoryIdleTemp > 0:
		return number(b.MemoryIdleTemp)
	case id == fieldTotalEnergy || id == fieldEnergy:
		return m.EnergyMJ, valueULongLong, 0
	case id == fieldNVLinkCount && b.NVLinks > 0:
		return number(b.NVLinks)
	case id == fieldPCIeReplays || id == fieldPCIeRollovers || id == fieldPCIeRecoveries || id >= fieldPCIeFirst && id <= fieldPCIeLast:
		return number(0)
	case id == fieldPCIeSent: // These two have 32 bits, and wrap.
		return uint64(uint32(v.TrafficAt(now).PCIeSent)), valueUint, 0
	case id == fieldPCIeReceived:
		return uint64(uint32(v.TrafficAt(now).PCIeReceived)), valueUint, 0
	case id == fieldViolationThermal:
		return elapsed(m.SoftwareThermalMS + m.HardwareThermalMS)
	case id == fieldViolationClocks || id == fieldViolationLast:
		return elapsed(m.SoftwareThermalMS + m.HardwareThermalMS + m.PowerBrakeMS)
	case id >= fieldViolationFirst && id <= fieldViolationLast:
		return elapsed(0)
	case id == fieldMIGQueries:
		return number(flag(b.MIGCapable))
	case id == fieldResetFreeMIG:
		return number(flag(b.MIG != nil && b.MIG.ResetFree))
	case id == fieldPowerAverage || id == fieldPowerInstant:
		return number(v.DrawW() * 1000)
	case id == fieldPowerMin:
		return number(b.Power.Min * 1000)
	case id == fieldPowerMax:
		return number(b.Power.Max * 1000)
	case id == fieldPowerDefault || id == fieldPowerCurrent || id == fieldPowerRequested:
		return number(b.Power.Default * 1000)
	case id == fieldReset:
		return number(flag(v.Recovery == reset))
	case id == fieldDrainReset:
		return number(flag(v.Recovery == drainReset))
	case id == fieldSoftwareThermal:
		return elapsed(m.SoftwareThermalMS)
	case id == fieldHardwareThermal:
		return elapsed(m.HardwareThermalMS)
	case id == fieldPowerBrake:
		return elapsed(m.PowerBrakeMS)
	case id == fieldCorrectableAll || id == fieldUncorrectableAll:
		value, code = v.HealthField(id - fieldCorrectableAll + engine.FieldCorrectable)
		return value, valueULongLong, code
	case id == engine.FieldCorrectable || id == engine.FieldUncorrectable || id >= engine.FieldRemappedCor && id <= engine.FieldRemapFailed:
		value, code = v.HealthField(id)
		return value, valueULongLong, code
	case id == fieldSwitchLinks && b.NVLinks == 0:
		return 0, valueDouble, 0 // The driver leaves the value as it is.
	case id == fieldSwitchLinks:
		return number(b.NVLinks * flag(len(v.Profile.Wires) == 0))
	}
	if value, kind, code := linkField(v, id, scope, now); code != nvml.NotFound {
		return value, kind, code
	}
	value, code = v.HealthField(id)
	return value, valueUint, code
}

// unknownField reports that a driver of branch 580 does not know the field: newer headers have it.
func unknownField(id uint32) bool {
	const edppMultiplier, rawErrors, rawBER, last = 274, 289, 293, 295
	return id == edppMultiplier || id >= rawErrors && id <= rawBER || id > last
}

// isLinkCounter reports whether the field is a counter of a link, and of errors. NVLink 5 has other ones than earlier
// versions.
func isLinkCounter(id uint32, blackwell bool) (counter, errors bool) {
	const throughput, raw, replay, crc, packets, malformed, failed = 138, 141, 161, 163, 201, 206, 214
	switch {
	case id >= throughput && id <= raw:
		return true, false
	case id >= replay && id <= crc:
		return !blackwell, true
	case id >= packets && id <= failed:
		return blackwell, id >= malformed
	}
	return false, false
}

// linkField returns a field of the link that the scope names. It returns NotFound for other fields.
func linkField(v engine.View, id, scope uint32, now time.Time) (uint64, int, nvml.Code) {
	const allLinks, speed, state, lastThroughput, firstNVLink5, lastNVLink5, replay = 0xffffffff, 164, 165, 141, 201, 214, 161
	const sentBytes, receivedBytes = 202, 204
	const blackwell = 10
	counter, errors := isLinkCounter(id, v.Board.Architecture >= blackwell)
	single := id == speed || id == state || id == fieldRemoteLink
	switch {
	case !counter && !single && (id >= firstNVLink5 && id <= lastNVLink5 || id >= replay && id < speed):
		return 0, 0, nvml.NotSupported
	case !counter && !single:
		return 0, 0, nvml.NotFound
	case v.Board.NVLinks == 0 || v.MIGEnabled && single:
		return 0, 0, nvml.NotSupported
	case scope == allLinks && id <= lastThroughput:
		return v.TrafficAt(now).NVLink >> 10, valueULongLong, 0 // KiB
	case scope >= uint32(v.Board.NVLinks):
		return 0, 0, nvml.InvalidArgument
	}
	links := v.NVLinks(v.GPU)
	up := int(scope) < len(links) && links[scope].Up
	switch {
	case id == state:
		return uint64(flag(up)), valueUint, 0
	case id == fieldRemoteLink:
		return uint64(scope), valueUint, 0
	case id == speed:
		return uint64(linkSpeed[v.Board.NVLinkVersion] * flag(up)), valueUint, 0
	case errors:
		return v.LinkErrorsOf(int(scope)), valueULongLong, 0
	case id <= lastThroughput:
		return v.TrafficAt(now).NVLink >> 10 / uint64(v.Board.NVLinks), valueULongLong, 0
	case id == sentBytes || id == receivedBytes:
		return v.TrafficAt(now).NVLink / uint64(v.Board.NVLinks), valueULongLong, 0
	}
	return 0, valueULongLong, 0
}

// linkSpeed is in MB/s, by the version of NVLink.
var linkSpeed = map[int]int{2: 25781, 3: 25000, 4: 26562, 5: 53125}
