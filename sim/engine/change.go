// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Find returns a GPU by its index on the bus, UUID, PCI address, or "slot<N>".
func (s *State) Find(name string) (*GPU, error) {
	on := s.OnBus()
	if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(on) {
		return &s.GPUs[on[i]], nil
	}
	if n, ok := strings.CutPrefix(name, "slot"); ok {
		if i, err := strconv.Atoi(n); err == nil && i >= 0 && i < len(s.GPUs) {
			return &s.GPUs[i], nil
		}
	}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if g.UUID == name || strings.EqualFold(g.Address, name) || strings.EqualFold(g.BusID(), name) {
			return g, nil
		}
	}
	return nil, fmt.Errorf("no GPU %q: give an index below %d, a UUID, a PCI address, or slot<N>", name, len(on))
}

// At reports whether the GPU is at a PCI address, which NVML compares in any case, with a domain of any width or none.
func (g *GPU) At(address string) bool {
	if strings.Count(address, ":") == 1 {
		address = "0:" + address
	}
	domain, rest, _ := strings.Cut(address, ":")
	ownDomain, ownRest, _ := strings.Cut(g.Address, ":")
	return strings.EqualFold(rest, ownRest) && strings.EqualFold(strings.TrimLeft(domain, "0"), strings.TrimLeft(ownDomain, "0"))
}

// OnBus returns the positions in GPUs of those that the kernel sees, in NVML's order of enumeration.
func (s *State) OnBus() []int {
	var on []int
	for i, g := range s.GPUs {
		if !g.OffBus {
			on = append(on, i)
		}
	}
	return on
}

// Remove takes a GPU off the bus, with its processes and readings.
func (s *State) Remove(g *GPU) {
	*g = GPU{Address: g.Address, UUID: g.UUID, Serial: g.Serial, Minor: -1, OffBus: true, Made: g.Made,
		RemapFailed: g.RemapFailed, RemapPending: g.RemapPending, RemappedRows: g.RemappedRows,
		SRAMThreshold: g.SRAMThreshold, UnrepairableMemory: g.UnrepairableMemory,
		MIGPending: g.MIGPending && !s.Profile.Board.MIG.ResetFree}
}

// Add puts a GPU back on the bus, idle, with the lowest free minor.
func (s *State) Add(g *GPU) {
	if !g.OffBus {
		return
	}
	minor := 0
	for slices.ContainsFunc(s.GPUs, func(o GPU) bool { return !o.OffBus && o.Minor == minor }) {
		minor++
	}
	s.start(g, minor)
}

// AddProcess adds a process to a GPU, or replaces the process with the same PID.
func (s *State) AddProcess(g *GPU, p Process) error {
	if p.PID == 0 {
		return fmt.Errorf("a process needs a PID above 0")
	}
	if p.Load < 0 || p.Load > 100 {
		return fmt.Errorf("process %d has a load of %d: 0 to 100 percent", p.PID, p.Load)
	}
	free := s.Profile.Board.MemoryMiB - s.Profile.Board.ReservedMiB - g.UsedMiB()
	i := slices.IndexFunc(g.Processes, func(o Process) bool { return o.PID == p.PID })
	if i >= 0 {
		free += g.Processes[i].MemoryMiB
	}
	if p.MemoryMiB > free {
		return fmt.Errorf("process %d asks for %d MiB, GPU %s has %d MiB free", p.PID, p.MemoryMiB, g.UUID, free)
	}
	if left := g.leftMiB(p); p.MemoryMiB > left {
		return fmt.Errorf("process %d asks for %d MiB, the limit of its cgroup leaves %d MiB on GPU %s", p.PID, p.MemoryMiB, left, g.UUID)
	}
	if i >= 0 {
		g.Processes[i] = p
		return nil
	}
	g.Processes = append(g.Processes, p)
	slices.SortFunc(g.Processes, func(a, b Process) int { return int(int64(a.PID) - int64(b.PID)) })
	return nil
}

// RemoveProcess removes a process from a GPU.
func (s *State) RemoveProcess(g *GPU, pid uint32) error {
	n := len(g.Processes)
	g.Processes = slices.DeleteFunc(g.Processes, func(p Process) bool { return p.PID == pid })
	if len(g.Processes) == n {
		return fmt.Errorf("no process %d holds GPU %s", pid, g.UUID)
	}
	return nil
}
