// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

// #include "abi.h"
// #include <stdlib.h>
import "C"

import (
	"sync"
	"time"
	"unsafe"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/engine"
)

// supportedEvents lists the events of a data-centre board: ECC errors, P-state, critical XID, clock.
const supportedEvents = 0x1f

// eventPoll is the poll interval for lost GPUs.
const eventPoll = 50 * time.Millisecond

// eventSets holds the existing sets. A handle is the address of a byte of C memory.
var eventSets struct {
	sync.Mutex
	slots map[C.handle]map[int]bool
}

//export nvmlEventSetCreate
func nvmlEventSetCreate(set *C.handle) C.u32 {
	return system("nvmlEventSetCreate", set != nil, func(*engine.State) nvml.Code {
		eventSets.Lock()
		defer eventSets.Unlock()
		if eventSets.slots == nil {
			eventSets.slots = map[C.handle]map[int]bool{}
		}
		*set = C.handle(C.malloc(1))
		eventSets.slots[*set] = map[int]bool{}
		return 0
	})
}

//export nvmlEventSetFree
func nvmlEventSetFree(set C.handle) C.u32 {
	return system("nvmlEventSetFree", set != nil, func(*engine.State) nvml.Code {
		eventSets.Lock()
		defer eventSets.Unlock()
		if _, ok := eventSets.slots[set]; !ok {
			return nvml.InvalidArgument
		}
		delete(eventSets.slots, set)
		C.free(unsafe.Pointer(set))
		return 0
	})
}

//export nvmlDeviceGetSupportedEventTypes
func nvmlDeviceGetSupportedEventTypes(dev C.handle, types *C.u64) C.u32 {
	return device("nvmlDeviceGetSupportedEventTypes", dev, types != nil, func(engine.View) nvml.Code {
		*types = supportedEvents
		return 0
	})
}

//export nvmlDeviceRegisterEvents
func nvmlDeviceRegisterEvents(dev C.handle, types C.u64, set C.handle) C.u32 {
	return device("nvmlDeviceRegisterEvents", dev, set != nil && types != 0, func(v engine.View) nvml.Code {
		if types&^supportedEvents != 0 {
			return nvml.NotSupported
		}
		eventSets.Lock()
		defer eventSets.Unlock()
		slots, ok := eventSets.slots[set]
		if !ok {
			return nvml.InvalidArgument
		}
		slots[v.Slot] = true
		return 0
	})
}

//export nvmlEventSetWait
func nvmlEventSetWait(set C.handle, data *C.eventData, timeoutMS C.u32) C.u32 {
	return wait("nvmlEventSetWait", set, data != nil, timeoutMS)
}

//export nvmlEventSetWait_v2
func nvmlEventSetWait_v2(set C.handle, data *C.eventData, timeoutMS C.u32) C.u32 {
	return wait("nvmlEventSetWait_v2", set, data != nil, timeoutMS)
}

// wait returns at the timeout, or when a watched GPU is lost. The simulated boards raise no events.
func wait(query string, set C.handle, ok bool, timeoutMS C.u32) C.u32 {
	return system(query, set != nil && ok, func(*engine.State) nvml.Code {
		deadline := time.Now().Add(time.Duration(timeoutMS) * time.Millisecond)
		for {
			if code := watched(set); code != 0 {
				return code
			}
			left := time.Until(deadline)
			if left <= 0 {
				return nvml.Timeout
			}
			time.Sleep(min(left, eventPoll))
		}
	})
}

func watched(set C.handle) nvml.Code {
	s := current()
	if s == nil {
		return nvml.Uninitialized
	}
	eventSets.Lock()
	defer eventSets.Unlock()
	slots, ok := eventSets.slots[set]
	if !ok {
		return nvml.InvalidArgument
	}
	for slot := range slots {
		if _, code := s.Peer(slot); code != 0 {
			return code
		}
	}
	return 0
}
