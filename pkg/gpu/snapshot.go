// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package gpu

import "slices"

// Snapshot is the result of one scan of a node. The zero Snapshot is a node without a loaded driver.
type Snapshot struct {
	Driver Driver `json:"driver"`
	// Machine is the machine's product name by its firmware, such as "DGXH100".
	Machine string `json:"machine,omitempty"`
	// GPUs are in order of their PCI addresses, which are unique.
	GPUs []GPU `json:"gpus,omitempty"`
	// Problems are the GPUs that could not be read; GPUs does not contain them.
	Problems []Problem `json:"problems,omitempty"`
}

// Scans has the scans of a node.
type Scans interface {
	// Snapshot returns the newest one. It must not block.
	Snapshot() Snapshot
}

// Driver is the kernel driver and the CUDA version it supports.
type Driver struct {
	// Version is NVML's, with leading zeros: "580.126.09". It is empty if no driver is loaded.
	Version string `json:"version,omitempty"`
	// CUDA is the newest CUDA version the driver supports.
	CUDA Version `json:"cuda,omitzero"`
}

// Version is a CUDA version or a compute capability. Zero means unknown.
type Version struct {
	Major int `json:"major"`
	Minor int `json:"minor"`
}

// GPU is one physical GPU. A field that NVML does not supply is zero.
type GPU struct {
	// PCIAddress is the kernel's dddd:bb:dd.f in lower case. It identifies the GPU on its node.
	PCIAddress string `json:"pciAddress"`
	// UUID is NVML's "GPU-…". It identifies the board, not the slot.
	UUID string `json:"uuid"`
	// Index is NVML's enumeration index, for people only: it can change.
	Index int `json:"index"`
	// Minor is the number in /dev/nvidia<minor>. It can change with every boot.
	Minor int `json:"minor"`

	ProductName  string `json:"productName,omitempty"`
	Brand        string `json:"brand,omitempty"`
	Architecture string `json:"architecture,omitempty"`
	// AddressingMode is "HMM", "ATS" or "None", or empty if the driver reports none.
	AddressingMode    string  `json:"addressingMode,omitempty"`
	ComputeCapability Version `json:"computeCapability,omitzero"`

	// PCIeRoot is the PCIe root complex, "pci0000:00", or empty.
	PCIeRoot string `json:"pcieRoot,omitempty"`
	// Bridges are the PCI addresses of the bridges from the root complex down to the GPU. The more of them two GPUs
	// share, the nearer they are.
	Bridges []string `json:"bridges,omitempty"`
	// Class is the PCI class as sysfs has it: "0x030200" is a 3D controller, "0x030000" has a display.
	Class string `json:"class,omitempty"`
	// NUMANode is nil if the kernel reports -1 or nothing.
	NUMANode *int `json:"numaNode,omitempty"`

	// MemoryBytes is NVML's total of the board, including the driver's reserve. 0 means unknown.
	MemoryBytes uint64 `json:"memoryBytes,omitempty"`
	// ReservedBytes is the part of MemoryBytes that the driver keeps for itself. 0 means none or unknown.
	ReservedBytes uint64 `json:"reservedBytes,omitempty"`
	// Multiprocessors is the number of SMs, 0 when unknown.
	Multiprocessors int `json:"multiprocessors,omitempty"`

	// VGPU means that the GPU is a vGPU of a virtual machine. MIG is zero then, because only the host can cut the GPU.
	VGPU bool `json:"vgpu,omitempty"`
	MIG  MIG  `json:"mig,omitzero"`
	Interconnect
	// MPSCapable means that MPS can limit a client's memory and SMs on this GPU (Volta and newer).
	MPSCapable bool `json:"mpsCapable,omitempty"`
	// MemoryLimits means that the driver can limit the memory of a container's cgroup (CUDA 13.4 and newer).
	MemoryLimits bool `json:"memoryLimits,omitempty"`
	// Faults are the GPU's present faults, the worst first.
	Faults []Fault `json:"faults,omitempty"`
	// Advice are conditions of a GPU that works, such as errors that become more.
	Advice []Fault `json:"advice,omitempty"`
	// Unmonitored is the reason why faults of the GPU cannot be seen; empty if they can.
	Unmonitored string `json:"unmonitored,omitempty"`
	// Silent means that NVML has not answered for the GPU for a while. The other fields are from its last answers.
	Silent bool `json:"silent,omitempty"`
}

// Fault is a fault of a readable GPU, or advice. pkg/gpu/health decides on it, and knows the remedy.
type Fault struct {
	// State is the value of the unhealthy taint, such as "reset". Advice causes no taint.
	State string `json:"state"`
	// Cause is for people.
	Cause string `json:"cause"`
}

// Problem is a GPU that could not be read.
type Problem struct {
	// PCIAddress is empty if it is unknown too.
	PCIAddress string `json:"pciAddress,omitempty"`
	UUID       string `json:"uuid,omitempty"`
	// Index is NVML's enumeration index; -1 for a GPU that NVML does not list.
	Index int `json:"index"`
	// Lost means that NVML answered "GPU is lost": the GPU is off the bus until a reset or reboot.
	Lost bool `json:"lost,omitempty"`
	// Silent means that NVML did not answer, with its last answers unknown.
	Silent bool `json:"silent,omitempty"`
	// Message holds the attempt and the driver's answer.
	Message string `json:"message"`
}

func (s Snapshot) ByAddress(address string) (GPU, bool) {
	for _, g := range s.GPUs {
		if g.PCIAddress == address {
			return g, true
		}
	}
	return GPU{}, false
}

// Gone reports whether the driver does not list a GPU, which the caller knows from earlier. Without a driver none is
// gone, because it comes back with the driver. While the address of an unreadable GPU is unknown, that GPU can be the
// missing one.
func (s Snapshot) Gone(address string) bool {
	if _, listed := s.ByAddress(address); listed || s.Driver.Version == "" {
		return false
	}
	return !slices.ContainsFunc(s.Problems, func(p Problem) bool {
		return p.PCIAddress == address || p.PCIAddress == ""
	})
}

// SilentText is the cause of a fault of a GPU for which NVML does not answer.
const SilentText = "the GPU hangs: NVML does not answer for it"

// GoneText is the cause of a fault of a GPU that is gone.
const GoneText = "the driver no longer lists the GPU"

// Peer is the kind of device at the other end of an NVLink.
type Peer string

const (
	// PeerGPU is a directly connected GPU.
	PeerGPU Peer = "gpu"
	// PeerSwitch is an NVSwitch, which connects all GPUs on it.
	PeerSwitch Peer = "switch"
	// PeerOther is a CPU or a device that NVML does not name.
	PeerOther Peer = "other"
)

// Link is an NVLink that is up.
type Link struct {
	// Index is NVML's number of the link.
	Index int `json:"index"`
	// Version is the NVLink generation, from 1 for Pascal to 5 for Blackwell; 0 means unknown.
	Version int  `json:"version,omitempty"`
	Peer    Peer `json:"peer"`
	// PeerAddress is the PCI address of the other end; empty where NVML reports none, as for switches since Hopper.
	PeerAddress string `json:"peerAddress,omitempty"`
}

// Fabric is a GPU's membership in an NVLink fabric. The zero Fabric belongs to a GPU without a fabric.
type Fabric struct {
	State FabricState `json:"state,omitempty"`
	// ClusterUUID and CliqueID are equal for GPUs that reach each other over NVLink, across nodes too. The UUID is
	// empty if the fabric ends at the node's own board.
	ClusterUUID string `json:"clusterUUID,omitempty"`
	CliqueID    int    `json:"cliqueID,omitempty"`
}

// FabricState is the progress of a GPU's registration with its fabric.
type FabricState string

const (
	// FabricReady GPUs are registered.
	FabricReady FabricState = "ready"
	// FabricPending GPUs are not registered yet: the fabric manager is not running or has not finished.
	FabricPending FabricState = "pending"
	// FabricFailed GPUs were refused by the fabric manager.
	FabricFailed FabricState = "failed"
)

// Interconnect holds a GPU's connections. MIG mode hides them but does not change them.
type Interconnect struct {
	// Links are the NVLinks that are up, by index.
	Links []Link `json:"links,omitempty"`
	// Unreachable lists the node's GPUs without NVLink peer-to-peer access according to NVML, although links lead to
	// them: PCI addresses, sorted.
	Unreachable []string `json:"unreachable,omitempty"`
	Fabric      Fabric   `json:"fabric,omitzero"`
}

// MIG holds a GPU's MIG modes, profiles and partitions. The zero MIG belongs to a GPU without MIG.
type MIG struct {
	// Capable means that the GPU supports MIG, in whichever mode it is now.
	Capable bool `json:"capable,omitempty"`
	// Enabled is the current mode, Pending the mode after the next reset.
	Enabled bool `json:"enabled,omitempty"`
	Pending bool `json:"pending,omitempty"`
	// Switchable means that the mode changes without a reset (Hopper and later).
	Switchable bool `json:"switchable,omitempty"`
	// Profiles are in NVML's order.
	Profiles []Profile `json:"profiles,omitempty"`
	// Partitions are the existing GPU instances, by start.
	Partitions []Partition `json:"partitions,omitempty"`
	// Fault is the reason why Profiles and Partitions are unreadable or implausible; both are empty then.
	Fault string `json:"fault,omitempty"`
}

// Profile is a MIG profile as NVML reports it for one GPU.
type Profile struct {
	// ID is the profile ID that NVML takes to create instances.
	ID int `json:"id"`
	// Name is such as "1g.10gb", "1g.10gb+me" or "1g.24gb-me".
	Name string `json:"name"`
	// Slices is the number of compute slices; Instances is the number that fits on an empty GPU.
	Slices    int `json:"slices"`
	Instances int `json:"instances"`

	MemoryBytes     uint64 `json:"memoryBytes,omitempty"`
	Multiprocessors int    `json:"multiprocessors,omitempty"`
	CopyEngines     int    `json:"copyEngines,omitempty"`
	Decoders        int    `json:"decoders,omitempty"`
	Encoders        int    `json:"encoders,omitempty"`
	JPEGEngines     int    `json:"jpegEngines,omitempty"`
	OFAEngines      int    `json:"ofaEngines,omitempty"`

	// Placements are in order of their start.
	Placements []Placement `json:"placements"`
}

// Placement is a position on a GPU, in memory slices.
type Placement struct {
	Start int `json:"start"`
	Size  int `json:"size"`
}

// End is the first slice after the placement.
func (p Placement) End() int { return p.Start + p.Size }

// Overlaps reports whether two placements share a slice.
func (p Placement) Overlaps(o Placement) bool { return p.Start < o.End() && o.Start < p.End() }

// Partition is an existing GPU instance.
type Partition struct {
	// Profile is the name of its profile, empty if NVML lists no profile with its ID.
	Profile   string    `json:"profile,omitempty"`
	Placement Placement `json:"placement"`
	// GPUInstance is NVML's ID. It is valid only now: a later instance can get the same one.
	GPUInstance int `json:"gpuInstance"`
	// Devices are the compute instances that CUDA can use. There is usually one, which takes all of the partition.
	// There is none if a crash interrupted the creation.
	Devices []PartitionDevice `json:"devices,omitempty"`
	// Unlisted means that it has compute instances, and NVML lists none of their devices: drivers list them once in a
	// session, which lacks those of another process.
	Unlisted bool `json:"unlisted,omitempty"`
}

// PartitionDevice is a compute instance of a partition.
type PartitionDevice struct {
	// UUID is "MIG-…".
	UUID            string `json:"uuid"`
	ComputeInstance int    `json:"computeInstance"`
}

func (m MIG) ProfileNamed(name string) (Profile, bool) {
	for _, p := range m.Profiles {
		if p.Name == name {
			return p, true
		}
	}
	return Profile{}, false
}

func (m MIG) At(profile string, start int) (Partition, bool) {
	for _, p := range m.Partitions {
		if p.Profile == profile && p.Placement.Start == start {
			return p, true
		}
	}
	return Partition{}, false
}
