// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

// Partitionable is the part of a GPU that MIG changes. On a GPU without MIG every method answers NotSupported.
//
// What can be made (profiles, placements) is answered whatever the mode is now; what is there (instances) only while
// the mode is on, NotSupported otherwise.
type Partitionable interface {
	// MIGMode answers NotSupported on a GPU without MIG. Pending differs from current while a reset is awaited.
	MIGMode() (current, pending bool, err error)
	// SetMIGMode sets the pending mode. Where the architecture needs no reset and nothing holds the GPU, it is current
	// when this returns nil. ResetRequired: it is pending until the GPU is reset. InUse: something holds the GPU, or an
	// instance lives and the mode was to be switched off; nothing changed, which MIGMode confirms.
	SetMIGMode(on bool) error
	// GPUInstanceProfiles are all the GPU offers, in order of NVML's profile index. A GPU that reports none gives none.
	GPUInstanceProfiles() ([]GPUInstanceProfile, error)
	// GPUInstancePlacements are the places that an instance of a profile can have on the empty GPU.
	GPUInstancePlacements(profileID int) ([]MIGPlacement, error)
	// GPUInstances are those there now, of all profiles, in order of their IDs.
	GPUInstances() ([]GPUInstance, error)
	// CreateGPUInstance makes one at exactly that placement. InsufficientResources where something is in its way.
	CreateGPUInstance(profileID int, at MIGPlacement) (GPUInstance, error)
	// MIGDevices are the compute instances that have a device handle now, with their UUIDs, in order of GPU instance and
	// compute instance ID. A GPU instance without a compute instance has none.
	MIGDevices() ([]MIGDevice, error)
}

// GPUInstanceProfile is what a GPU can be cut into (nvmlGpuInstanceProfileInfo_v2_t).
type GPUInstanceProfile struct {
	// ID is what instances are made with, such as 19; it is not the index of the query.
	ID int
	// Name is without the "MIG " in front: "1g.10gb", "1g.10gb+me".
	Name string
	// Slices is the number of compute slices, Instances how many of the profile fit on an empty GPU.
	Slices, Instances int
	MemoryMiB         uint64

	Multiprocessors, CopyEngines, Decoders, Encoders, JPEGEngines, OFAEngines int
}

// MIGPlacement is a place on a GPU in memory slices (nvmlGpuInstancePlacement_t).
type MIGPlacement struct{ Start, Size int }

// GPUInstance is a live partition of a GPU.
type GPUInstance interface {
	Info() (GPUInstanceInfo, error)
	// ComputeInstanceProfiles are those it offers, in order of NVML's profile index.
	ComputeInstanceProfiles() ([]ComputeInstanceProfile, error)
	// ComputeInstances are those there now, in order of their IDs.
	ComputeInstances() ([]ComputeInstance, error)
	CreateComputeInstance(profileID int) (ComputeInstance, error)
	// Destroy answers InUse while a compute instance lives in it.
	Destroy() error
}

// GPUInstanceInfo identifies a GPU instance. The ID is free for another once it is destroyed; the placement is not an
// ID but tells which it is at any moment.
type GPUInstanceInfo struct {
	ID, ProfileID int
	Placement     MIGPlacement
}

// ComputeInstanceProfile is what a GPU instance can be cut into (nvmlComputeInstanceProfileInfo_v2_t).
type ComputeInstanceProfile struct {
	ID int
	// Name is without the "MIG " in front: "1c.3g.40gb"; the one that takes the whole instance is named as that is.
	Name              string
	Slices, Instances int
	Multiprocessors   int
}

type ComputeInstance interface {
	Info() (ComputeInstanceInfo, error)
	// Destroy answers InUse while a process holds it.
	Destroy() error
}

// ComputeInstanceInfo identifies a compute instance within its GPU instance.
type ComputeInstanceInfo struct{ ID, ProfileID int }

// MIGDevice is a compute instance as CUDA sees it.
type MIGDevice struct {
	// UUID is "MIG-…". It is the instance's for as long as it lives; one made later in its place may have another.
	UUID                         string
	GPUInstance, ComputeInstance int
}
