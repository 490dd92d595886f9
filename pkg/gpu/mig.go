// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package gpu

// MIG is how a GPU can be, and is, cut into partitions. The zero MIG is a GPU that has no MIG.
type MIG struct {
	// Capable says that the GPU has a MIG mode, whatever that mode is now.
	Capable bool `json:"capable,omitempty"`
	// Enabled is the mode now, Pending the one it has after its next reset.
	Enabled bool `json:"enabled,omitempty"`
	Pending bool `json:"pending,omitempty"`
	// Switchable says that the mode can be changed without a reset (Hopper and later).
	Switchable bool `json:"switchable,omitempty"`
	// Profiles are what the GPU can be cut into, in NVML's order, each with its placements.
	Profiles []Profile `json:"profiles,omitempty"`
	// Partitions are the GPU instances there now, in order of their start.
	Partitions []Partition `json:"partitions,omitempty"`
	// Fault says why Profiles or Partitions could not be read, or cannot be believed; they are empty then.
	Fault string `json:"fault,omitempty"`
}

// Profile is a shape of partition, as NVML reports it for one GPU.
type Profile struct {
	// ID is what NVML makes instances with.
	ID int `json:"id"`
	// Name is "1g.10gb", "1g.10gb+me", "1g.24gb-me".
	Name string `json:"name"`
	// Slices is the number of compute slices; Instances how many fit on an empty GPU.
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

// Placement is a place on a GPU, in memory slices.
type Placement struct {
	Start int `json:"start"`
	Size  int `json:"size"`
}

// End is the first slice after it.
func (p Placement) End() int { return p.Start + p.Size }

// Overlaps says whether two placements share a slice.
func (p Placement) Overlaps(o Placement) bool { return p.Start < o.End() && o.Start < p.End() }

// Partition is a GPU instance that exists.
type Partition struct {
	// Profile is its profile's name, empty where NVML names none of that ID.
	Profile   string    `json:"profile,omitempty"`
	Placement Placement `json:"placement"`
	// GPUInstance is NVML's ID of it, of use for this moment only.
	GPUInstance int `json:"gpuInstance"`
	// Devices are its compute instances that CUDA can use. Usually one, which takes all of it; none after a crash
	// between the two steps of making it.
	Devices []PartitionDevice `json:"devices,omitempty"`
}

// PartitionDevice is a compute instance of a partition.
type PartitionDevice struct {
	// UUID is "MIG-…".
	UUID            string `json:"uuid"`
	ComputeInstance int    `json:"computeInstance"`
}

// ProfileNamed finds a profile.
func (m MIG) ProfileNamed(name string) (Profile, bool) {
	for _, p := range m.Profiles {
		if p.Name == name {
			return p, true
		}
	}
	return Profile{}, false
}

// At finds the partition of a profile at a start.
func (m MIG) At(profile string, start int) (Partition, bool) {
	for _, p := range m.Partitions {
		if p.Profile == profile && p.Placement.Start == start {
			return p, true
		}
	}
	return Partition{}, false
}
