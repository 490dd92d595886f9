// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

// The values are those of nvml.h, so that a front can pass them through. An unlisted value prints as "Unknown".

// Brand is the marketing family of a board (nvmlBrandType_t).
type Brand int

// Brands of the boards that data centres hold.
const (
	BrandUnknown    Brand = 0
	BrandQuadro     Brand = 1
	BrandTesla      Brand = 2
	BrandNVS        Brand = 3
	BrandGrid       Brand = 4
	BrandGeForce    Brand = 5
	BrandTitan      Brand = 6
	BrandVApps      Brand = 7
	BrandVPC        Brand = 8
	BrandVCS        Brand = 9
	BrandVWS        Brand = 10
	BrandQuadroRTX  Brand = 12
	BrandNVIDIARTX  Brand = 13
	BrandNVIDIA     Brand = 14
	BrandGeForceRTX Brand = 15
	BrandTitanRTX   Brand = 16
)

var brandNames = map[Brand]string{
	BrandQuadro: "Quadro", BrandTesla: "Tesla", BrandNVS: "NVS", BrandGrid: "Grid", BrandGeForce: "GeForce",
	BrandTitan: "Titan", BrandVApps: "NvidiaVApps", BrandVPC: "NvidiaVPC", BrandVCS: "NvidiaVCS",
	BrandVWS: "NvidiaVWS", BrandQuadroRTX: "QuadroRTX", BrandNVIDIARTX: "NvidiaRTX", BrandNVIDIA: "Nvidia",
	BrandGeForceRTX: "GeForceRTX", BrandTitanRTX: "TitanRTX",
}

func (b Brand) String() string { return nameOf(brandNames, b) }

// Architecture is the GPU's generation (nvmlDeviceArchitecture_t).
type Architecture int

// Architectures since Kepler.
const (
	ArchKepler    Architecture = 2
	ArchMaxwell   Architecture = 3
	ArchPascal    Architecture = 4
	ArchVolta     Architecture = 5
	ArchTuring    Architecture = 6
	ArchAmpere    Architecture = 7
	ArchAda       Architecture = 8
	ArchHopper    Architecture = 9
	ArchBlackwell Architecture = 10
	ArchRubin     Architecture = 13
)

var architectureNames = map[Architecture]string{
	ArchKepler: "Kepler", ArchMaxwell: "Maxwell", ArchPascal: "Pascal", ArchVolta: "Volta", ArchTuring: "Turing",
	ArchAmpere: "Ampere", ArchAda: "Ada Lovelace", ArchHopper: "Hopper", ArchBlackwell: "Blackwell", ArchRubin: "Rubin",
}

func (a Architecture) String() string { return nameOf(architectureNames, a) }

// AddressingMode says how the GPU addresses system memory (nvmlDeviceAddressingModeType_t).
type AddressingMode int

// Addressing modes.
const (
	AddressingNone AddressingMode = 0
	AddressingHMM  AddressingMode = 1
	AddressingATS  AddressingMode = 2
)

var addressingModeNames = map[AddressingMode]string{AddressingNone: "None", AddressingHMM: "HMM", AddressingATS: "ATS"}

func (m AddressingMode) String() string { return nameOf(addressingModeNames, m) }

// ComputeMode says which processes may use the GPU (nvmlComputeMode_t).
type ComputeMode int

// Compute modes.
const (
	ComputeDefault          ComputeMode = 0
	ComputeProhibited       ComputeMode = 2
	ComputeExclusiveProcess ComputeMode = 3
)

var computeModeNames = map[ComputeMode]string{
	ComputeDefault: "Default", ComputeProhibited: "Prohibited", ComputeExclusiveProcess: "ExclusiveProcess",
}

func (m ComputeMode) String() string { return nameOf(computeModeNames, m) }

func nameOf[T comparable](names map[T]string, v T) string {
	if s, ok := names[v]; ok {
		return s
	}
	return "Unknown"
}

// RemoteDevice is what is at the other end of an NVLink (nvmlIntNvLinkDeviceType_t).
type RemoteDevice int

// Remote devices.
const (
	RemoteGPU     RemoteDevice = 0
	RemoteIBMNPU  RemoteDevice = 1
	RemoteSwitch  RemoteDevice = 2
	RemoteUnknown RemoteDevice = 255
)

// MaxNVLinks is how many links NVML can tell of (NVML_NVLINK_MAX_LINKS).
const MaxNVLinks = 36

// FabricState is the state of a GPU's registration (nvmlGpuFabricState_t).
type FabricState int

// The states.
const (
	FabricNotSupported FabricState = 0
	FabricNotStarted   FabricState = 1
	FabricInProgress   FabricState = 2
	FabricCompleted    FabricState = 3
)
