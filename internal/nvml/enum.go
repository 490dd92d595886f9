// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

// The values equal those of nvml.h, so that the NVML fake can pass them through. An unlisted value prints as
// "Unknown".

// Brand is the marketing family of a board (nvmlBrandType_t).
type Brand int

// Brands that the driver uses: Tesla, and the vGPU licences.
const (
	BrandTesla Brand = 2
	BrandGrid  Brand = 4
	BrandVApps Brand = 7
	BrandVPC   Brand = 8
	BrandVCS   Brand = 9
	BrandVWS   Brand = 10
)

var brandNames = map[Brand]string{
	1: "Quadro", 2: "Tesla", 3: "NVS", 4: "Grid", 5: "GeForce", 6: "Titan", 7: "NvidiaVApps", 8: "NvidiaVPC", 9: "NvidiaVCS",
	10: "NvidiaVWS", 12: "QuadroRTX", 13: "NvidiaRTX", 14: "Nvidia", 15: "GeForceRTX", 16: "TitanRTX",
}

func (b Brand) String() string { return nameOf(brandNames, b) }

// Architecture is the GPU's generation (nvmlDeviceArchitecture_t).
type Architecture int

// Architectures that the driver uses.
const (
	ArchAmpere Architecture = 7
	ArchHopper Architecture = 9
)

var architectureNames = map[Architecture]string{
	2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada Lovelace", 9: "Hopper",
	10: "Blackwell", 13: "Rubin",
}

func (a Architecture) String() string { return nameOf(architectureNames, a) }

// AddressingMode is the mode in which the GPU addresses system memory (nvmlDeviceAddressingModeType_t).
type AddressingMode int

var addressingModeNames = map[AddressingMode]string{0: "None", 1: "HMM", 2: "ATS"}

func (m AddressingMode) String() string { return nameOf(addressingModeNames, m) }

// ComputeMode determines the processes that may use the GPU (nvmlComputeMode_t).
type ComputeMode int

const (
	ComputeDefault          ComputeMode = 0
	ComputeProhibited       ComputeMode = 2
	ComputeExclusiveProcess ComputeMode = 3
)

var computeModeNames = map[ComputeMode]string{0: "Default", 2: "Prohibited", 3: "ExclusiveProcess"}

func (m ComputeMode) String() string { return nameOf(computeModeNames, m) }

func nameOf[T comparable](names map[T]string, v T) string {
	if s, ok := names[v]; ok {
		return s
	}
	return "Unknown"
}

// RemoteDevice is the type of device at the other end of an NVLink (nvmlIntNvLinkDeviceType_t).
type RemoteDevice int

const (
	RemoteGPU     RemoteDevice = 0
	RemoteSwitch  RemoteDevice = 2
	RemoteUnknown RemoteDevice = 255
)

// MaxNVLinks is the largest number of links that NVML reports (NVML_NVLINK_MAX_LINKS).
const MaxNVLinks = 36

// FabricState is the state of a GPU's registration (nvmlGpuFabricState_t).
type FabricState int

const (
	FabricNotSupported FabricState = 0
	FabricInProgress   FabricState = 2
	FabricCompleted    FabricState = 3
)
