// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A few functions of the CUDA driver API, loaded at run time, because the test has no NVIDIA library to link.
// Types by NVIDIA's cuda.h: CUresult, CUdevice and CUdevice_attribute are int, CUdeviceptr is 64 bit.
static int (*init)(unsigned int);
static int (*deviceGet)(int *, int);
static int (*deviceAttribute)(int *, int, int);
static int (*retain)(void **, int);
static int (*setCurrent)(void *);
static int (*memAlloc)(unsigned long long *, size_t);
static int (*memInfo)(size_t *, size_t *);
static int (*moduleLoad)(void **, const void *);
static int (*moduleFunction)(void **, void *, const char *);
static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static int (*synchronize)(void);
static int (*copyBack)(void *, unsigned long long, size_t);
static int (*errorName)(int, const char **);

static int device;
static void *context, *module;

static const char *name(int code) {
	const char *text = NULL;
	if (errorName != NULL && errorName(code, &text) == 0 && text != NULL) {
		return text;
	}
	return "an unknown CUDA error";
}

// Each of these returns 0, or an error whose text is in why.
static int load(char *why, size_t len) {
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (lib == NULL) {
		snprintf(why, len, "%s", dlerror());
		return 1;
	}
	struct { void **at; const char *symbol; } all[] = {
		{(void **)&init, "cuInit"}, {(void **)&deviceGet, "cuDeviceGet"}, {(void **)&deviceAttribute, "cuDeviceGetAttribute"},
		{(void **)&retain, "cuDevicePrimaryCtxRetain"}, {(void **)&setCurrent, "cuCtxSetCurrent"}, {(void **)&memAlloc, "cuMemAlloc_v2"},
		{(void **)&memInfo, "cuMemGetInfo_v2"}, {(void **)&moduleLoad, "cuModuleLoadData"}, {(void **)&moduleFunction, "cuModuleGetFunction"},
		{(void **)&launch, "cuLaunchKernel"}, {(void **)&synchronize, "cuCtxSynchronize"}, {(void **)&copyBack, "cuMemcpyDtoH_v2"},
		{(void **)&errorName, "cuGetErrorName"},
	};
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		if ((*all[i].at = dlsym(lib, all[i].symbol)) == NULL) {
			snprintf(why, len, "libcuda.so.1 has no %s", all[i].symbol);
			return 1;
		}
	}
	return 0;
}

static int begin(int *multiprocessors, unsigned long long *free_, unsigned long long *total, char *why, size_t len) {
	int code;
	const char *at = "cuInit";
	size_t f = 0, t = 0;
	if ((code = init(0)) != 0) goto failed;
	at = "cuDeviceGet";
	if ((code = deviceGet(&device, 0)) != 0) goto failed;
	at = "cuDevicePrimaryCtxRetain";
	if ((code = retain(&context, device)) != 0) goto failed;
	at = "cuCtxSetCurrent";
	if ((code = setCurrent(context)) != 0) goto failed;
	at = "cuDeviceGetAttribute";
	if ((code = deviceAttribute(multiprocessors, 16, device)) != 0) goto failed; // MULTIPROCESSOR_COUNT
	at = "cuMemGetInfo";
	if ((code = memInfo(&f, &t)) != 0) goto failed;
	*free_ = f, *total = t;
	return 0;
failed:
	snprintf(why, len, "%s: %s (%d)", at, name(code), code);
	return code;
}

static long long allocate(long long step, long long most) {
	long long had = 0;
	unsigned long long at;
	setCurrent(context);
	while (had < most && memAlloc(&at, (size_t)step) == 0) {
		had += step;
	}
	return had;
}

// run runs a kernel of the module's text with a buffer and a number, and returns the first word of the buffer.
static int run(const char *ptx, const char *kernel, unsigned long long number, unsigned int *word, char *why, size_t len) {
	int code = 0;
	const char *at = "cuCtxSetCurrent";
	void *function;
	unsigned long long buffer = 0;
	if ((code = setCurrent(context)) != 0) goto failed;
	at = "cuModuleLoadData";
	if (module == NULL && (code = moduleLoad(&module, ptx)) != 0) goto failed;
	at = "cuModuleGetFunction";
	if ((code = moduleFunction(&function, module, kernel)) != 0) goto failed;
	at = "cuMemAlloc";
	if ((code = memAlloc(&buffer, 4096)) != 0) goto failed;
	void *args[] = {&buffer, &number};
	at = "cuLaunchKernel";
	if ((code = launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, args, NULL)) != 0) goto failed;
	at = "cuCtxSynchronize";
	if ((code = synchronize()) != 0) goto failed;
	at = "cuMemcpyDtoH";
	if ((code = copyBack(word, buffer, sizeof(*word))) != 0) goto failed;
	return 0;
failed:
	snprintf(why, len, "%s: %s (%d)", at, name(code), code);
	return code;
}
*/
import "C"

import (
	"errors"
	"unsafe"
)

// kernels has three kernels: add writes its number, spin runs for its number of clock cycles, and fault writes to
// address 0.
const kernels = `
.version 6.0
.target sm_60
.address_size 64
.visible .entry add(.param .u64 buffer, .param .u64 number) {
	.reg .u64 %a; .reg .u64 %n; .reg .u32 %w;
	ld.param.u64 %a, [buffer]; ld.param.u64 %n, [number];
	cvta.to.global.u64 %a, %a; cvt.u32.u64 %w, %n;
	st.global.u32 [%a], %w;
	ret;
}
.visible .entry spin(.param .u64 buffer, .param .u64 number) {
	.reg .u64 %a; .reg .u64 %n; .reg .u64 %t; .reg .u64 %s; .reg .pred %p;
	ld.param.u64 %a, [buffer]; ld.param.u64 %n, [number];
	cvta.to.global.u64 %a, %a;
	mov.u64 %s, %clock64;
again:
	mov.u64 %t, %clock64;
	sub.u64 %t, %t, %s;
	setp.lt.u64 %p, %t, %n;
	@%p bra again;
	st.global.u32 [%a], 1;
	ret;
}
.visible .entry fault(.param .u64 buffer, .param .u64 number) {
	.reg .u64 %z;
	mov.u64 %z, 0;
	st.global.u32 [%z], 1;
	ret;
}
`

// cudaBegin makes a context on the first device. Memory is in bytes.
func cudaBegin() (multiprocessors int, free, total uint64, err error) {
	why := (*C.char)(C.calloc(1, 256))
	defer C.free(unsafe.Pointer(why))
	var sms C.int
	var f, t C.ulonglong
	if C.load(why, 256) != 0 || C.begin(&sms, &f, &t, why, 256) != 0 {
		return 0, 0, 0, errors.New(C.GoString(why))
	}
	return int(sms), uint64(f), uint64(t), nil
}

// cudaAllocate takes memory in steps of 32 MiB until there is no more, and returns its amount in MiB.
func cudaAllocate(mostMiB int64) int64 {
	return int64(C.allocate(32<<20, C.longlong(mostMiB<<20))) >> 20
}

// cudaRun runs one of the kernels and waits for it.
func cudaRun(kernel string, number uint64) (uint32, error) {
	why, text, name := (*C.char)(C.calloc(1, 256)), C.CString(kernels), C.CString(kernel)
	defer C.free(unsafe.Pointer(why))
	defer C.free(unsafe.Pointer(text))
	defer C.free(unsafe.Pointer(name))
	var word C.uint
	if C.run(text, name, C.ulonglong(number), &word, why, 256) != 0 {
		return 0, errors.New(C.GoString(why))
	}
	return uint32(word), nil
}
