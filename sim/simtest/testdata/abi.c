// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// A C client that does what it should not: usage abi LIBRARY SCENE. Exits 1 and says what went wrong.

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned int u32;
typedef unsigned long long u64;

static void *library;
static int failures;

static void *symbol(const char *name) {
	void *p = dlsym(library, name);
	if (!p) {
		printf("no symbol %s\n", name);
		exit(1);
	}
	return p;
}

#define CALL(name, types, ...) ((u32(*) types)symbol(#name))(__VA_ARGS__)
#define WANT(code, call)                                                        \
	do {                                                                        \
		u32 got = (call);                                                       \
		if (got != (code)) {                                                    \
			printf("line %d: %s answers %u, want %u\n", __LINE__, #call, got, code); \
			failures++;                                                         \
		}                                                                       \
	} while (0)

enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, IN_USE = 19, INSUFFICIENT_RESOURCES = 23, VERSION_MISMATCH = 25, UNKNOWN = 999 };

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void arguments(void) {
	void *dev = NULL, *set = NULL;
	u32 n = 0;
	char text[96];
	struct { u32 version; u64 total, reserved, free, used; } memory = {0};
	struct { void *device; u64 type, data; u32 gi, ci; } event;
	u32 processes[2];

	WANT(UNINITIALIZED, CALL(nvmlDeviceGetCount_v2, (u32 *), &n));
	WANT(UNINITIALIZED, CALL(nvmlDeviceGetHandleByIndex_v2, (u32, void **), 0, &dev));
	WANT(UNINITIALIZED, CALL(nvmlDeviceGetName, (void *, char *, u32), NULL, NULL, 0));
	WANT(UNINITIALIZED, CALL(nvmlDeviceSetPersistenceMode, (void *, u32), NULL, 0));
	WANT(UNINITIALIZED, CALL(nvmlShutdown, (void)));

	WANT(SUCCESS, CALL(nvmlInit_v2, (void)));
	WANT(SUCCESS, CALL(nvmlInitWithFlags, (u32), 1));
	WANT(SUCCESS, CALL(nvmlShutdown, (void)));
	WANT(SUCCESS, CALL(nvmlDeviceGetCount_v2, (u32 *), &n));
	if (n != 8)
		printf("counted %u\n", n), failures++;

	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceGetCount_v2, (u32 *), NULL));
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceGetHandleByIndex_v2, (u32, void **), 8, &dev));
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceGetHandleByIndex_v2, (u32, void **), 0, NULL));
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceGetHandleByIndex_v2, (u32, void **), 0xffffffff, &dev));
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceGetHandleByUUID, (char *, void **), NULL, &dev));
	WANT(SUCCESS, CALL(nvmlDeviceGetHandleByIndex_v2, (u32, void **), 7, &dev));

	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceGetName, (void *, char *, u32), dev, NULL, 96));
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceGetName, (void *, char *, u32), NULL, text, 96));
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceGetName, (void *, char *, u32), (void *)0xdeadbeef, text, 96));
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceGetName, (void *, char *, u32), (char *)dev + 1, text, 96));
	memset(text, '#', sizeof text);
	WANT(INSUFFICIENT_SIZE, CALL(nvmlDeviceGetName, (void *, char *, u32), dev, text, 21));
	WANT(INSUFFICIENT_SIZE, CALL(nvmlDeviceGetName, (void *, char *, u32), dev, text, 0));
	if (text[0] != '#')
		printf("a buffer too small was written to\n"), failures++;
	WANT(SUCCESS, CALL(nvmlDeviceGetName, (void *, char *, u32), dev, text, 22));
	if (strcmp(text, "NVIDIA H100 80GB HBM3") || text[22] != '#')
		printf("the name is %s, and the byte after it %c\n", text, text[22]), failures++;

	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceGetMemoryInfo_v2, (void *, void *), dev, NULL));
	WANT(VERSION_MISMATCH, CALL(nvmlDeviceGetMemoryInfo_v2, (void *, void *), dev, &memory));
	memory.version = sizeof memory | 2 << 24;
	WANT(SUCCESS, CALL(nvmlDeviceGetMemoryInfo_v2, (void *, void *), dev, &memory));
	if (memory.total != 81559ull << 20 || memory.free + memory.used + memory.reserved != memory.total)
		printf("memory %llu = %llu + %llu + %llu\n", memory.total, memory.free, memory.used, memory.reserved), failures++;

	n = 2;
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceGetComputeRunningProcesses_v3, (void *, u32 *, void *), dev, &n, NULL));
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceGetComputeRunningProcesses_v3, (void *, u32 *, void *), dev, NULL, processes));
	n = 0;
	WANT(SUCCESS, CALL(nvmlDeviceGetComputeRunningProcesses_v3, (void *, u32 *, void *), dev, &n, NULL));

	WANT(NOT_SUPPORTED, CALL(nvmlDeviceSetEccMode, (void *, u32), dev, 1));
	WANT(NOT_SUPPORTED, CALL(nvmlVgpuTypeGetName, (u32, char *, u32 *), 1, text, &n));
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceGetNvLinkState, (void *, u32, u32 *), dev, 999, &n));

	WANT(SUCCESS, CALL(nvmlEventSetCreate, (void **), &set));
	WANT(SUCCESS, CALL(nvmlDeviceRegisterEvents, (void *, u64, void *), dev, 8, set));
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceRegisterEvents, (void *, u64, void *), dev, 8, dev));
	double before = now();
	WANT(TIMEOUT, CALL(nvmlEventSetWait_v2, (void *, void *, u32), set, &event, 120));
	if (now() - before < 0.12)
		printf("waited %f s of 0.12\n", now() - before), failures++;
	WANT(SUCCESS, CALL(nvmlEventSetFree, (void *), set));
	WANT(INVALID_ARGUMENT, CALL(nvmlEventSetFree, (void *), set));

	const char *(*text_of)(u32) = symbol("nvmlErrorString");
	if (strcmp(text_of(0), "Success") || strcmp(text_of(15), "GPU is lost") || !*text_of(12345))
		printf("error strings: %s, %s, %s\n", text_of(0), text_of(15), text_of(12345)), failures++;

	WANT(SUCCESS, CALL(nvmlShutdown, (void)));
	WANT(UNINITIALIZED, CALL(nvmlDeviceGetName, (void *, char *, u32), dev, text, 96));
	WANT(UNINITIALIZED, CALL(nvmlShutdown, (void)));
}

// partitions: pointers that are NULL, handles that are none, versions that are wrong, and a mode that is no mode.
static void partitions(void) {
	void *dev = NULL, *gi = NULL, *ci = NULL, *mig = NULL, *junk = &failures;
	u32 n = 0, status = 77, at[2] = {0, 1}, wrong[2] = {0, 2}, big[64] = {0};

	WANT(UNINITIALIZED, CALL(nvmlDeviceCreateGpuInstance, (void *, u32, void **), NULL, 19, &gi));
	WANT(UNINITIALIZED, CALL(nvmlGpuInstanceDestroy, (void *), NULL));
	WANT(SUCCESS, CALL(nvmlInit_v2, (void)));
	WANT(SUCCESS, CALL(nvmlDeviceGetHandleByIndex_v2, (u32, void **), 0, &dev));
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceSetMigMode, (void *, u32, u32 *), dev, 1, NULL));
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceSetMigMode, (void *, u32, u32 *), dev, 2, &status));
	WANT(NOT_SUPPORTED, CALL(nvmlDeviceCreateGpuInstance, (void *, u32, void **), dev, 19, &gi));
	WANT(SUCCESS, CALL(nvmlDeviceSetMigMode, (void *, u32, u32 *), dev, 1, &status));
	WANT(SUCCESS, status);

	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceGetGpuInstanceProfileInfo, (void *, u32, void *), dev, 0, NULL));
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceGetGpuInstanceProfileInfo, (void *, u32, void *), dev, 18, big));
	WANT(NOT_SUPPORTED, CALL(nvmlDeviceGetGpuInstanceProfileInfo, (void *, u32, void *), dev, 5, big));
	WANT(VERSION_MISMATCH, CALL(nvmlDeviceGetGpuInstanceProfileInfoV, (void *, u32, void *), dev, 0, big));
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceGetGpuInstancePossiblePlacements_v2, (void *, u32, void *, u32 *), dev, 19, NULL, NULL));
	WANT(SUCCESS, CALL(nvmlDeviceGetGpuInstancePossiblePlacements_v2, (void *, u32, void *, u32 *), dev, 19, NULL, &n));
	WANT(7, n);
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceGetGpuInstancePossiblePlacements_v2, (void *, u32, void *, u32 *), dev, 4711, NULL, &n));
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceGetGpuInstances, (void *, u32, void *, u32 *), dev, 19, NULL, &n));
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceGetGpuInstances, (void *, u32, void *, u32 *), dev, 19, big, NULL));
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceGetGpuInstanceRemainingCapacity, (void *, u32, u32 *), dev, 19, NULL));
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceCreateGpuInstance, (void *, u32, void **), dev, 19, NULL));
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceCreateGpuInstance, (void *, u32, void **), dev, 4711, &gi));
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceCreateGpuInstanceWithPlacement, (void *, u32, void *, void **), dev, 19, NULL, &gi));
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceCreateGpuInstanceWithPlacement, (void *, u32, void *, void **), dev, 19, wrong, &gi));
	WANT(SUCCESS, CALL(nvmlDeviceCreateGpuInstanceWithPlacement, (void *, u32, void *, void **), dev, 19, at, &gi));
	WANT(INSUFFICIENT_RESOURCES, CALL(nvmlDeviceCreateGpuInstanceWithPlacement, (void *, u32, void *, void **), dev, 19, at, &mig));

	// Each kind of handle where another is wanted.
	void *handles[] = {NULL, junk, dev, (void *)~0UL};
	for (unsigned i = 0; i < sizeof handles / sizeof *handles; i++) {
		void *h = handles[i];
		WANT(INVALID_ARGUMENT, CALL(nvmlGpuInstanceGetInfo, (void *, void *), h, big));
		WANT(INVALID_ARGUMENT, CALL(nvmlGpuInstanceDestroy, (void *), h));
		WANT(INVALID_ARGUMENT, CALL(nvmlComputeInstanceGetInfo_v2, (void *, void *), h, big));
		WANT(INVALID_ARGUMENT, CALL(nvmlComputeInstanceDestroy, (void *), h));
		WANT(INVALID_ARGUMENT, CALL(nvmlGpuInstanceCreateComputeInstance, (void *, u32, void **), h, 0, &ci));
		WANT(INVALID_ARGUMENT, CALL(nvmlDeviceGetGpuInstanceId, (void *, u32 *), h, &n));
	}
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceGetName, (void *, char *, u32), gi, (char *)big, 64));
	WANT(INVALID_ARGUMENT, CALL(nvmlComputeInstanceDestroy, (void *), gi));
	WANT(INVALID_ARGUMENT, CALL(nvmlGpuInstanceGetInfo, (void *, void *), gi, NULL));
	WANT(INVALID_ARGUMENT, CALL(nvmlGpuInstanceGetComputeInstances, (void *, u32, void *, u32 *), gi, 0, big, NULL));
	WANT(INVALID_ARGUMENT, CALL(nvmlGpuInstanceCreateComputeInstance, (void *, u32, void **), gi, 0, NULL));
	WANT(INVALID_ARGUMENT, CALL(nvmlGpuInstanceCreateComputeInstance, (void *, u32, void **), gi, 4711, &ci));
	WANT(VERSION_MISMATCH, CALL(nvmlGpuInstanceGetComputeInstanceProfileInfoV, (void *, u32, u32, void *), gi, 0, 0, big));
	WANT(INVALID_ARGUMENT, CALL(nvmlGpuInstanceGetComputeInstanceProfileInfo, (void *, u32, u32, void *), gi, 0, 1, big));
	WANT(SUCCESS, CALL(nvmlGpuInstanceCreateComputeInstance, (void *, u32, void **), gi, 0, &ci));
	WANT(SUCCESS, CALL(nvmlDeviceGetMigDeviceHandleByIndex, (void *, u32, void **), dev, 0, &mig));
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceGetMigDeviceHandleByIndex, (void *, u32, void **), dev, 0, NULL));
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceGetUUID, (void *, char *, u32), mig, NULL, 0));
	WANT(INSUFFICIENT_SIZE, CALL(nvmlDeviceGetUUID, (void *, char *, u32), mig, (char *)big, 8));
	WANT(NOT_SUPPORTED, CALL(nvmlDeviceGetMigMode, (void *, u32 *, u32 *), mig, &n, &n));
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceSetMigMode, (void *, u32, u32 *), mig, 0, &status));
	WANT(IN_USE, CALL(nvmlGpuInstanceDestroy, (void *), gi));
	WANT(SUCCESS, CALL(nvmlDeviceSetMigMode, (void *, u32, u32 *), dev, 0, &status));
	WANT(IN_USE, status);
	WANT(SUCCESS, CALL(nvmlComputeInstanceDestroy, (void *), ci));
	WANT(INVALID_ARGUMENT, CALL(nvmlDeviceIsMigDeviceHandle, (void *, u32 *), mig, &n));
	WANT(SUCCESS, CALL(nvmlGpuInstanceDestroy, (void *), gi));
	WANT(INVALID_ARGUMENT, CALL(nvmlGpuInstanceDestroy, (void *), gi));
	WANT(SUCCESS, CALL(nvmlDeviceSetMigMode, (void *, u32, u32 *), dev, 0, &status));
	WANT(SUCCESS, status);
	WANT(SUCCESS, CALL(nvmlShutdown, (void)));
}

static void noPermission(void) {
	void *dev = NULL;
	u32 mode = 77, pending = 77;
	WANT(SUCCESS, CALL(nvmlInit_v2, (void)));
	WANT(SUCCESS, CALL(nvmlDeviceGetHandleByIndex_v2, (u32, void **), 0, &dev));
	WANT(NO_PERMISSION, CALL(nvmlDeviceSetMigMode, (void *, u32, u32 *), dev, 1, &mode));
	WANT(SUCCESS, CALL(nvmlDeviceGetMigMode, (void *, u32 *, u32 *), dev, &mode, &pending));
	WANT(0, mode);
	WANT(0, pending);
	WANT(SUCCESS, CALL(nvmlShutdown, (void)));
}

int main(int argc, char **argv) {
	if (argc != 3)
		return 2;
	library = dlopen(argv[1], RTLD_LAZY | RTLD_GLOBAL);
	if (!library) {
		printf("%s\n", dlerror());
		return 1;
	}
	if (!strcmp(argv[2], "arguments"))
		arguments();
	else if (!strcmp(argv[2], "partitions"))
		partitions();
	else if (!strcmp(argv[2], "no-permission"))
		noPermission();
	else if (!strcmp(argv[2], "no-driver"))
		WANT(DRIVER_NOT_LOADED, CALL(nvmlInit_v2, (void)));
	else if (!strcmp(argv[2], "broken"))
		WANT(UNKNOWN, CALL(nvmlInit_v2, (void)));
	else if (!strcmp(argv[2], "without-memory-v2")) {
		if (dlsym(library, "nvmlDeviceGetMemoryInfo_v2"))
			printf("the symbol is there\n"), failures++;
		WANT(SUCCESS, CALL(nvmlInit_v2, (void)));
		symbol("nvmlDeviceGetMemoryInfo");
	} else
		return 2;
	return failures != 0;
}
