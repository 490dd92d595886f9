// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"errors"
	"fmt"
)

// The values equal those of nvml.h, so that the NVML fake can pass them through.

const unknownName = "Unknown" // of an unlisted value

// Brand is the marketing family of a board (nvmlBrandType_t).
type Brand int

// Brands that the driver uses: the vGPU licences.
const (
	BrandGrid  Brand = 4
	BrandVApps Brand = 7
	BrandVPC   Brand = 8
	BrandVCS   Brand = 9
	BrandVWS   Brand = 10
)

var brandNames = map[Brand]string{
	1: "Quadro", 2: "Tesla", 3: "NVS", 4: "Grid", 5: "GeForce", 6: "Titan",
	7: "NvidiaVApps", 8: "NvidiaVPC", 9: "NvidiaVCS",
	10: "NvidiaVWS", 12: "QuadroRTX", 13: "NvidiaRTX", 14: "Nvidia", 15: "GeForceRTX", 16: "TitanRTX",
}

func (b Brand) String() string { return cmp.Or(brandNames[b], unknownName) }

// Architecture is the GPU's generation (nvmlDeviceArchitecture_t).
type Architecture int

// ArchHopper is the first architecture whose MIG mode changes without a reset.
const ArchHopper Architecture = 9

var architectureNames = map[Architecture]string{
	2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada Lovelace", 9: "Hopper",
	10: "Blackwell", 13: "Rubin",
}

func (a Architecture) String() string { return cmp.Or(architectureNames[a], unknownName) }

// AddressingMode is the mode in which the GPU addresses system memory (nvmlDeviceAddressingModeType_t).
type AddressingMode int

var addressingModeNames = map[AddressingMode]string{0: "None", 1: "HMM", 2: "ATS"}

func (m AddressingMode) String() string { return cmp.Or(addressingModeNames[m], unknownName) }

// VirtualizationMode is the kind of virtual machine of a GPU (nvmlGpuVirtualizationMode_t).
type VirtualizationMode int

const (
	VirtualizationNone        VirtualizationMode = 0
	VirtualizationPassthrough VirtualizationMode = 1
	// VirtualizationVGPU is a vGPU in a virtual machine: only the host can cut its GPU.
	VirtualizationVGPU VirtualizationMode = 2
)

// ComputeMode determines the processes that may use the GPU (nvmlComputeMode_t).
type ComputeMode int

const (
	ComputeDefault          ComputeMode = 0
	ComputeProhibited       ComputeMode = 2
	ComputeExclusiveProcess ComputeMode = 3
)

var computeModeNames = map[ComputeMode]string{0: "Default", 2: "Prohibited", 3: "ExclusiveProcess"}

func (m ComputeMode) String() string { return cmp.Or(computeModeNames[m], unknownName) }

// RemoteDevice is the type of device at the other end of an NVLink (nvmlIntNvLinkDeviceType_t).
type RemoteDevice int

const (
	RemoteGPU     RemoteDevice = 0
	RemoteSwitch  RemoteDevice = 2
	RemoteUnknown RemoteDevice = 255
)

// FabricState is the state of a GPU's registration (nvmlGpuFabricState_t).
type FabricState int

const (
	FabricNotSupported FabricState = 0
	FabricInProgress   FabricState = 2
	FabricCompleted    FabricState = 3
)

// RecoveryAction is the driver's advice for a GPU (nvmlDeviceGpuRecoveryAction_t).
type RecoveryAction int

// RecoveryUnsupported means that the driver gives no advice: it is older than R570, or did not answer for this field.
const RecoveryUnsupported RecoveryAction = -1

// Slowdown is a set of reasons for reduced clocks (nvmlClocksEventReasons).
type Slowdown uint64

// The reasons that point to a fault of power or cooling. HardwareSlowdown accompanies each of the two hardware reasons.
const (
	HardwareSlowdown        Slowdown = 0x08
	SoftwareThermalSlowdown Slowdown = 0x20
	HardwareThermalSlowdown Slowdown = 0x40
	PowerBrakeSlowdown      Slowdown = 0x80

	Slowdowns = HardwareSlowdown | SoftwareThermalSlowdown | HardwareThermalSlowdown | PowerBrakeSlowdown
)

// Code is NVML's code of a failed query (nvmlReturn_t). It is an error, so errors.Is finds it inside an *Error.
type Code int

// The codes that the driver uses, with the values of nvml.h.
const (
	Uninitialized         Code = 1
	InvalidArgument       Code = 2
	NotSupported          Code = 3
	NoPermission          Code = 4
	NotFound              Code = 6
	InsufficientSize      Code = 7
	DriverNotLoaded       Code = 9
	Timeout               Code = 10
	LibraryNotFound       Code = 12
	FunctionNotFound      Code = 13
	GPUIsLost             Code = 15
	ResetRequired         Code = 16
	OperatingSystem       Code = 17
	LibRMMismatch         Code = 18
	InUse                 Code = 19
	InsufficientResources Code = 23
	NotReady              Code = 27
	GPUNotFound           Code = 28
	Unknown               Code = 999
)

var codeTexts = map[Code]string{
	Uninitialized:         "uninitialized",
	InvalidArgument:       "invalid argument",
	NotSupported:          "not supported",
	NoPermission:          "insufficient permissions",
	NotFound:              "not found",
	InsufficientSize:      "insufficient size",
	DriverNotLoaded:       "driver not loaded",
	Timeout:               "timeout",
	LibraryNotFound:       "library not found",
	FunctionNotFound:      "function not found in this driver",
	GPUIsLost:             "GPU is lost",
	ResetRequired:         "GPU requires reset",
	OperatingSystem:       "blocked by the operating system",
	LibRMMismatch:         "driver and library version mismatch",
	InUse:                 "in use by another client",
	InsufficientResources: "insufficient resources",
	NotReady:              "not ready",
	GPUNotFound:           "no GPU found",
	Unknown:               "unknown error",
}

func (c Code) Error() string {
	if s, ok := codeTexts[c]; ok {
		return s
	}
	return fmt.Sprintf("NVML error %d", int(c))
}

type Error struct {
	// Query is NVML's own name of the query, "nvmlDeviceGetMemoryInfo_v2".
	Query string
	Code  Code
}

func (e *Error) Error() string { return e.Query + ": " + e.Code.Error() }

func (e *Error) Unwrap() error { return e.Code }

// ErrReplaced means that the NVML library on disk is not the one this process loaded, because of a driver upgrade.
// The dynamic linker keeps the first library for the life of the process, so only a restart helps.
var ErrReplaced = errors.New("the driver was replaced since this process loaded it; the process must start again")

// Vanished reports that a GPU or compute instance, which NVML listed, was destroyed since. Drivers return one code or
// the other.
func Vanished(err error) bool {
	return errors.Is(err, NotFound) || errors.Is(err, InvalidArgument)
}

// Unavailable reports that err means "this GPU or driver does not have it", as opposed to a failure: the caller
// leaves the attribute out, without an error.
func Unavailable(err error) bool {
	return errors.Is(err, NotSupported) || errors.Is(err, FunctionNotFound)
}
