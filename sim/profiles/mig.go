// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package profiles

import (
	"fmt"
	"regexp"
	"slices"
)

// MIG describes the partitions of a board.
type MIG struct {
	// Slices is the number of memory slices.
	Slices int `json:"slices"`
	// ResetFree means that switching the mode needs no reset of the GPU.
	ResetFree bool `json:"resetFree"`
	// GPUInstances are ordered by Index.
	GPUInstances []GPUInstanceProfile `json:"gpuInstances"`
}

// GPUInstanceProfile is a profile for partitions.
type GPUInstanceProfile struct {
	// Index is nvml.h's NVML_GPU_INSTANCE_PROFILE_*, ID the profile's ID for creating instances.
	Index int `json:"index"`
	ID    int `json:"id"`
	// Name lacks NVML's prefix "MIG ".
	Name string `json:"name"`
	// Slices is the number of compute slices, Instances the largest number of instances at once.
	Slices    int    `json:"slices"`
	Instances int    `json:"instances"`
	MemoryMiB uint64 `json:"memoryMiB"`

	Multiprocessors int     `json:"multiprocessors"`
	Engines         Engines `json:"engines"`
	// Starts lists the possible first memory slices, Size is the number of memory slices.
	Starts []int `json:"starts"`
	Size   int   `json:"size"`
}

// ComputeInstanceProfile is a part of a GPU instance's multiprocessors.
type ComputeInstanceProfile struct {
	// Index is nvml.h's NVML_COMPUTE_INSTANCE_PROFILE_*.
	Index, ID         int
	Name              string
	Slices, Instances int
	Multiprocessors   int
}

// computeSizes holds nvml.h's sizes by index.
var computeSizes = []int{1, 2, 3, 4, 7, 8, 6}

// ComputeInstances returns the compute instance profiles of a GPU instance; the last one takes all of it.
func (p GPUInstanceProfile) ComputeInstances() []ComputeInstanceProfile {
	var out []ComputeInstanceProfile
	for index, size := range computeSizes {
		if size > p.Slices || size < p.Slices && size == 3 && p.Slices == 4 || size < p.Slices && size > 4 {
			continue
		}
		c := ComputeInstanceProfile{
			Index: index, ID: index, Name: fmt.Sprintf("%dc.%s", size, p.Name), Slices: size,
			Instances: p.Slices / size, Multiprocessors: p.Multiprocessors * size / p.Slices,
		}
		if size == p.Slices {
			c.Name = p.Name
		}
		out = append(out, c)
	}
	slices.SortStableFunc(out, func(a, b ComputeInstanceProfile) int { return a.Slices - b.Slices })
	return out
}

// Profile finds a GPU instance profile by its ID.
func (m *MIG) Profile(id int) (GPUInstanceProfile, bool) {
	if m == nil {
		return GPUInstanceProfile{}, false
	}
	i := slices.IndexFunc(m.GPUInstances, func(p GPUInstanceProfile) bool { return p.ID == id })
	if i < 0 {
		return GPUInstanceProfile{}, false
	}
	return m.GPUInstances[i], true
}

// Engines returns the whole board's engines that partitions share.
func (m *MIG) Engines() Engines {
	var e Engines
	for _, p := range m.GPUInstances {
		e.Copy, e.Decoder, e.Encoder = max(e.Copy, p.Engines.Copy), max(e.Decoder, p.Engines.Decoder), max(e.Encoder, p.Engines.Encoder)
		e.JPEG, e.OFA = max(e.JPEG, p.Engines.JPEG), max(e.OFA, p.Engines.OFA)
	}
	return e
}

var migName = regexp.MustCompile(`^[1-9][0-9]*g\.[1-9][0-9]*gb([+-][a-z]+(\.[a-z]+)*)*$`)

func (m *MIG) validate(b Board) error {
	if m == nil {
		if b.MIGCapable {
			return fmt.Errorf("mig: a board that is MIG capable says how it is cut")
		}
		return nil
	}
	if !b.MIGCapable {
		return fmt.Errorf("mig: the board is not MIG capable")
	}
	if m.Slices < 1 || m.Slices > 32 || len(m.GPUInstances) == 0 {
		return fmt.Errorf("mig: 1 to 32 slices and at least one profile, got %d and %d", m.Slices, len(m.GPUInstances))
	}
	indexes, ids, names := map[int]bool{}, map[int]bool{}, map[string]bool{}
	for i, p := range m.GPUInstances {
		bad := func(format string, args ...any) error {
			return fmt.Errorf("mig.gpuInstances[%d]: "+format, append([]any{i}, args...)...)
		}
		switch {
		case p.Index < 0 || p.Index > 63 || indexes[p.Index] || p.ID < 0 || ids[p.ID] || names[p.Name]:
			return bad("index %d, id %d and name %q are each once", p.Index, p.ID, p.Name)
		case !migName.MatchString(p.Name) || len(p.Name) > 80:
			return bad("name %q", p.Name)
		case p.Slices < 1 || p.Instances < 1 || p.Multiprocessors < 1 || p.MemoryMiB == 0 || p.MemoryMiB > b.MemoryMiB:
			return bad("slices, instances, multiprocessors and memoryMiB are above 0, memory within the board's")
		case len(p.Starts) == 0 || p.Size < 1 || !slices.IsSorted(p.Starts):
			return bad("starts are sorted, and there is one")
		case p.Starts[0] < 0 || p.Starts[len(p.Starts)-1]+p.Size > m.Slices:
			return bad("a placement is outside of the %d slices", m.Slices)
		}
		indexes[p.Index], ids[p.ID], names[p.Name] = true, true, true
	}
	return nil
}
