// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build hardware && cgo

package hardware

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

// The functions of the CUDA driver API that an allocation takes, looked up by name: nothing is linked to.
typedef int (*init_t)(unsigned int);
typedef int (*get_t)(int *, int);
typedef int (*retain_t)(void **, int);
typedef int (*set_t)(void *);
typedef int (*alloc_t)(unsigned long long *, size_t);

// allocate takes memory of device 0 in steps until it is refused, up to a limit. It gives what it had, or -1 and why not.
static long long allocate(long long step, long long most, char *why, size_t len) {
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (lib == NULL) {
		snprintf(why, len, "%s", dlerror());
		return -1;
	}
	init_t init = (init_t)dlsym(lib, "cuInit");
	get_t get = (get_t)dlsym(lib, "cuDeviceGet");
	retain_t retain = (retain_t)dlsym(lib, "cuDevicePrimaryCtxRetain");
	set_t set = (set_t)dlsym(lib, "cuCtxSetCurrent");
	alloc_t alloc = (alloc_t)dlsym(lib, "cuMemAlloc_v2");
	if (!init || !get || !retain || !set || !alloc) {
		snprintf(why, len, "libcuda.so.1 lacks a function");
		return -1;
	}
	int device, code;
	void *context;
	if ((code = init(0)) != 0 || (code = get(&device, 0)) != 0 || (code = retain(&context, device)) != 0 || (code = set(context)) != 0) {
		snprintf(why, len, "CUDA error %d", code);
		return -1;
	}
	long long had = 0;
	unsigned long long at;
	while (had < most && alloc(&at, (size_t)step) == 0) {
		had += step;
	}
	return had;
}
*/
import "C"

import (
	"errors"
	"unsafe"
)

// allocate returns how much memory, in MiB, this process can allocate on the first GPU of CUDA, up to most.
func allocate(most int64) (int64, error) {
	const step = 64 << 20
	why := (*C.char)(C.calloc(1, 256))
	defer C.free(unsafe.Pointer(why))
	had := int64(C.allocate(step, C.longlong(most<<20), why, 256))
	if had < 0 {
		return 0, errors.New(C.GoString(why))
	}
	return had >> 20, nil
}
