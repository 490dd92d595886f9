// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package gpu holds the nouns of the driver: what a node's GPUs are and what they are called.
//
// Values here are plain: they carry no handle, clock or client, and two scans of the same hardware compare equal.
// Names and addresses are identities that survive a reboot; an index or a minor number never is.
package gpu

// Snapshot is the result of one scan of a node. The zero Snapshot is a node whose driver is not loaded.
type Snapshot struct {
	Driver Driver `json:"driver"`
	// GPUs are in order of their PCI addresses, each address once.
	GPUs []GPU `json:"gpus,omitempty"`
	// Problems are the GPUs that the driver knows of and that could not be read. They are not in GPUs.
	Problems []Problem `json:"problems,omitempty"`
}

// Driver is the kernel driver and the CUDA version it supports.
type Driver struct {
	// Version is what NVML says, leading zeros included: "580.126.09". Empty when no driver is loaded.
	Version string `json:"version,omitempty"`
	// CUDA is the newest CUDA version the driver supports.
	CUDA Version `json:"cuda,omitzero"`
}

// Version is a two-part version, as NVML gives CUDA versions and compute capabilities. Zero means unknown.
type Version struct {
	Major int `json:"major"`
	Minor int `json:"minor"`
}

// GPU is one physical GPU. A field NVML could not supply has its zero value, never an invented one.
type GPU struct {
	// PCIAddress is the lower-case dddd:bb:dd.f of the kernel, the identity of the GPU on its node.
	PCIAddress string `json:"pciAddress"`
	// UUID is NVML's, "GPU-…". It follows the board, not the slot.
	UUID string `json:"uuid"`
	// Index is the position NVML enumerates it at. For people, never an identity.
	Index int `json:"index"`
	// Minor is the number in /dev/nvidia<minor>. It may change with every boot.
	Minor int `json:"minor"`

	ProductName  string `json:"productName,omitempty"`
	Brand        string `json:"brand,omitempty"`
	Architecture string `json:"architecture,omitempty"`
	// AddressingMode is "HMM", "ATS" or "None" where the driver reports it.
	AddressingMode    string  `json:"addressingMode,omitempty"`
	ComputeCapability Version `json:"computeCapability,omitzero"`

	// PCIeRoot is the PCIe root complex, "pci0000:00", or empty.
	PCIeRoot string `json:"pcieRoot,omitempty"`
	// Bridges are the PCI addresses of the bridges between the root complex and the GPU, from the root on: what two GPUs have
	// in common of them is how near they are.
	Bridges []string `json:"bridges,omitempty"`
	// NUMANode is nil where the kernel says -1 or nothing.
	NUMANode *int `json:"numaNode,omitempty"`

	// MemoryBytes is the board's total as NVML reports it, what the driver reserves included. 0: NVML cannot say.
	MemoryBytes uint64 `json:"memoryBytes,omitempty"`
	// ReservedBytes is what of it the driver keeps for itself. 0: none, or NVML cannot say.
	ReservedBytes uint64 `json:"reservedBytes,omitempty"`
	// Multiprocessors is the number of SMs, 0 when unknown.
	Multiprocessors int `json:"multiprocessors,omitempty"`

	// MIG is how it can be cut, and is cut now.
	MIG MIG `json:"mig,omitzero"`
	Interconnect
	// MPSCapable says that MPS can limit a client's memory and SMs on this GPU (Volta and newer).
	MPSCapable bool `json:"mpsCapable,omitempty"`
}

// Problem is a GPU that could not be read.
type Problem struct {
	// PCIAddress is empty when not even that was to be had.
	PCIAddress string `json:"pciAddress,omitempty"`
	UUID       string `json:"uuid,omitempty"`
	// Index is the position NVML enumerates it at.
	Index int `json:"index"`
	// Lost says that NVML answered "GPU is lost": it has fallen off the bus and only a reset or reboot brings it back.
	Lost bool `json:"lost,omitempty"`
	// Message says what was attempted and what the driver answered.
	Message string `json:"message"`
}

// ByAddress finds a GPU by its PCI address.
func (s Snapshot) ByAddress(address string) (GPU, bool) {
	for _, g := range s.GPUs {
		if g.PCIAddress == address {
			return g, true
		}
	}
	return GPU{}, false
}
