// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"slices"

	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
)

// State says what a part of a GPU is doing.
type State string

const (
	// Allocated parts belong to claims.
	Allocated State = "allocated"
	// Free parts are available to claims.
	Free State = "free"
	// Unhealthy parts belong to no claim, and their GPU has a fault or is missing.
	Unhealthy State = "unhealthy"
	// Blocked parts belong to no claim, and no claim can get them. Either no partition fits in the rest of the GPU, or
	// its shares are used up, or a device plugin serves the GPU.
	Blocked State = "blocked"
)

// States are all states.
var States = []State{Allocated, Free, Unhealthy, Blocked}

// memorySlices returns the number of memory slices of a board, 0 if it has no MIG.
func memorySlices(g gpu.GPU) int {
	n := 0
	for _, p := range g.MIG.Profiles {
		for _, at := range p.Placements {
			n = max(n, at.End())
		}
	}
	return n
}

// weightOf returns a device's part of its board, 0 to 1. A partition has the part of its memory slices. A share has the
// larger of its parts of memory and compute. Admin access weighs nothing.
func weightOf(d plan.Device, boardSlices int) float64 {
	weight := 1.
	switch {
	case d.Admin:
		return 0
	case d.Kind == gpu.KindMIG && boardSlices == 0:
		return 0 // No scan has found the board's slices.
	case d.Kind == gpu.KindMIG:
		weight = min(1, float64(d.Partition.Size)/float64(boardSlices))
	}
	return weight * sharePart(d.Share)
}

func sharePart(s plan.Share) float64 {
	if s == (plan.Share{}) || s.DeviceMemoryBytes == 0 {
		return 1
	}
	return min(1, max(float64(s.MemoryBytes)/float64(s.DeviceMemoryBytes), float64(s.Compute)/100))
}

// together returns the part of a board that devices on it have, 0 to 1. The shares of a device can take more of memory
// and compute together than the device has of each, but they have at most the device.
func together(devices []plan.Device, boardSlices int) (sum float64) {
	taken := map[string]float64{}
	for _, d := range devices {
		if d.Admin {
			continue
		}
		whole := d
		whole.Share = plan.Share{}
		more := min(weightOf(d, boardSlices), weightOf(whole, boardSlices)-taken[d.Name])
		taken[d.Name] += more
		sum += more
	}
	return min(1, sum)
}

// board is a GPU with the devices of claims on it.
type board struct {
	gpu     gpu.GPU
	present bool
	slices  int
	served  bool
	held    []plan.Device
}

// states returns the parts of the board in each state, which add up to 1.
func (b board) states() map[State]float64 {
	allocated := together(b.held, b.slices)
	out := map[State]float64{Allocated: allocated}
	rest := 1 - allocated
	switch {
	case !b.present || slices.ContainsFunc(b.gpu.Faults, takesGPU):
		out[Unhealthy] = rest
	case b.served:
		out[Blocked] = rest
	default:
		out[Free] = min(rest, b.free())
		out[Blocked] = rest - out[Free]
	}
	return out
}

// takesGPU reports whether no new claim can get a GPU with the fault. A fault of groups leaves the GPU itself.
func takesGPU(f gpu.Fault) bool {
	state, known := health.Lookup(f.State)
	return !known || !state.GroupsOnly
}

// free returns the part of a healthy board that claims can still get.
func (b board) free() float64 {
	shares, held := map[string]plan.Use{}, map[string][]plan.Device{}
	devices := map[string]plan.Device{}
	for _, d := range b.held {
		if d.Admin {
			continue
		}
		devices[d.Name], held[d.Name] = d, append(held[d.Name], d)
		use := shares[d.Name]
		use.Add(d.Share)
		shares[d.Name] = use
	}
	if len(devices) == 0 {
		return 1
	}
	free := 0.
	for name, d := range devices {
		if !d.Partial() || full(shares[name], d.Share) {
			continue
		}
		whole := d
		whole.Share = plan.Share{}
		free += weightOf(whole, b.slices) - together(held[name], b.slices)
	}
	return max(0, free) + b.freeSlices(devices)
}

// freeSlices returns the part of the board's memory slices that a further partition can use.
func (b board) freeSlices(devices map[string]plan.Device) float64 {
	usable := make([]bool, b.slices)
	compute, most := 0, 0
	for _, p := range b.gpu.MIG.Profiles {
		most = max(most, p.Slices)
	}
	for _, d := range devices {
		if d.Kind != gpu.KindMIG {
			return 0
		}
		p, _ := b.gpu.MIG.ProfileNamed(d.Partition.Profile)
		compute += p.Slices
	}
	for _, p := range b.gpu.MIG.Profiles {
		if compute+p.Slices > most {
			continue
		}
		for _, at := range p.Placements {
			if !overlaps(at, devices) {
				for i := at.Start; i < at.End(); i++ {
					usable[i] = true
				}
			}
		}
	}
	n := 0
	for _, is := range usable {
		if is {
			n++
		}
	}
	return float64(n) / float64(max(1, b.slices))
}

func overlaps(at gpu.Placement, devices map[string]plan.Device) bool {
	for _, d := range devices {
		if at.Overlaps(d.Partition.Placement()) {
			return true
		}
	}
	return false
}

// full reports whether a shared device has no room for another share.
func full(u plan.Use, s plan.Share) bool {
	return u.MemoryBytes >= s.DeviceMemoryBytes || s.MaxShares > 0 && u.Count >= s.MaxShares
}
