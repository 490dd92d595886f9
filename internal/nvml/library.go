// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package nvml is the border to NVIDIA's management library, in the driver's own types.
//
// Each method is one NVML query and fails as that query fails: an *Error that names the query and carries NVML's
// return code, tested with errors.Is(err, NotSupported). A GPU that cannot answer one query can often answer the
// others, so nothing is bundled.
//
// Traps. A session keeps /dev/nvidiactl open, and a driver that is held cannot be unloaded: open one, look, close it.
// NVML's state is one per process, so sessions are counted and the last Close shuts the library down. Calling a symbol
// that an older driver lacks ends the process; the real binding looks each newer symbol up first and answers
// FunctionNotFound.
package nvml

// Library opens sessions with the driver.
type Library interface {
	// Open loads the library and initialises it. It may be tried again after an error: LibraryNotFound where the
	// driver's user space is absent, DriverNotLoaded where its kernel module is, others as NVML says. ErrReplaced does
	// not clear.
	Open() (Session, error)
}

// Session is an initialised library. Its methods may be called from several goroutines at once.
type Session interface {
	// DriverVersion is the kernel driver's version as it spells it, "580.126.09".
	DriverVersion() (string, error)
	// CUDAVersion is the newest CUDA the driver supports, in NVML's form: 1000 × major + 10 × minor.
	CUDAVersion() (int, error)
	// DeviceCount counts the GPUs, lost ones included.
	DeviceCount() (int, error)
	// Device gives the GPU at an index below DeviceCount. GPUIsLost where it fell off the bus.
	Device(index int) (Device, error)
	// Close ends the session; devices got from it must not be used after. A second Close does nothing.
	Close() error
}

// Device is one physical GPU of an open session.
type Device interface {
	UUID() (string, error)
	PCI() (PCIInfo, error)
	// MinorNumber is the number in /dev/nvidia<minor>.
	MinorNumber() (int, error)
	// Name is the product name, "NVIDIA H100 80GB HBM3".
	Name() (string, error)
	Brand() (Brand, error)
	Architecture() (Architecture, error)
	CUDAComputeCapability() (major, minor int, err error)
	Memory() (MemoryInfo, error)
	// Cores is the number of CUDA cores of the whole GPU.
	Cores() (int, error)
	AddressingMode() (AddressingMode, error)
	ComputeMode() (ComputeMode, error)
	// SetComputeMode is in force when it returns nil. NotSupported on a GPU whose MIG mode is on.
	SetComputeMode(ComputeMode) error
	// Processes are those that hold the GPU or a part of it, compute and graphics, in order of their process IDs, then
	// instances, each once.
	Processes() ([]Process, error)
	// NVLinks are those that are up, in order of their index. NotSupported where the GPU has none.
	NVLinks() ([]NVLink, error)
	// NVLinkPeer says whether the driver has the GPU and another one of the session talk over NVLink.
	NVLinkPeer(other Device) (bool, error)
	// Fabric is its registration with an NVLink fabric. NotSupported where it has none.
	Fabric() (Fabric, error)
	Partitionable
}

// NVLink is a link of a GPU that is up.
type NVLink struct {
	Index int
	// Version is the generation, 0 where the driver does not say.
	Version int
	Remote  RemoteDevice
	// RemoteBusID is NVML's spelling of the other end's PCI address, empty where it does not tell.
	RemoteBusID string
}

// Fabric is how far a GPU's registration has come, and with what.
type Fabric struct {
	State FabricState
	// Status is what a completed registration came to: nil, or NVML's error.
	Status error
	// ClusterUUID is all zero where the fabric ends at the node.
	ClusterUUID [16]byte
	CliqueID    int
}

type PCIInfo struct {
	// BusID is NVML's spelling, "00000000:1B:00.0".
	BusID string
	// DeviceID is device << 16 | vendor, SubsystemID likewise.
	DeviceID, SubsystemID uint32
}

// MemoryInfo is in bytes. Total includes Reserved, what the driver keeps for itself.
type MemoryInfo struct {
	Total, Reserved, Free, Used uint64
}

type Process struct {
	PID uint32
	// GPUInstance and ComputeInstance are what it runs on, -1 where that is the whole GPU.
	GPUInstance, ComputeInstance int
}
