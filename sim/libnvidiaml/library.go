// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

// #cgo CFLAGS: -Wall -Werror
// #cgo LDFLAGS: -ldl
// #include "abi.h"
// #include <stdlib.h>
import "C"

import (
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"unsafe"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/driverroot"
	"gpu-dra-driver/sim/engine"
)

func main() {}

func init() {
	// This Go runtime's heap counts against the host process's memory budget.
	debug.SetGCPercent(20)
	runtime.GOMAXPROCS(1)
}

const argumentVersionMismatch nvml.Code = 25

// versionMask is the size part of a versioned struct's version.
const versionMask = 0x00ffffff

var library struct {
	sync.Mutex
	inits   int
	session *engine.Session
	engine  *engine.Engine
	root    string
}

func machine() *engine.Engine {
	root := C.GoString(C.gpusimEnv(rootVariable))
	if root == "" {
		own := C.GoString(C.gpusimOwnPath())
		if abs, err := filepath.Abs(own); err == nil {
			own = abs
		}
		root = filepath.Dir(own)
		for _, part := range []string{"x86_64-linux-gnu", "lib", "usr"} {
			if filepath.Base(root) == part {
				root = filepath.Dir(root)
			}
		}
	}
	if library.engine == nil || library.root != root {
		library.engine, library.root = engine.Open(root, driverroot.Follow(root)), root
	}
	return library.engine
}

var rootVariable, visibleVariable = C.CString("GPUSIM_ROOT"), C.CString("GPUSIM_VISIBLE")

func start(query string) (code nvml.Code) {
	defer guard(&code)
	library.Lock()
	defer library.Unlock()
	if library.inits == 0 {
		s, code := machine().Init(query)
		if code != 0 {
			return code
		}
		library.session = s
		if visible := C.GoString(C.gpusimEnv(visibleVariable)); visible != "" {
			s.Restrict(strings.Split(visible, ","))
		}
	}
	library.inits++
	return 0
}

func current() *engine.Session {
	library.Lock()
	defer library.Unlock()
	return library.session
}

func guard(code *nvml.Code) {
	if recover() != nil {
		*code = nvml.Unknown
	}
}

// system runs a query without a GPU. ok is false if an argument is NULL.
func system(query string, ok bool, answer func(*engine.State) nvml.Code) C.u32 {
	return C.u32(func() (code nvml.Code) {
		defer guard(&code)
		s := current()
		if s == nil {
			return nvml.Uninitialized
		}
		if !ok {
			return nvml.InvalidArgument
		}
		st, code := s.Ask(query)
		if code != 0 {
			return code
		}
		return answer(st)
	}())
}

// device runs a query of a GPU. ok is false if an argument is NULL.
func device(query string, dev C.handle, ok bool, answer func(engine.View) nvml.Code) C.u32 {
	return C.u32(func() (code nvml.Code) {
		defer guard(&code)
		s := current()
		if s == nil {
			return nvml.Uninitialized
		}
		slot, known := slotOf(dev)
		if !ok || !known {
			if _, mig := partOf(dev, migDevice); ok && mig {
				return nvml.NotSupported // only whole GPUs support the query
			}
			return nvml.InvalidArgument
		}
		v, code := s.Query(query, slot)
		if code != 0 {
			return code
		}
		return answer(v)
	}())
}

func slotOf(dev C.handle) (int, bool) {
	base := uintptr(unsafe.Pointer(&C.gpusimSlots[0]))
	at := uintptr(dev)
	if at < base || at >= base+uintptr(len(C.gpusimSlots)) {
		return 0, false
	}
	return int(at - base), true
}

func handleOf(slot int) C.handle { return C.handle(unsafe.Pointer(&C.gpusimSlots[slot])) }

// putString writes a NUL-terminated string into a buffer of length bytes, or nothing.
func putString(to *C.char, length C.u32, s string) nvml.Code {
	if uint64(length) < uint64(len(s))+1 {
		return nvml.InsufficientSize
	}
	buf := unsafe.Slice((*byte)(unsafe.Pointer(to)), len(s)+1)
	copy(buf, s)
	buf[len(s)] = 0
	return 0
}

// putArray fills a fixed char array.
func putArray(to []C.char, s string) {
	for i := range to {
		to[i] = 0
	}
	for i := 0; i < len(s) && i < len(to)-1; i++ {
		to[i] = C.char(s[i])
	}
}

func put(to *C.u32, v int) nvml.Code { *to = C.u32(v); return 0 }

// versioned checks the leading word of a versioned structure.
func versioned(got C.u32, size uintptr, version uint32) bool {
	return uint32(got) == uint32(size)&versionMask|version<<24
}

//export gpusimUnsupported
func gpusimUnsupported(name *C.char) C.u32 {
	return system(C.GoString(name), true, func(*engine.State) nvml.Code { return nvml.NotSupported })
}

//export nvmlErrorString
func nvmlErrorString(code C.u32) *C.char {
	return (*C.char)(unsafe.Pointer(C.gpusimErrorString(C.int(code))))
}

//export nvmlInit
func nvmlInit() C.u32 { return C.u32(start("nvmlInit")) }

//export nvmlInit_v2
func nvmlInit_v2() C.u32 { return C.u32(start("nvmlInit_v2")) }

//export nvmlInitWithFlags
func nvmlInitWithFlags(flags C.u32) C.u32 {
	_ = flags // NO_GPUS and NO_ATTACH only save work that the simulator does not do
	return C.u32(start("nvmlInitWithFlags"))
}

//export nvmlShutdown
func nvmlShutdown() C.u32 {
	library.Lock()
	defer library.Unlock()
	if library.inits == 0 {
		return C.u32(nvml.Uninitialized)
	}
	library.inits--
	if library.inits == 0 {
		library.session = nil
	}
	return 0
}
