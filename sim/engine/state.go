// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/profiles"
)

// Version is the version of the state file. A file of another version is an error.
const Version = 1

// State is a machine.
type State struct {
	Version int `json:"version"`
	// Generation grows with each write.
	Generation uint64           `json:"generation"`
	Profile    profiles.Profile `json:"profile"`
	// Seed determines UUIDs and serial numbers, so that two machines of a profile can differ.
	Seed   string `json:"seed,omitempty"`
	BootID string `json:"bootID"`
	// Origin is a text of the program that made the machine, with which it finds its own settings again. The engine does not
	// read it.
	Origin string `json:"origin,omitempty"`
	Boots  int    `json:"boots"`
	// DriverLoaded means that the kernel module is loaded.
	DriverLoaded bool `json:"driverLoaded"`
	// Bare is a driver's install without nvidia-persistenced: a boot loads no nvidia_uvm and makes no device nodes.
	// UVMMissing and NodesMissing are the present state.
	Bare         bool `json:"bare,omitempty"`
	UVMMissing   bool `json:"uvmMissing,omitempty"`
	NodesMissing bool `json:"nodesMissing,omitempty"`
	// AbsentSymbols lists the NVML functions that this driver's library lacks.
	AbsentSymbols []string `json:"absentSymbols,omitempty"`
	// GPUs has one element for each slot, ordered by address, including those off the bus.
	GPUs   []GPU   `json:"gpus"`
	Faults []Fault `json:"faults,omitempty"`

	// Raised are the events of the last change.
	Raised []Event `json:"-"`
}

// GPU is a board in its slot.
type GPU struct {
	Address string `json:"address"`
	UUID    string `json:"uuid"`
	Serial  string `json:"serial"`
	// Minor is the number in /dev/nvidia<minor>.
	Minor int `json:"minor"`
	// OffBus means that the GPU was removed: the kernel does not see it.
	OffBus bool `json:"offBus,omitempty"`
	// Lost means that the kernel sees it and the driver cannot reach it.
	Lost bool `json:"lost,omitempty"`
	// NodeMissing means that its device node is absent from /dev.
	NodeMissing bool `json:"nodeMissing,omitempty"`

	// MIGEnabled is the current mode, MIGPending the mode after the next reset.
	MIGEnabled bool `json:"migEnabled,omitempty"`
	MIGPending bool `json:"migPending,omitempty"`
	// ResetHidden means that the driver cannot reset the GPU, as in a virtual machine: a switch of the mode stays
	// pending.
	ResetHidden bool `json:"resetHidden,omitempty"`
	// Instances lists the GPU instances, ordered by ID. Made counts all compute instances since the boot.
	Instances []Instance `json:"instances,omitempty"`
	Made      int        `json:"made,omitempty"`
	// Destroys is how the driver answers a destruction of instances.
	Destroys DestroyFault `json:"destroys,omitempty"`
	// Limits are the limits of cgroups.
	Limits []MemoryLimit `json:"limits,omitempty"`
	// Monitors lists clients that use the GPU without being processes on it, such as DCGM.
	Monitors []string `json:"monitors,omitempty"`

	// Recovery is the driver's recovery action. A row of memory waits for a reset to be replaced, or could not be
	// replaced.
	Recovery     int  `json:"recovery,omitempty"`
	RemapPending bool `json:"remapPending,omitempty"`
	RemapFailed  bool `json:"remapFailed,omitempty"`
	// RemappedRows counts rows that were replaced.
	RemappedRows int `json:"remappedRows,omitempty"`
	// SRAMThreshold means too many errors of on-chip memory. UnrepairableMemory ends with the board.
	SRAMThreshold      bool `json:"sramThreshold,omitempty"`
	UnrepairableMemory bool `json:"unrepairableMemory,omitempty"`
	// CorrectableErrors and UncorrectableErrors count errors of memory since the driver was loaded.
	CorrectableErrors   uint64 `json:"correctableErrors,omitempty"`
	UncorrectableErrors uint64 `json:"uncorrectableErrors,omitempty"`
	// Slowdowns are the reasons of reduced clocks.
	Slowdowns nvml.Slowdown `json:"slowdowns,omitempty"`
	// LostLanes are the lanes of PCIe that the link lacks.
	LostLanes int `json:"lostLanes,omitempty"`
	// LinkErrors counts errors of each NVLink, by index.
	LinkErrors []uint64 `json:"linkErrors,omitempty"`
	Meter      Meter    `json:"meter,omitzero"`

	// Virtualization is the kind of virtual machine that the GPU is in. Only the host can cut a vGPU.
	Virtualization nvml.VirtualizationMode `json:"virtualization,omitempty"`

	ComputeMode int `json:"computeMode"`
	// LinksDown lists the NVLinks that are down, by index.
	LinksDown []int `json:"linksDown,omitempty"`
	// Fabric is the fault of its registration; empty: completed.
	Fabric FabricFault `json:"fabric,omitempty"`
	// TimeSlice is 0 (default) to 3 (long).
	TimeSlice    int       `json:"timeSlice,omitempty"`
	Persistence  bool      `json:"persistence"`
	Utilization  int       `json:"utilization"`
	MemoryUtil   int       `json:"memoryUtilization"`
	TemperatureC int       `json:"temperatureC"`
	PowerW       int       `json:"powerW"`
	Processes    []Process `json:"processes,omitempty"`
	// Workloads is load without processes.
	Workloads []Workload `json:"workloads,omitempty"`
}

// Workload is load that no process makes, such as that of a pod whose containers compute nothing.
type Workload struct {
	// Owner names it, such as a pod's namespace and name.
	Owner string `json:"owner"`
	// Load is the percentage of its device's multiprocessors that it keeps busy.
	Load int `json:"load"`
	// Place is as in Process.
	Place *Place `json:"place,omitempty"`
}

// Process is a process that uses a GPU.
type Process struct {
	PID       uint32 `json:"pid"`
	Name      string `json:"name,omitempty"`
	MemoryMiB uint64 `json:"memoryMiB"`
	// Load is the percentage of its device's multiprocessors that it keeps busy.
	Load int `json:"load,omitempty"`
	// Graphics means that it is a graphics process.
	Graphics bool `json:"graphics,omitempty"`
	// Cgroup is as in MemoryLimit; "": one without limits.
	Cgroup string `json:"cgroup,omitempty"`
	// Place is its instance on a GPU in MIG mode; nil means the whole GPU.
	Place *Place `json:"place,omitempty"`
}

// New returns an idle machine of the profile after its first boot, with the driver loaded. 0 GPUs fill all
// slots.
func New(p profiles.Profile, seed string, gpus int) (*State, error) {
	if gpus < 0 || gpus > len(p.Slots) {
		return nil, fmt.Errorf("profile %s has %d slots, %d GPUs asked for", p.Name, len(p.Slots), gpus)
	}
	if gpus > 0 {
		p.Slots = p.Slots[:gpus]
		p.Wires = slices.DeleteFunc(slices.Clone(p.Wires), func(w profiles.Wire) bool { return w.B >= gpus })
	}
	s := &State{Version: Version, Profile: p, Seed: seed}
	for i, slot := range p.Slots {
		h := sha256.Sum256([]byte(seed + "|" + p.Name + "|" + slot.Address))
		s.GPUs = append(s.GPUs, GPU{
			Address: slot.Address, Minor: i, UUID: "GPU-" + uuidOf(h[:16]),
			Serial: fmt.Sprintf("16%011d", (uint64(h[16])<<32|uint64(h[17])<<24|uint64(h[18])<<16|uint64(h[19])<<8|uint64(h[20]))%100_000_000_000),
		})
	}
	s.boot()
	return s, nil
}

// Reboot removes all volatile state: processes, readings, modes, faults, lost GPUs. The boards stay.
func (s *State) Reboot() { s.boot() }

func (s *State) boot() {
	s.Boots++
	h := sha256.Sum256(fmt.Appendf(nil, "%s|%s|boot|%d", s.Seed, s.Profile.Name, s.Boots))
	s.BootID = uuidOf(h[:16])
	s.DriverLoaded = true
	s.UVMMissing, s.NodesMissing = s.Bare, s.Bare
	s.Faults = nil
	minor := 0
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if g.OffBus {
			s.Remove(g)
			continue
		}
		s.start(g, minor)
		minor++
	}
}

// start makes a GPU idle, as after a driver's start.
func (s *State) start(g *GPU, minor int) {
	b := s.Profile.Board
	// A mode that needs a reset is stored on the board and survives a boot.
	mode := b.MIG != nil && !b.MIG.ResetFree && g.MIGPending
	*g = GPU{Address: g.Address, UUID: g.UUID, Serial: g.Serial, Minor: minor, Made: g.Made, ResetHidden: g.ResetHidden, Virtualization: g.Virtualization,
		MIGEnabled: mode, MIGPending: mode,
		RemapFailed: g.RemapFailed, RemappedRows: g.RemappedRows + int(flag(g.RemapPending)),
		SRAMThreshold: g.SRAMThreshold, UnrepairableMemory: g.UnrepairableMemory,
		Persistence: true, TemperatureC: b.IdleTempC, PowerW: b.Power.Idle}
}

// Slot returns a GPU's slot.
func (s *State) Slot(g *GPU) profiles.Slot {
	for _, slot := range s.Profile.Slots {
		if slot.Address == g.Address {
			return slot
		}
	}
	return profiles.Slot{Address: g.Address, NUMANode: -1}
}

// UsedMiB returns the memory of a GPU's processes.
func (g *GPU) UsedMiB() uint64 {
	var sum uint64
	for _, p := range g.Processes {
		sum += p.MemoryMiB
	}
	return sum
}

// BusID returns the address in NVML's format, "00000000:1B:00.0".
func (g *GPU) BusID() string { return "0000" + strings.ToUpper(g.Address) }

func uuidOf(b []byte) string {
	c := append([]byte(nil), b...)
	c[6], c[8] = c[6]&0x0f|0x40, c[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", c[0:4], c[4:6], c[6:8], c[8:10], c[10:16])
}
