// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package gpu

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
