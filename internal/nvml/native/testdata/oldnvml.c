// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// An NVML of an old driver with one GPU: it has no function newer than 2019, and nothing that the binding could call
// by mistake. NVML_INIT makes nvmlInit_v2 answer that code; NVML_LOST makes the GPU answer "lost".
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct {
  char busIdLegacy[16];
  unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
  char busId[32];
} pci_t;
typedef struct {
  unsigned pid;
  unsigned long long memory;
  unsigned gi, ci;
} process_t;

static int initialised;

static int env(const char *name) {
  const char *v = getenv(name);
  return v ? atoi(v) : 0;
}
static int ready(void) { return initialised ? 0 : 1; }
static int gpu(void) { return ready() ? 1 : env("NVML_LOST") ? 15 : 0; }

int nvmlInit_v2(void) {
  if (env("NVML_INIT")) return env("NVML_INIT");
  initialised++;
  return 0;
}
int nvmlShutdown(void) {
  if (!initialised) return 1;
  initialised--;
  return 0;
}
int nvmlSystemGetDriverVersion(char *v, unsigned n) { return ready() ? 1 : (strncpy(v, "418.87.01", n), 0); }
int nvmlSystemGetCudaDriverVersion_v2(int *v) { return ready() ? 1 : (*v = 10010, 0); }
int nvmlDeviceGetCount_v2(unsigned *n) { return ready() ? 1 : (*n = 1, 0); }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) {
  if (ready()) return 1;
  if (i) return 2;
  *d = &initialised;
  return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *at, void **d) {
  size_t n = strlen(at);
  if (ready()) return 1;
  if (n < 7 || strcmp(at + n - 2, ".0")) return 2;
  if (strcasecmp(at + n - 7, "3b:00.0")) return 6;
  *d = &initialised;
  return 0;
}
int nvmlDeviceGetUUID(void *d, char *s, unsigned n) {
  return gpu() ?: (strncpy(s, "GPU-00112233-4455-6677-8899-aabbccddeeff", n), 0);
}
int nvmlDeviceGetName(void *d, char *s, unsigned n) { return gpu() ?: (strncpy(s, "Tesla T4", n), 0); }
int nvmlDeviceGetMinorNumber(void *d, unsigned *m) { return gpu() ?: (*m = 3, 0); }
int nvmlDeviceGetBrand(void *d, int *b) { return gpu() ?: (*b = 2, 0); }
int nvmlDeviceGetComputeMode(void *d, int *m) { return gpu() ?: (*m = 3, 0); }
int nvmlDeviceGetCudaComputeCapability(void *d, int *a, int *b) { return gpu() ?: (*a = 7, *b = 5, 0); }
int nvmlDeviceGetMigMode(void *d, unsigned *a, unsigned *b) { return gpu() ?: 3; }
int nvmlDeviceGetPciInfo_v3(void *d, pci_t *p) {
  if (gpu()) return gpu();
  memset(p, 0, sizeof *p);
  p->pciDeviceId = 0x1EB810DE;
  p->pciSubSystemId = 0x12A210DE;
  strcpy(p->busId, "00000000:3B:00.0");
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, process_t *p) {
  if (gpu()) return gpu();
  if (*n < 2) return *n = 2, 7;
  *n = 2;
  p[0] = (process_t){.pid = 42, .memory = 1 << 20, .gi = -1, .ci = -1};
  p[1] = (process_t){.pid = 7, .memory = ~0ULL, .gi = -1, .ci = -1};
  return 0;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *d, unsigned *n, process_t *p) {
  if (gpu()) return gpu();
  if (*n < 1) return *n = 1, 7;
  *n = 1;
  p[0] = (process_t){.pid = 42, .memory = 1 << 20, .gi = -1, .ci = -1};
  return 0;
}
