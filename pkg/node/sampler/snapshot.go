// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package sampler

import (
	"time"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
)

// Absent is the value of a measurement that the device, its mode or the driver does not have. All others are 0 or more.
const Absent = nvml.NotReported

// Snapshot holds one reading of each GPU. It is shared: do not change it.
type Snapshot struct {
	// At is the end of the reading, zero if there was none.
	At   time.Time
	GPUs []GPU
}

// Device holds the measurements of a board or a partition.
type Device struct {
	Kind gpu.Kind
	// Name is the name of the published device.
	Name, UUID string
	// Profile and GPUInstance are a partition's.
	Profile     string
	GPUInstance int
	// Utilization is the part of the time in which a kernel ran. SM, Tensor and DRAM are the parts of multiprocessors,
	// of tensor cores and of memory bandwidth in use. They are of this device: 1 is all of a partition.
	Utilization, SM, Tensor, DRAM float64
	// MemoryUsed and MemoryTotal are in bytes.
	MemoryUsed, MemoryTotal float64
	// MemoryReserved is the driver's own part of MemoryTotal, which MemoryUsed does not include.
	MemoryReserved float64
	// Processes is nil if they could not be listed.
	Processes []Process
}

// GPU holds the measurements of a board, and of its partitions.
type GPU struct {
	Device
	Address, Model string
	Index, Minor   int
	// MemoryUtilization is the part of the time in which memory was read or written.
	MemoryUtilization float64
	// Encoder and Decoder are the parts of the time in which the video engines ran.
	Encoder, Decoder float64
	// PowerW is in watts, TemperatureC in degrees Celsius.
	PowerW, TemperatureC float64
	// Clocks holds frequencies in Hz, by name: see the label "clock" of the metrics.
	Clocks map[string]float64
	// Counters are NVML's; all of them are Absent if they could not be read.
	Counters nvml.Counters
	// Partitions is empty for a GPU that is not in MIG mode.
	Partitions []Device
}

// Process uses a device.
type Process struct {
	PID uint32
	// Memory is in bytes. Utilization is a part of the device's multiprocessors.
	Memory, Utilization float64
	// Files are the metadata files that it has mounted. Nil: they are unknown, or only one claim uses the device.
	Files []File
}

// Target is a GPU to measure.
type Target struct {
	gpu.GPU
	// Shared means that several claims use the whole GPU.
	Shared     bool
	Partitions []Partition
}

// Partition is a compute instance to measure.
type Partition struct {
	Name, Profile, UUID          string
	GPUInstance, ComputeInstance int
	// Shared means that several claims use the partition.
	Shared bool
}

// uuid returns the UUID of a device's GPU or partition.
func uuid(d plan.Device) string {
	if d.Kind == gpu.KindMIG {
		return d.Partition.UUID
	}
	return d.UUID
}

// Targets returns the readable GPUs of prepared claims, or with idle all of them, with their partitions: those of the
// scan and those of later claims.
func Targets(s gpu.Snapshot, plans []plan.Plan, idle bool) []Target {
	var out []Target
	held, users := map[string]bool{}, map[string]int{}
	for _, p := range plans {
		for _, address := range p.HeldGPUs() {
			held[address] = true
		}
		for _, d := range p.Devices {
			if !d.Admin {
				users[uuid(d)]++
			}
		}
	}
	for _, g := range s.GPUs {
		if !idle && !held[g.PCIAddress] {
			continue
		}
		t := Target{GPU: g, Shared: users[g.UUID] > 1}
		seen := map[string]bool{}
		add := func(profile string, start, instance int, uuid string, compute int) {
			if uuid != "" && !seen[uuid] {
				seen[uuid] = true
				name := gpu.Device{Kind: gpu.KindMIG, PCIAddress: g.PCIAddress, Profile: profile, Start: start}.Name()
				t.Partitions = append(t.Partitions, Partition{Name: name, Profile: profile, UUID: uuid,
					GPUInstance: instance, ComputeInstance: compute, Shared: users[uuid] > 1})
			}
		}
		for _, p := range plans {
			for _, d := range p.Devices {
				if d.Kind == gpu.KindMIG && d.UUID == g.UUID {
					add(d.Partition.Profile, d.Partition.Start, d.Partition.GPUInstance, d.Partition.UUID,
						d.Partition.ComputeInstance)
				}
			}
		}
		for _, p := range g.MIG.Partitions {
			for _, d := range p.Devices {
				add(p.Profile, p.Placement.Start, p.GPUInstance, d.UUID, d.ComputeInstance)
			}
		}
		out = append(out, t)
	}
	return out
}
