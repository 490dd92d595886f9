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

// eventSets holds the existing sets. A handle is the address of a byte of C memory.
var eventSets struct {
	sync.Mutex
	all map[C.handle]*engine.EventSet
}

func eventSetOf(h C.handle) (*engine.EventSet, bool) {
	eventSets.Lock()
	defer eventSets.Unlock()
	set, ok := eventSets.all[h]
	return set, ok
}

//export nvmlEventSetCreate
func nvmlEventSetCreate(h *C.handle) C.u32 {
	return system("nvmlEventSetCreate", h != nil, func(*engine.State) nvml.Code {
		set, code := current().NewEventSet()
		if code != 0 {
			return code
		}
		eventSets.Lock()
		defer eventSets.Unlock()
		if eventSets.all == nil {
			eventSets.all = map[C.handle]*engine.EventSet{}
		}
		*h = C.handle(C.malloc(1))
		eventSets.all[*h] = set
		return 0
	})
}

//export nvmlEventSetFree
func nvmlEventSetFree(h C.handle) C.u32 {
	return system("nvmlEventSetFree", h != nil, func(*engine.State) nvml.Code {
		eventSets.Lock()
		defer eventSets.Unlock()
		set, ok := eventSets.all[h]
		if !ok {
			return nvml.InvalidArgument
		}
		set.Free()
		delete(eventSets.all, h)
		C.free(unsafe.Pointer(h))
		return 0
	})
}

//export nvmlDeviceGetSupportedEventTypes
func nvmlDeviceGetSupportedEventTypes(dev C.handle, types *C.u64) C.u32 {
	return device("nvmlDeviceGetSupportedEventTypes", dev, types != nil, func(engine.View) nvml.Code {
		*types = engine.EventsSupported
		return 0
	})
}

//export nvmlDeviceRegisterEvents
func nvmlDeviceRegisterEvents(dev C.handle, types C.u64, h C.handle) C.u32 {
	set, ok := eventSetOf(h)
	return device("nvmlDeviceRegisterEvents", dev, ok, func(v engine.View) nvml.Code { return set.Register(v, uint64(types)) })
}

//export nvmlEventSetWait
func nvmlEventSetWait(h C.handle, data *C.eventData, timeoutMS C.u32) C.u32 {
	return wait("nvmlEventSetWait", h, data, timeoutMS)
}

//export nvmlEventSetWait_v2
func nvmlEventSetWait_v2(h C.handle, data *C.eventData, timeoutMS C.u32) C.u32 {
	return wait("nvmlEventSetWait_v2", h, data, timeoutMS)
}

func wait(query string, h C.handle, data *C.eventData, timeoutMS C.u32) C.u32 {
	set, ok := eventSetOf(h)
	return system(query, ok && data != nil, func(*engine.State) nvml.Code {
		e, code := set.Wait(time.Duration(timeoutMS) * time.Millisecond)
		if code == 0 {
			*data = C.eventData{
				device: handleOf(e.Slot), _type: C.u64(e.Type), data: C.u64(e.Data),
				gpuInstanceId: C.u32(int32(e.GPUInstance)), computeInstanceId: C.u32(int32(e.ComputeInstance)),
			}
		}
		return code
	})
}
