// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import "time"

// Library opens sessions with the driver.
type Library interface {
	// Open loads and initialises the library. It may be retried after an error: LibraryNotFound without the driver's
	// user space, DriverNotLoaded without its kernel module, or another code of NVML. ErrReplaced is permanent.
	Open() (Session, error)
}

// Session is an initialised library. Its methods are safe for concurrent use.
type Session interface {
	// DriverVersion is the kernel driver's version in its own format, "580.126.09".
	DriverVersion() (string, error)
	// CUDAVersion is the newest CUDA version of the driver, in NVML's form: 1000 × major + 10 × minor.
	CUDAVersion() (int, error)
	// DeviceCount counts the GPUs, including lost ones.
	DeviceCount() (int, error)
	// Device returns the GPU at an index below DeviceCount. The error is GPUIsLost for a GPU that fell off the bus.
	Device(index int) (Device, error)
	// DeviceAt returns the GPU at a PCI address, and asks no other GPU. The error is NotFound if there is none.
	DeviceAt(address string) (Device, error)
	// Events registers one or more GPUs of this session for critical XIDs. Earlier XIDs are not delivered. It leaves
	// out GPUs that refuse; if all refuse it returns the last one's error.
	Events(devices []Device) (EventSet, error)
	// Close ends the session. It waits for running queries. Its devices must not be used afterwards. A second Close
	// does nothing.
	Close() error
}

// EventSet delivers critical XIDs. It belongs to its session: close it first.
//
// Trap. While a registered GPU is lost, each Wait returns GPUIsLost at once, without naming the GPU: the caller pauses,
// and asks each GPU.
type EventSet interface {
	// Wait returns the oldest event that it has not returned. The error is Timeout if none comes within the limit. One
	// Wait runs at a time. Session.Close and Close wait for it, so the limit should be short.
	Wait(limit time.Duration) (Event, error)
	// Refused returns the errors of GPUs that are not registered, by their index in the devices given to Events. The
	// error is NotSupported or GPUIsLost, for example.
	Refused() map[int]error
	// Close ends the registration. A second Close does nothing.
	Close() error
}

// Event is a critical XID.
type Event struct {
	// Device is the index in the devices given to Events, -1 if the driver names another one.
	Device int
	// XID is the driver's number of the fault, UnknownXID if it has none.
	XID uint64
	// GPUInstance and ComputeInstance are the instances at fault, -1 for the whole GPU.
	GPUInstance, ComputeInstance int
}

// UnknownXID is the number of an event without an XID (NVML reports 999).
const UnknownXID = 999

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
	// VirtualizationMode returns the kind of virtual machine that the GPU is in, if any.
	VirtualizationMode() (VirtualizationMode, error)
	ComputeMode() (ComputeMode, error)
	// SetComputeMode takes effect before it returns. It returns NotSupported on a GPU in MIG mode.
	SetComputeMode(ComputeMode) error
	// Processes returns the processes that use the GPU or a part of it, compute and graphics. They are unique and
	// ordered by process ID, then instances.
	Processes() ([]Process, error)
	// NVLinks returns the active links, ordered by index. It returns NotSupported on a GPU without NVLink.
	NVLinks() ([]NVLink, error)
	// NVLinkPeer reports whether the driver connects the GPU and another GPU of the session over NVLink.
	NVLinkPeer(other Device) (bool, error)
	// Fabric returns the GPU's registration with an NVLink fabric. It returns NotSupported on a GPU without one.
	Fabric() (Fabric, error)
	// Health fails as the query of its field values fails, or if a field or another of its queries finds the GPU lost
	// or to be reset. Any other error of one field or query leaves out that value only.
	Health() (Health, error)

	// The queries and changes of MIG. On a GPU without MIG they return NotSupported. Profiles and placements are
	// available in either mode. Instances are available only while the mode is on; otherwise the methods return
	// NotSupported.

	// MIGMode returns NotSupported on a GPU without MIG. Pending differs from current until the GPU is reset.
	MIGMode() (current, pending bool, err error)
	// SetMIGMode sets the pending mode. On an idle GPU of an architecture that needs no reset, the mode is current
	// before it returns nil. ResetRequired: the mode is pending until the GPU is reset. InUse: a process uses the
	// GPU, or an instance exists and the mode was to be switched off; MIGMode confirms that nothing changed.
	SetMIGMode(on bool) error
	// GPUInstanceProfiles returns the GPU's profiles, ordered by NVML's profile index. A GPU without profiles returns
	// none.
	GPUInstanceProfiles() ([]GPUInstanceProfile, error)
	// GPUInstancePlacements returns the possible placements of a profile's instances on the empty GPU.
	GPUInstancePlacements(profileID int) ([]MIGPlacement, error)
	// GPUInstances returns the present instances of all profiles, ordered by ID.
	GPUInstances() ([]GPUInstance, error)
	// GPUInstance returns the instance with an ID. The error is Vanished if there is none.
	GPUInstance(id int) (GPUInstance, error)
	// CreateGPUInstance creates an instance at exactly that placement. It returns InsufficientResources if the
	// placement is occupied.
	CreateGPUInstance(profileID int, at MIGPlacement) (GPUInstance, error)
	// MIGDevices returns the compute instances with a device handle, with their UUIDs, ordered by GPU instance and
	// compute instance ID. A GPU instance without a compute instance has none.
	//
	// Trap. Drivers cache the handles for a session: the list can lack compute instances of another process, and have
	// destroyed ones. GPUInstances, GPUInstance and ComputeInstances ask the driver.
	MIGDevices() ([]MIGDevice, error)
	// MIGDevicesOf is MIGDevices for one GPU instance. It ends after count devices, because each handle can take a
	// second on a busy GPU.
	MIGDevicesOf(gpuInstance, count int) ([]MIGDevice, error)

	// MIGComputeMode and SetMIGComputeMode are for the MIG device with a UUID. Drivers have them since CUDA 13.3; older
	// ones return NotSupported or InvalidArgument.
	MIGComputeMode(uuid string) (ComputeMode, error)
	SetMIGComputeMode(uuid string, m ComputeMode) error

	// MemoryLimit and SetMemoryLimit limit the memory of all processes of a cgroup on this GPU, in bytes. The cgroup is
	// given by its directory on a file system of cgroups, version 2. Drivers have them since CUDA 13.4; older ones
	// return NotSupported or FunctionNotFound. A cgroup without a limit is NotFound. No memory is guaranteed to the
	// cgroup, because several containers of a claim have its limit each.
	MemoryLimit(cgroup string) (uint64, error)
	SetMemoryLimit(cgroup string, bytes uint64) error

	// Measurements. They fail with NotSupported if the GPU, its mode or the driver does not have them.

	// Utilization is not supported in MIG mode.
	Utilization() (Utilization, error)
	// VideoUtilization is not supported in MIG mode.
	VideoUtilization() (VideoUtilization, error)
	// Power is the board's, in milliwatts.
	Power() (int, error)
	// Temperature is the GPU's, in degrees Celsius.
	Temperature() (int, error)
	// Clock returns the present frequency in MHz.
	Clock(ClockDomain) (int, error)
	// Counters fails as the query of its field values fails. A value without an answer is NotReported.
	Counters() (Counters, error)
	// ProcessMemory returns the memory of processes, clients of MPS included, in the order of Processes.
	ProcessMemory() ([]ProcessMemory, error)
	// ProcessUtilization returns the newest sample of each process since a time, which is a sample's. It is not
	// supported in MIG mode.
	ProcessUtilization(since uint64) ([]ProcessUtilization, error)
	MIGMemory(uuid string) (MemoryInfo, error)
	// Performance reads the performance counters of the GPU, or of a GPU instance that is not negative. It is supported
	// from Hopper on. The caller frees the sample before it closes the session.
	Performance(gpuInstance int) (PerformanceSample, error)
}

// NVLink is an active link of a GPU.
type NVLink struct {
	Index int
	// Version is the generation, 0 if the driver does not report it.
	Version int
	Remote  RemoteDevice
	// RemoteBusID is the PCI address of the other end in NVML's format, empty if it is unknown.
	RemoteBusID string
}

type Fabric struct {
	State FabricState
	// Status is the result of a completed registration: nil, or NVML's error.
	Status error
	// ClusterUUID is all zero for a fabric within one node.
	ClusterUUID [16]byte
	CliqueID    int
}

// Health is the driver's opinion of a GPU.
type Health struct {
	Recovery RecoveryAction
	// RemapPending means that a faulty row of memory is replaced at the next reset, RemapFailed that it could not be
	// replaced. Both are false if the GPU reports nothing, as in MIG mode.
	RemapPending, RemapFailed bool
	// SRAMThresholdExceeded means too many uncorrectable errors of on-chip memory. It is false if the driver does not
	// report it.
	SRAMThresholdExceeded bool
	// UnrepairableMemory is false if the driver does not report it, as drivers before R580 do not.
	UnrepairableMemory bool
	// Slowdowns are the present reasons of reduced clocks, 0 if there is none or the GPU reports none.
	Slowdowns Slowdown
	// NoPersistence means that the driver shuts the GPU down when no process has it open. It is false if the GPU does
	// not report it.
	NoPersistence bool
	// PCIeWidth and PCIeMaxWidth are numbers of lanes, 0 if the GPU does not report them. A GPU in a virtual machine
	// may not.
	PCIeWidth, PCIeMaxWidth int
	// Busy means that a program runs on the GPU. It is read only if PCIeWidth is below PCIeMaxWidth.
	Busy bool
	// CorrectableErrors and UncorrectableErrors count errors of memory since the driver was loaded. They are
	// NotReported without ECC.
	CorrectableErrors, UncorrectableErrors int64
	// CorrectableRows and UncorrectableRows count the replaced rows of memory, by the errors that caused it. They are
	// NotReported if the GPU replaces no rows, or in MIG mode.
	CorrectableRows, UncorrectableRows int64
}

// NotReported is the value of a counter that the GPU or the driver does not have.
const NotReported = -1

type PCIInfo struct {
	// BusID is the PCI address in NVML's format, "00000000:1B:00.0".
	BusID string
	// DeviceID is device << 16 | vendor; SubsystemID has the same form.
	DeviceID, SubsystemID uint32
}

// MemoryInfo is in bytes. Total includes Reserved, the driver's own memory.
type MemoryInfo struct {
	Total, Reserved, Free, Used uint64
}

type Process struct {
	PID uint32
	// GPUInstance and ComputeInstance are the instances it uses, -1 for the whole GPU.
	GPUInstance, ComputeInstance int
}

// Utilization is in percent of the time: that in which a kernel ran, and that in which memory was read or written.
type Utilization struct{ GPU, Memory int }

// VideoUtilization is in percent of the time.
type VideoUtilization struct{ Encoder, Decoder int }

// ClockDomain is a clock (nvmlClockType_t).
type ClockDomain int

const (
	ClockGraphics ClockDomain = 0
	ClockSM       ClockDomain = 1
	ClockMemory   ClockDomain = 2
	ClockVideo    ClockDomain = 3
)

// Counters are measurements of the board. All but MemoryTemperature count since the driver was loaded. Those of PCIe
// can wrap.
type Counters struct {
	// EnergyMJ is in millijoules.
	EnergyMJ int64
	// MemoryTemperature is in degrees Celsius.
	MemoryTemperature int64
	// These are in bytes.
	PCIeSent, PCIeReceived, NVLinkSent, NVLinkReceived int64
	PCIeReplays                                        int64
	// These are nanoseconds with reduced clocks, by reason.
	PowerCap, SyncBoost, SoftwareThermal, HardwareThermal, PowerBrake int64
}

// ProcessMemory is the memory of a process on a GPU or an instance.
type ProcessMemory struct {
	Process
	// Bytes is NotReported if the driver does not know it.
	Bytes int64
}

// ProcessUtilization is the percentage of time in which a process's kernels ran.
type ProcessUtilization struct {
	PID uint32
	// Time is in microseconds.
	Time uint64
	SM   int
}

// PerformanceSample is the state of performance counters. It belongs to its session.
type PerformanceSample interface {
	// Since returns averages since an earlier sample of the same GPU or instance, at least 100 ms before.
	Since(earlier PerformanceSample) (Performance, error)
	// Free releases the sample. A second Free does nothing.
	Free()
}

// Performance holds ratios from 0 to 1, of a GPU or of a GPU instance. A ratio that the driver does not report is
// NotReported.
type Performance struct {
	// Graphics is the time in which any kernel ran; SM, Tensor and DRAM are the parts of multiprocessors, of tensor
	// cores and of memory bandwidth in use.
	Graphics, SM, Tensor, DRAM float64
}

// GPUInstanceProfile is a profile for GPU instances (nvmlGpuInstanceProfileInfo_v2_t).
type GPUInstanceProfile struct {
	// ID identifies the profile when creating instances, such as 19; it is not the index of the query.
	ID int
	// Name lacks NVML's prefix "MIG ": "1g.10gb", "1g.10gb+me".
	Name string
	// Slices is the number of compute slices, Instances the number of instances that fit on an empty GPU.
	Slices, Instances int
	MemoryMiB         uint64

	Multiprocessors, CopyEngines, Decoders, Encoders, JPEGEngines, OFAEngines int
}

// MIGPlacement is a position on a GPU in memory slices (nvmlGpuInstancePlacement_t).
type MIGPlacement struct{ Start, Size int }

// GPUInstance is a live partition of a GPU.
type GPUInstance interface {
	Info() (GPUInstanceInfo, error)
	// ComputeInstanceProfiles returns its profiles, ordered by NVML's profile index.
	ComputeInstanceProfiles() ([]ComputeInstanceProfile, error)
	// ComputeInstances returns the present instances, ordered by ID.
	ComputeInstances() ([]ComputeInstance, error)
	CreateComputeInstance(profileID int) (ComputeInstance, error)
	// Destroy returns InUse while a compute instance exists in it.
	Destroy() error
}

// GPUInstanceInfo identifies a GPU instance. The ID is reused after its destruction. Only one instance at a time has
// a placement.
type GPUInstanceInfo struct {
	ID, ProfileID int
	Placement     MIGPlacement
}

// ComputeInstanceProfile is a profile for compute instances of a GPU instance (nvmlComputeInstanceProfileInfo_v2_t).
type ComputeInstanceProfile struct {
	ID int
	// Name lacks NVML's prefix "MIG ": "1c.3g.40gb". The profile that takes the whole instance has the GPU instance's
	// name.
	Name              string
	Slices, Instances int
	Multiprocessors   int
}

type ComputeInstance interface {
	Info() (ComputeInstanceInfo, error)
	// Destroy returns InUse while a process uses it.
	Destroy() error
}

// ComputeInstanceInfo identifies a compute instance within its GPU instance.
type ComputeInstanceInfo struct{ ID, ProfileID int }

// MIGDevice is a compute instance as CUDA lists it.
type MIGDevice struct {
	// UUID is "MIG-…". It is constant for the life of the instance; a later instance at the same placement may have
	// another.
	UUID                         string
	GPUInstance, ComputeInstance int
}
