// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package profiles

// Profile is a machine: one model of board, and a slot for each.
type Profile struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Driver      Driver `json:"driver"`
	Board       Board  `json:"board"`
	Slots       []Slot `json:"slots"`
	// Wires lists the NVLinks between GPUs. It is empty for a board with switches.
	Wires []Wire `json:"wires,omitempty"`
	// Fabric is the GPUs' fabric beyond the node, if any.
	Fabric  *Fabric  `json:"fabric,omitempty"`
	Sources []Source `json:"sources"`
}

// Driver describes the kernel driver and its user space.
type Driver struct {
	// Version is in the driver's format, "580.126.09".
	Version string `json:"version"`
	// NVMLVersion is nvmlSystemGetNVMLVersion's answer.
	NVMLVersion string `json:"nvmlVersion"`
	// CUDA is 1000 × major + 10 × minor.
	CUDA int `json:"cuda"`
}

// Board is one model of GPU. Zero means that the board lacks the feature.
type Board struct {
	ProductName  string `json:"productName"`
	Brand        int    `json:"brand"`
	Architecture int    `json:"architecture"`
	ComputeMajor int    `json:"computeMajor"`
	ComputeMinor int    `json:"computeMinor"`
	// PCIDeviceID is device << 16 | vendor, in hex: "0x233010DE". PCISubsystemID has the same form.
	PCIDeviceID    string `json:"pciDeviceID"`
	PCISubsystemID string `json:"pciSubsystemID"`

	// MemoryMiB is NVML's total; ReservedMiB is the driver's own part of it.
	MemoryMiB   uint64 `json:"memoryMiB"`
	ReservedMiB uint64 `json:"reservedMiB"`
	BAR1MiB     uint64 `json:"bar1MiB"`
	// MemoryBusWidth is in bits.
	MemoryBusWidth  int     `json:"memoryBusWidth"`
	Cores           int     `json:"cores"`
	Multiprocessors int     `json:"multiprocessors"`
	Engines         Engines `json:"engines"`

	// AddressingMode is NVML's value; AddressingModeReported means that the board supports the query.
	AddressingMode         int  `json:"addressingMode"`
	AddressingModeReported bool `json:"addressingModeReported"`
	MIGCapable             bool `json:"migCapable"`
	MaxMIGDevices          int  `json:"maxMIGDevices"`
	// MIG is nil for a board without MIG.
	MIG *MIG `json:"mig,omitempty"`
	ECC bool `json:"ecc"`
	// NVLinks is the number of links of each GPU; NVLinkVersion as NVML numbers it. They lead to switches, unless the
	// profile has Wires.
	NVLinks       int `json:"nvlinks"`
	NVLinkVersion int `json:"nvlinkVersion"`
	// Switches is the number of NVSwitches with a device node.
	Switches int `json:"switches,omitempty"`
	// Fabric means that the GPU registers with a fabric manager.
	Fabric bool `json:"fabric"`

	PCIeGen        int    `json:"pcieGen"`
	PCIeWidth      int    `json:"pcieWidth"`
	Fans           int    `json:"fans"`
	VBIOS          string `json:"vbios"`
	PartNumber     string `json:"partNumber"`
	InforomImage   string `json:"inforomImage"`
	Power          Power  `json:"power"`
	Clocks         Clocks `json:"clocks"`
	IdleTempC      int    `json:"idleTempC"`
	SlowdownTempC  int    `json:"slowdownTempC"`
	ShutdownTempC  int    `json:"shutdownTempC"`
	IdlePerfState  int    `json:"idlePerfState"`
	MemoryIdleTemp int    `json:"memoryIdleTempC"`
}

// Engines counts the media and copy engines of the whole GPU.
type Engines struct {
	Copy    int `json:"copy"`
	Decoder int `json:"decoder"`
	Encoder int `json:"encoder"`
	JPEG    int `json:"jpeg"`
	OFA     int `json:"ofa"`
}

// Power is in watts.
type Power struct {
	Idle    int `json:"idleW"`
	Min     int `json:"minW"`
	Max     int `json:"maxW"`
	Default int `json:"defaultW"`
}

// Clocks are in MHz.
type Clocks struct {
	IdleGraphics int `json:"idleGraphics"`
	IdleMemory   int `json:"idleMemory"`
	MaxGraphics  int `json:"maxGraphics"`
	MaxMemory    int `json:"maxMemory"`
	MaxVideo     int `json:"maxVideo"`
}

// Slot is a place for a GPU.
type Slot struct {
	// Address is the kernel's dddd:bb:dd.f.
	Address string `json:"address"`
	// Path is the chain from the PCIe root complex down to the bridge above the GPU: "pci0000:15", "0000:15:01.0", ….
	Path []string `json:"path"`
	// NUMANode is -1 if the firmware reports none.
	NUMANode int `json:"numaNode"`
	// ModuleID is the position on the baseboard.
	ModuleID int `json:"moduleID"`
}

// Wire is a number of NVLinks between two GPUs, by slot.
type Wire struct {
	A     int `json:"a"`
	B     int `json:"b"`
	Links int `json:"links"`
}

// Fabric is an NVLink fabric of several nodes.
type Fabric struct {
	// ClusterUUID is in the usual format.
	ClusterUUID string `json:"clusterUUID"`
	CliqueID    int    `json:"cliqueID"`
}

// Source is the source of some facts.
type Source struct {
	Facts  string `json:"facts"`
	Source string `json:"source"`
}
