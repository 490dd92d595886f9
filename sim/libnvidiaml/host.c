// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

#include "abi.h"

char gpusimSlots[64];
char gpusimParts[GPUSIM_PARTS];

// The path this library was loaded from, as the loader knows it.
const char *gpusimOwnPath(void) {
	Dl_info info;
	return dladdr((void *)gpusimSlots, &info) && info.dli_fname ? info.dli_fname : "";
}

// The process's environment as it is now: the Go runtime in here keeps the copy of its start.
const char *gpusimEnv(const char *name) {
	const char *v = getenv(name);
	return v ? v : "";
}

// Reports whether the dynamic linker finds CUDA's library, which NVML asks for CUDA's version.
int gpusimHasCUDA(void) {
	void *lib = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
	return lib != NULL && dlclose(lib) == 0;
}

static const struct { int code; const char *text; } texts[] = {
	{0, "Success"}, {1, "Uninitialized"}, {2, "Invalid Argument"}, {3, "Not Supported"},
	{4, "Insufficient Permissions"}, {5, "Already Initialized"}, {6, "Not Found"}, {7, "Insufficient Size"},
	{8, "Insufficient External Power"}, {9, "Driver Not Loaded"}, {10, "Timeout"}, {11, "Interrupt Request Issue"},
	{12, "NVML Shared Library Not Found"}, {13, "Function Not Found"}, {14, "Corrupted infoROM"}, {15, "GPU is lost"},
	{16, "GPU requires restart"}, {17, "The operating system has blocked the request."},
	{18, "RM has detected an NVML/RM version mismatch."}, {19, "In use by another client"}, {20, "Insufficient Memory"},
	{21, "No data"}, {22, "VGPU ECC Not Supported"}, {23, "Insufficient Resources"}, {24, "Frequency Not Supported"},
	{25, "Argument Version Mismatch"}, {26, "Deprecated"}, {27, "Not Ready"}, {28, "GPU Not Found"}, {29, "Invalid State"},
};

const char *gpusimErrorString(int code) {
	for (unsigned i = 0; i < sizeof texts / sizeof *texts; i++)
		if (texts[i].code == code)
			return texts[i].text;
	return "Unknown Error";
}
