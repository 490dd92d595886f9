// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

// Partitionable has the queries and changes of MIG. On a GPU without MIG every method returns NotSupported.
//
// Profiles and placements are available in either mode. Instances are available only while the mode is on; otherwise
// the methods return NotSupported.
type Partitionable interface {
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
	// CreateGPUInstance creates an instance at exactly that placement. It returns InsufficientResources if the
	// placement is occupied.
	CreateGPUInstance(profileID int, at MIGPlacement) (GPUInstance, error)
	// MIGDevices returns the compute instances with a device handle, with their UUIDs, ordered by GPU instance and
	// compute instance ID. A GPU instance without a compute instance has none.
	MIGDevices() ([]MIGDevice, error)
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
