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

func byIndex(query string, index C.u32, dev *C.handle) C.u32 {
	return C.u32(func() (code nvml.Code) {
		defer guard(&code)
		s := current()
		if s == nil {
			return nvml.Uninitialized
		}
		slot, ok := s.SlotOf(int(index))
		if dev == nil || !ok {
			return nvml.InvalidArgument
		}
		if _, code := s.Query(query, slot); code != 0 {
			return code
		}
		*dev = handleOf(slot)
		return 0
	}())
}

//export nvmlDeviceGetHandleByIndex
func nvmlDeviceGetHandleByIndex(index C.u32, dev *C.handle) C.u32 {
	return byIndex("nvmlDeviceGetHandleByIndex", index, dev)
}

//export nvmlDeviceGetHandleByIndex_v2
func nvmlDeviceGetHandleByIndex_v2(index C.u32, dev *C.handle) C.u32 {
	return byIndex("nvmlDeviceGetHandleByIndex_v2", index, dev)
}

func find(query string, ok bool, dev *C.handle, match func(*engine.GPU) bool) C.u32 {
	return search(ok, dev, func(s *engine.Session) (int, nvml.Code) { return s.Find(query, match) })
}

func search(ok bool, dev *C.handle, in func(*engine.Session) (int, nvml.Code)) C.u32 {
	return C.u32(func() (code nvml.Code) {
		defer guard(&code)
		s := current()
		if s == nil {
			return nvml.Uninitialized
		}
		if dev == nil || !ok {
			return nvml.InvalidArgument
		}
		slot, code := in(s)
		if code != 0 {
			return code
		}
		*dev = handleOf(slot)
		return 0
	}())
}

//export nvmlDeviceGetHandleByUUID
func nvmlDeviceGetHandleByUUID(uuid *C.char, dev *C.handle) C.u32 {
	return byUUID("nvmlDeviceGetHandleByUUID", uuid != nil, func() string { return C.GoString(uuid) }, dev)
}

//export nvmlDeviceGetHandleByUUIDV
func nvmlDeviceGetHandleByUUIDV(uuid *C.uuidV, dev *C.handle) C.u32 {
	if uuid != nil && !versioned(uuid.version, unsafe.Sizeof(*uuid), 1) && current() != nil {
		return C.u32(argumentVersionMismatch)
	}
	const ascii = 1
	return byUUID("nvmlDeviceGetHandleByUUIDV", uuid != nil && uuid._type == ascii, func() string { return goString(uuid.value[:]) }, dev)
}

//export nvmlDeviceGetHandleBySerial
func nvmlDeviceGetHandleBySerial(serial *C.char, dev *C.handle) C.u32 {
	return find("nvmlDeviceGetHandleBySerial", serial != nil, dev, func(g *engine.GPU) bool { return g.Serial == C.GoString(serial) })
}

func byBusID(query string, busID *C.char, dev *C.handle) C.u32 {
	return search(busID != nil, dev, func(s *engine.Session) (int, nvml.Code) { return s.FindAt(query, C.GoString(busID)) })
}

//export nvmlDeviceGetHandleByPciBusId
func nvmlDeviceGetHandleByPciBusId(busID *C.char, dev *C.handle) C.u32 {
	return byBusID("nvmlDeviceGetHandleByPciBusId", busID, dev)
}

//export nvmlDeviceGetHandleByPciBusId_v2
func nvmlDeviceGetHandleByPciBusId_v2(busID *C.char, dev *C.handle) C.u32 {
	return byBusID("nvmlDeviceGetHandleByPciBusId_v2", busID, dev)
}

func goString(a []C.char) string {
	var b strings.Builder
	for _, c := range a {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}
