// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package sampler

import (
	"slices"

	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
)

// Use is a claim's device with its measurements. If other claims use the device too, only processes are measured
// that have the claim's metadata file mounted. Then all claims together never use more than the device does.
type Use struct {
	plan.Device
	// Measured is the GPU or partition.
	Measured Device
	// Model is the board's model.
	Model string
	// Utilization is a part of the GPU or partition, also for a share. MemoryUsed is in bytes, Processes their number.
	// Each of them can be Absent.
	Utilization, MemoryUsed, Processes float64
}

// Uses returns the measured devices of plans, by the positions of plan and device. Devices with admin access are not in
// use.
func Uses(s Snapshot, plans []plan.Plan) map[[2]int]Use {
	measured, models := map[string]Device{}, map[string]string{}
	for _, g := range s.GPUs {
		measured[g.UUID], models[g.UUID] = g.Device, g.Model
		for _, p := range g.Partitions {
			measured[p.UUID] = p
		}
	}
	out, users := map[[2]int]Use{}, map[string][]user{}
	for n, p := range plans {
		for i, d := range p.Devices {
			m, ok := measured[uuid(d)]
			if !ok || d.Admin {
				continue
			}
			at := [2]int{n, i}
			out[at] = Use{Device: d, Measured: m, Model: models[d.UUID], Utilization: m.Utilization,
				MemoryUsed: m.MemoryUsed, Processes: Absent}
			if m.Processes != nil {
				u := out[at]
				u.Processes = float64(len(m.Processes))
				out[at] = u
			}
			number, ok := p.MetadataFile(i)
			users[m.UUID] = append(users[m.UUID], user{at: at, file: File{p.Claim.UID, number}, hasFile: ok})
		}
	}
	for id, of := range users {
		if len(of) == 1 {
			continue
		}
		for at, part := range divide(measured[id], of) {
			u := out[at]
			u.Utilization, u.MemoryUsed, u.Processes = part.utilization, part.memory, part.processes
			out[at] = u
		}
	}
	return out
}

// user is a claim's device, by the positions of plan and device, and its metadata file.
type user struct {
	at      [2]int
	file    File
	hasFile bool
}

// part is the part of a device's use that one of its users has.
type part struct{ utilization, memory, processes float64 }

// divide attributes the processes of a device to its users. Processes that have none of their files mounted, such as an
// MPS server and processes outside of Kubernetes, belong to no user. If the files of a process are unknown, it can be
// any user's. A process with the files of several users is a part of each of them, so these cannot be measured.
func divide(d Device, users []user) map[[2]int]part {
	out, none := map[[2]int]part{}, part{Absent, Absent, Absent}
	known := d.Processes != nil && !slices.ContainsFunc(d.Processes, func(p Process) bool { return p.Files == nil })
	for _, u := range users {
		if out[u.at] = (part{}); !known || !u.hasFile {
			out[u.at] = none
		}
	}
	if !known {
		return out
	}
	var utilization, memory float64
	for _, p := range d.Processes {
		utilization, memory = utilization+max(p.Utilization, 0), memory+max(p.Memory, 0)
		var of [][2]int
		for _, u := range users {
			if u.hasFile && slices.Contains(p.Files, u.file) {
				of = append(of, u.at)
			}
		}
		for _, at := range of {
			if len(of) > 1 {
				out[at] = none
			} else if sum := out[at]; sum.processes != Absent {
				sum.utilization, sum.memory, sum.processes = add(sum.utilization, p.Utilization),
					add(sum.memory, p.Memory), sum.processes+1
				out[at] = sum
			}
		}
	}
	// NVML does not have the utilization of processes in MIG mode, nor of some boards.
	unmeasured := d.Kind == gpu.KindMIG || d.Utilization == Absent ||
		slices.ContainsFunc(d.Processes, func(p Process) bool { return p.Utilization == Absent })
	for at, sum := range out {
		sum.utilization, sum.memory = scale(sum.utilization, utilization, d.Utilization),
			scale(sum.memory, memory, d.MemoryUsed)
		if unmeasured {
			sum.utilization = Absent
		}
		out[at] = sum
	}
	return out
}

// add returns the sum, or Absent if one of the terms is.
func add(a, b float64) float64 {
	if a == Absent || b == Absent {
		return Absent
	}
	return a + b
}

// scale reduces a part of all processes' sum to the same part of the device's value, if the sum is larger. Clients of
// MPS run at the same time, and NVML samples a device and its processes at different times.
func scale(value, sum, device float64) float64 {
	if value == Absent || device == Absent || sum <= device {
		return value
	}
	return value * device / sum
}
