// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"slices"

	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
	"gpu-dra-driver/pkg/node/sampler"
	"gpu-dra-driver/pkg/partition/layout"
)

// The states of parts of a GPU.
const (
	// allocated parts belong to claims.
	allocated = "allocated"
	// free parts are available to claims.
	free = "free"
	// unhealthy parts belong to no claim, and their GPU has a fault or is missing.
	unhealthy = "unhealthy"
	// blocked parts belong to no claim, and no claim can get them. Either no partition fits in the rest of the GPU, or
	// its shares are used up, or a device plugin serves the GPU.
	blocked = "blocked"
)

// ratesOf returns what each series gains in a second: GPUs or parts of them, and 1 or 0 for the time of processes.
func (c *counters) ratesOf(o observation) map[series]float64 {
	out := map[series]float64{}
	for _, g := range c.boards {
		var held []plan.Device
		for n := range o.plans {
			held = append(held, o.charge(out, g, n)...)
		}
		for state, part := range o.states(g, held) {
			out[of(&gpuSeconds, g.UUID, g.ProductName, state)] = part
		}
	}
	return out
}

// charge adds the rates of a claim on a board, and returns its devices there. Admin access holds nothing.
func (o observation) charge(out map[series]float64, g gpu.GPU, n int) (own []plan.Device) {
	claim, active, occupied, source := o.plans[n].Claim, 0., float64(sampler.Absent), ""
	for i, d := range o.plans[n].Devices {
		if d.PCIAddress != g.PCIAddress || d.Admin {
			continue
		}
		own = append(own, d)
		u, measured := o.uses[[2]int{n, i}]
		if !measured {
			continue
		}
		occupied = max(occupied, min(1, u.Processes))
		if size := sizeOf(d, g); size > 0 && u.Utilization != sampler.Absent {
			active += size * min(sharePart(d.Share), u.Utilization)
			if source = "nvml"; d.Kind == gpu.KindMIG {
				source = "gpm"
			}
		}
	}
	if len(own) == 0 {
		return nil
	}
	_, part := takenBy(own, g)
	labels := []string{claim.Namespace, claim.Name, claim.UID, own[0].UUID, g.ProductName}
	out[of(&claimAllocated, labels...)] = part
	out[of(&namespaceAllocated, claim.Namespace, g.ProductName)] += part
	if occupied >= 0 {
		out[of(&claimOccupied, labels...)] = occupied
	}
	if source != "" {
		out[of(&claimActive, append(labels, source)...)] = min(active, part)
	}
	return own
}

// sizeOf returns the part of its board that a device with all its shares has, 0 to 1. A partition has the part of its
// memory slices.
func sizeOf(d plan.Device, g gpu.GPU) float64 {
	if d.Kind != gpu.KindMIG {
		return 1
	}
	if n := layout.Slices(g.MIG.Profiles); n > 0 {
		return min(1, float64(d.Partition.Size)/float64(n))
	}
	return 0 // No scan has found the board's slices.
}

// sharePart returns the part of its device that a share has: the larger of its parts of memory and compute.
func sharePart(s plan.Share) float64 {
	if s.DeviceMemoryBytes == 0 {
		return 1
	}
	return min(1, max(float64(s.MemoryBytes)/float64(s.DeviceMemoryBytes), float64(s.Compute)/100))
}

// taken is a device of claims on a board, with the sum of its shares.
type taken struct {
	plan.Device
	shares plan.Use
	// size is the device's part of the board, and part the shares' part of the device. The shares can take more of
	// memory and compute together than the device has of each, but they have at most the device.
	size, part float64
}

// takenBy returns the devices of claims on a board by name, and the part of the board that they have, 0 to 1.
func takenBy(held []plan.Device, g gpu.GPU) (devices map[string]taken, sum float64) {
	devices = map[string]taken{}
	for _, d := range held {
		t, size := devices[d.Name], sizeOf(d, g)
		more := min(sharePart(d.Share), 1-t.part)
		t.shares.Add(d.Share)
		devices[d.Name] = taken{d, t.shares, size, t.part + more}
		sum += size * more
	}
	return devices, min(1, sum)
}

// states returns the parts of a board in each state, which add up to 1.
func (o observation) states(g gpu.GPU, held []plan.Device) map[string]float64 {
	devices, part := takenBy(held, g)
	out := map[string]float64{allocated: part, free: 0, unhealthy: 0, blocked: 0}
	_, present := o.snapshot.ByAddress(g.PCIAddress)
	_, served := o.served[g.PCIAddress]
	switch {
	case !present || slices.ContainsFunc(g.Faults, takesGPU):
		out[unhealthy] = 1 - part
	case served:
		out[blocked] = 1 - part
	default:
		out[free] = max(0, min(1-part, available(devices, held, g)))
		out[blocked] = 1 - part - out[free]
	}
	return out
}

// takesGPU reports whether no new claim can get a GPU with the fault. A fault of groups leaves the GPU itself.
func takesGPU(f gpu.Fault) bool {
	state, known := health.Lookup(f.State)
	return !known || !state.GroupsOnly
}

// available returns the part of a healthy board that claims can still get: the rest of devices with room for another
// share, and memory slices for further partitions.
func available(devices map[string]taken, held []plan.Device, g gpu.GPU) (sum float64) {
	if len(held) == 0 {
		return 1
	}
	compute, most, usable := 0, 0, map[int]bool{}
	for _, t := range devices {
		s := t.Share
		if t.shares.MemoryBytes < s.DeviceMemoryBytes && (s.MaxShares == 0 || t.shares.Count < s.MaxShares) {
			sum += t.size * (1 - t.part)
		}
		p, _ := g.MIG.ProfileNamed(t.Partition.Profile)
		compute += p.Slices
	}
	for _, p := range g.MIG.Profiles {
		most = max(most, p.Slices)
	}
	for _, p := range g.MIG.Profiles {
		for _, at := range p.Placements {
			fits := !slices.ContainsFunc(held, func(d plan.Device) bool {
				return d.Kind != gpu.KindMIG || at.Overlaps(d.Partition.Placement())
			})
			for i := at.Start; i < at.End() && fits && compute+p.Slices <= most; i++ {
				usable[i] = true
			}
		}
	}
	return sum + float64(len(usable))/float64(max(1, layout.Slices(g.MIG.Profiles)))
}
