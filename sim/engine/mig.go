// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"crypto/sha256"
	"fmt"
	"slices"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/profiles"
)

// Instance is a GPU instance.
type Instance struct {
	ID        int       `json:"id"`
	ProfileID int       `json:"profileID"`
	Start     int       `json:"start"`
	Size      int       `json:"size"`
	Computes  []Compute `json:"computes,omitempty"`
	// Busy is as in Meter, up to the same time.
	Busy uint64 `json:"busy,omitempty"`
}

// Compute is a compute instance: it has a UUID and runs processes.
type Compute struct {
	ID        int `json:"id"`
	ProfileID int `json:"profileID"`
	// Start and Slices are its position among the instance's compute slices.
	Start  int    `json:"start"`
	Slices int    `json:"slices"`
	UUID   string `json:"uuid"`
	// ComputeMode is as in GPU.
	ComputeMode int `json:"computeMode,omitempty"`
}

// Place is the instance on which a process runs.
type Place struct {
	GPUInstance     int `json:"gpuInstance"`
	ComputeInstance int `json:"computeInstance"`
}

// idle reports that no process or monitor uses the whole GPU.
func (g *GPU) idle() bool { return len(g.Processes) == 0 && len(g.Monitors) == 0 }

// SetMIGMode switches the mode as the driver does. The code is the status of the activation.
func (s *State) SetMIGMode(g *GPU, on bool) nvml.Code {
	b := s.Profile.Board
	switch {
	case !b.MIGCapable || g.Virtualization == nvml.VirtualizationVGPU:
		return nvml.NotSupported
	case !on && len(g.Instances) > 0:
		return nvml.InUse
	case g.MIGEnabled == on:
		g.MIGPending = on // A pending change is reverted.
		return 0
	case g.ResetHidden:
		g.MIGPending = on
		return nvml.ResetRequired
	case !g.idle() && b.MIG.ResetFree:
		return nvml.InUse
	case !g.idle():
		g.MIGPending = on // The mode waits for a reset, which is impossible now.
		return nvml.InUse
	}
	g.MIGEnabled, g.MIGPending = on, on
	return 0
}

// ResetGPU does what nvidia-smi --gpu-reset does: it removes instances, applies a pending mode, replaces rows of memory, ends
// faults that need no reboot, and starts counters of errors anew.
func (s *State) ResetGPU(g *GPU) nvml.Code {
	if !g.idle() {
		return nvml.InUse
	}
	g.Instances, g.Destroys = nil, ""
	g.RemappedRows += int(flag(g.RemapPending))
	g.MIGEnabled, g.Lost, g.RemapPending = g.MIGPending, false, false
	g.CorrectableErrors, g.UncorrectableErrors, g.LinkErrors = 0, 0, nil
	if recoverable(g.Recovery) {
		g.Recovery = 0
	}
	return 0
}

// RemainingInstances returns the number of GPU instances of a profile that still fit on the GPU, in any MIG mode.
func (s *State) RemainingInstances(g *GPU, profileID int) (int, nvml.Code) {
	p, ok := s.Profile.Board.MIG.Profile(profileID)
	if !ok {
		return 0, nvml.InvalidArgument
	}
	try := &GPU{MIGEnabled: true, Instances: slices.Clone(g.Instances)}
	n := 0
	for _, start := range p.Starts {
		if _, code := s.CreateInstance(try, profileID, start); code == 0 {
			n++
		}
	}
	return n, 0
}

// AnyStart makes the driver choose the placement: the first free one from the end, as hardware does.
const AnyStart = -1

// CreateInstance creates a GPU instance.
func (s *State) CreateInstance(g *GPU, profileID, start int) (Instance, nvml.Code) {
	m := s.Profile.Board.MIG
	if m == nil || !g.MIGEnabled {
		return Instance{}, nvml.NotSupported
	}
	p, ok := m.Profile(profileID)
	if !ok || start != AnyStart && !slices.Contains(p.Starts, start) {
		return Instance{}, nvml.InvalidArgument
	}
	if start == AnyStart {
		for _, at := range slices.Backward(p.Starts) {
			if i, code := s.CreateInstance(g, profileID, at); code == 0 {
				return i, 0
			}
		}
		return Instance{}, nvml.InsufficientResources
	}
	same, used := 0, p.Engines
	sms := p.Multiprocessors
	for _, i := range g.Instances {
		if start < i.Start+i.Size && i.Start < start+p.Size {
			return Instance{}, nvml.InsufficientResources
		}
		o, _ := m.Profile(i.ProfileID)
		if o.ID == p.ID {
			same++
		}
		used.Copy, used.Decoder, used.Encoder = used.Copy+o.Engines.Copy, used.Decoder+o.Engines.Decoder, used.Encoder+o.Engines.Encoder
		used.JPEG, used.OFA = used.JPEG+o.Engines.JPEG, used.OFA+o.Engines.OFA
		sms += o.Multiprocessors
	}
	has := m.Engines()
	if same >= p.Instances || used.Decoder > has.Decoder || used.Encoder > has.Encoder || used.JPEG > has.JPEG ||
		used.OFA > has.OFA || sms > s.Profile.Board.Multiprocessors {
		return Instance{}, nvml.InsufficientResources
	}
	i := Instance{ID: g.freeInstanceID(p.Size, m.Slices), ProfileID: p.ID, Start: start, Size: p.Size}
	g.Instances = append(g.Instances, i)
	slices.SortFunc(g.Instances, func(a, b Instance) int { return a.ID - b.ID })
	return i, 0
}

// freeInstanceID returns the lowest free ID as hardware assigns them: from a base that grows as the size shrinks.
func (g *GPU) freeInstanceID(size, all int) int {
	id := 7
	switch {
	case size == all:
		id = 0
	case 2*size >= all:
		id = 1
	case 4*size >= all:
		id = 3
	}
	for slices.ContainsFunc(g.Instances, func(i Instance) bool { return i.ID == id }) {
		id++
	}
	return id
}

// Instance finds a GPU instance by its ID.
func (g *GPU) Instance(id int) *Instance {
	for i := range g.Instances {
		if g.Instances[i].ID == id {
			return &g.Instances[i]
		}
	}
	return nil
}

// Compute finds a compute instance by its ID.
func (i *Instance) Compute(id int) *Compute {
	for n := range i.Computes {
		if i.Computes[n].ID == id {
			return &i.Computes[n]
		}
	}
	return nil
}

// DestroyFault is a fault when instances are destroyed, which a reset of the GPU ends.
type DestroyFault string

const (
	// DestroyRefused answers "in use" although no process uses the instance
	// (https://github.com/NVIDIA/DCGM/issues/276, https://github.com/NVIDIA/go-nvml/issues/146).
	DestroyRefused DestroyFault = "refused"
	// DestroyIgnored answers success, and the instance stays.
	DestroyIgnored DestroyFault = "ignored"
)

// destroys returns the answer in place of a destruction; done means that there is one.
func (g *GPU) destroys() (code nvml.Code, done bool) {
	return map[DestroyFault]nvml.Code{DestroyRefused: nvml.InUse}[g.Destroys], g.Destroys != ""
}

// DestroyInstance destroys a GPU instance.
func (s *State) DestroyInstance(g *GPU, id int) nvml.Code {
	i := g.Instance(id)
	switch {
	case i == nil:
		return nvml.NotFound
	case len(i.Computes) > 0 && g.Destroys != DestroyIgnored:
		return nvml.InUse
	}
	if code, done := g.destroys(); done {
		return code
	}
	g.Instances = slices.DeleteFunc(g.Instances, func(o Instance) bool { return o.ID == id })
	return 0
}

// CreateCompute creates a compute instance in a GPU instance.
func (s *State) CreateCompute(g *GPU, gpuInstance, profileID int) (Compute, nvml.Code) {
	i := g.Instance(gpuInstance)
	if i == nil {
		return Compute{}, nvml.NotFound
	}
	p, _ := s.Profile.Board.MIG.Profile(i.ProfileID)
	all := p.ComputeInstances()
	n := slices.IndexFunc(all, func(c profiles.ComputeInstanceProfile) bool { return c.ID == profileID })
	if n < 0 {
		return Compute{}, nvml.InvalidArgument
	}
	want := all[n].Slices
	start := -1
	for at := 0; at+want <= p.Slices; at++ {
		if !slices.ContainsFunc(i.Computes, func(c Compute) bool { return at < c.Start+c.Slices && c.Start < at+want }) {
			start = at
			break
		}
	}
	if start < 0 {
		return Compute{}, nvml.InsufficientResources
	}
	id := 0
	for i.Compute(id) != nil {
		id++
	}
	g.Made++
	h := sha256.Sum256(fmt.Appendf(nil, "%s|%s|mig|%d", s.Seed, g.UUID, g.Made))
	c := Compute{ID: id, ProfileID: profileID, Start: start, Slices: want, UUID: "MIG-" + uuidOf(h[:16])}
	i.Computes = append(i.Computes, c)
	slices.SortFunc(i.Computes, func(a, b Compute) int { return a.ID - b.ID })
	return c, 0
}

// DestroyCompute destroys a compute instance.
func (s *State) DestroyCompute(g *GPU, gpuInstance, id int) nvml.Code {
	i := g.Instance(gpuInstance)
	if i == nil || i.Compute(id) == nil {
		return nvml.NotFound
	}
	if slices.ContainsFunc(g.Processes, func(p Process) bool {
		return p.Place != nil && p.Place.GPUInstance == gpuInstance && p.Place.ComputeInstance == id
	}) {
		return nvml.InUse
	}
	if code, done := g.destroys(); done {
		return code
	}
	i.Computes = slices.DeleteFunc(i.Computes, func(c Compute) bool { return c.ID == id })
	return 0
}

// Vanish removes all instances of a GPU, or the one at a start, despite running processes, as a reset does.
func (s *State) Vanish(g *GPU, start int) bool {
	n := len(g.Instances)
	g.Instances = slices.DeleteFunc(g.Instances, func(i Instance) bool {
		gone := start == AnyStart || i.Start == start
		if gone {
			g.Processes = slices.DeleteFunc(g.Processes, func(p Process) bool { return p.Place != nil && p.Place.GPUInstance == i.ID })
		}
		return gone
	})
	return len(g.Instances) < n
}

func (s *State) validateMIG(g *GPU) error {
	m := s.Profile.Board.MIG
	if m == nil {
		if g.MIGEnabled || g.MIGPending || len(g.Instances) > 0 {
			return fmt.Errorf("the board has no MIG")
		}
		return nil
	}
	if len(g.Instances) > 0 && !g.MIGEnabled {
		return fmt.Errorf("instances without MIG mode")
	}
	ids, uuids := map[int]bool{}, map[string]bool{}
	for n, i := range g.Instances {
		p, ok := m.Profile(i.ProfileID)
		if !ok || i.ID < 0 || i.ID > 14 || ids[i.ID] || i.Size != p.Size || !slices.Contains(p.Starts, i.Start) {
			return fmt.Errorf("instances[%d]: not one that the board can have", n)
		}
		ids[i.ID] = true
		for _, o := range g.Instances[:n] {
			if i.Start < o.Start+o.Size && o.Start < i.Start+i.Size {
				return fmt.Errorf("instances[%d] overlaps another", n)
			}
		}
		for k, c := range i.Computes {
			if c.ID < 0 || c.ID > 7 || uuids[c.UUID] || len(c.UUID) != 40 || c.Start < 0 || c.Slices < 1 || c.Start+c.Slices > p.Slices {
				return fmt.Errorf("instances[%d].computes[%d]: not one that the instance can have", n, k)
			}
			uuids[c.UUID] = true
			for _, o := range i.Computes[:k] {
				if o.ID == c.ID || c.Start < o.Start+o.Slices && o.Start < c.Start+c.Slices {
					return fmt.Errorf("instances[%d].computes[%d] overlaps another", n, k)
				}
			}
		}
	}
	return nil
}
