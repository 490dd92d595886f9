// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// The layouts of NVML's C ABI that this library fills, for LP64. Versioned structures begin with a word that holds
// sizeof | version << 24.

#ifndef GPUSIM_ABI_H
#define GPUSIM_ABI_H

typedef unsigned int u32;
typedef unsigned long long u64;
typedef void *handle;

typedef struct { char busIdLegacy[16]; u32 domain, bus, device, pciDeviceId, pciSubSystemId; char busId[32]; } pciInfo;
typedef struct { char busIdLegacy[16]; u32 domain, bus, device, pciDeviceId, pciSubSystemId, reserved[4]; } pciInfoV2;
typedef struct { u32 version, domain, bus, device, pciDeviceId, pciSubSystemId, baseClass, subClass; char busId[32]; } pciInfoExt;
typedef struct { u64 total, free, used; } memoryV1;
typedef struct { u32 version; u64 total, reserved, free, used; } memoryV2;
typedef struct { u64 total, free, used; } bar1Memory;
typedef struct { const char *nameSpace; u64 softLimit, hardLimit; } memoryLimits;
typedef struct { const char *nameSpace; u64 softLimit, hardLimit, currentUsed; } usedMemoryLimits;
typedef struct { u32 gpu, memory; } utilizationRates;
typedef struct { u32 pid; u64 usedGpuMemory; } processV1;
typedef struct { u32 pid; u64 usedGpuMemory; u32 gpuInstanceId, computeInstanceId; } processV2;
typedef struct { u32 multiprocessors, copyEngines, decoders, encoders, jpegEngines, ofaEngines, gpuInstanceSlices, computeInstanceSlices; u64 memoryMB; } deviceAttributes;
typedef struct { u32 version, value; } versionedValue;
typedef struct { u32 version, sensor; int temperature; } temperatureV;
typedef struct { u64 l1, l2, device, registerFile; } eccCounts;
typedef struct { u64 reference, violation; } violationTime;
typedef struct { u32 version, channelPending, tpcPending; } repairStatus;
typedef struct { u32 version; u64 aggregateParity, aggregateSecDed, aggregateCorrected, volatileParity, volatileSecDed, volatileCorrected, l2, sm, pcie, mcu, other; u32 thresholdExceeded; } sramErrors;
typedef struct { u32 version; char branch[80]; } driverBranch;
typedef struct { u32 version, type; char value[41]; } uuidV;
typedef struct { unsigned char clusterUuid[16]; u32 status, cliqueId; unsigned char state; } fabricInfo;
typedef struct { u32 version; unsigned char clusterUuid[16]; u32 status, cliqueId; unsigned char state; u32 healthMask; } fabricInfoV2;
typedef struct { u32 version; unsigned char clusterUuid[16]; u32 status, cliqueId; unsigned char state; u32 healthMask; unsigned char healthSummary; } fabricInfoV3;
typedef struct { u32 fieldId, scopeId; long long timestamp, latencyUsec; u32 valueType, code; u64 value; } fieldValue;
typedef struct { handle device; u64 type, data; u32 gpuInstanceId, computeInstanceId; } eventData;
typedef struct { u32 version, supported; } gpmSupport;
typedef struct { u32 max, high, partial, low, none; } rowRemapHistogram;
typedef struct { u32 id, code; double value; char *shortName, *longName, *unit; } gpmMetric;
typedef struct { u32 version, count; handle first, second; gpmMetric metrics[]; } gpmMetrics;
typedef struct { u32 pid; u64 timeStamp; u32 sm, memory, encoder, decoder; } processUtilization;
// A GPM sample: the memory that a client allocates for the counters of a GPU or a GPU instance.
typedef struct { handle device; u32 instance, multiprocessors; long long atMS; u64 busy, pcieSent, pcieReceived, nvlink; } gpmSample;

typedef struct { u32 start, size; } placement;
typedef struct { u32 id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount; u64 memorySizeMB; } gpuProfile;
typedef struct { u32 version, id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount; u64 memorySizeMB; char name[96]; } gpuProfileV2;
typedef struct { u32 version, id, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount; u64 memorySizeMB; char name[96]; u32 capabilities; } gpuProfileV3;
typedef struct { handle device; u32 id, profileId; placement at; } gpuInstanceInfo;
typedef struct { u32 id, sliceCount, instanceCount, multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount; } computeProfile;
typedef struct { u32 version, id, sliceCount, instanceCount, multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount; char name[96]; } computeProfileV2;
typedef struct { u32 version, id, sliceCount, instanceCount, multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount; char name[96]; u32 capabilities; } computeProfileV3;
typedef struct { handle device, gpuInstance; u32 id, profileId; } computeInstanceInfo;
typedef struct { handle device, gpuInstance; u32 id, profileId; placement at; } computeInstanceInfoV2;

// The slots are what device handles point at: a handle is the address of its GPU's byte.
extern char gpusimSlots[64];

// Handles of instances and MIG devices point here; which byte is whose is a table's business (part.go). NVML passes
// instances as structures of one pointer, which both calling conventions pass as that pointer.
#define GPUSIM_PARTS 65536
extern char gpusimParts[GPUSIM_PARTS];
const char *gpusimErrorString(int code);
int gpusimHasCUDA(void);
const char *gpusimOwnPath(void);
const char *gpusimEnv(const char *name);

#endif
