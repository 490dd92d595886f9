// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/profiles"
)

// Hook answers a query of a test in place of the machine: 0 lets it pass. A query without a GPU has no UUID. A query
// that changes the machine calls it again after the effect. It may block, and no lock is held.
type Hook func(query, uuid string, afterEffect bool) nvml.Code

// Session is an initialised NVML. A code of 0 is success.
type Session struct {
	engine *Engine
	hook   Hook
	slots  []int

	mu sync.Mutex
	// handles are the MIG devices of GPUs as of the session's first list, by slot.
	handles map[int][]Handle
	local   []Fault // counted here if the state file is read-only
	seen    uint64  // the generation at which local was copied
}

// Handle is a MIG device as a session knows it.
type Handle struct {
	GPUInstance, ComputeInstance int
	UUID                         string
}

// Handles returns the MIG devices of a GPU, by index. A session reads them once and after its own changes: it lists those
// that another process destroyed (https://github.com/NVIDIA/libcudacxx/issues/224), and lacks those that another one made.
// As nvml.h says, a handle is reused for a later instance with the same IDs, and has that one's properties.
func (s *Session) Handles(v View) []Handle {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.handles[v.Slot]
	if !ok {
		for _, i := range v.Instances {
			for _, c := range i.Computes {
				known = append(known, Handle{i.ID, c.ID, c.UUID})
			}
		}
		if s.handles == nil {
			s.handles = map[int][]Handle{}
		}
		s.handles[v.Slot] = known
	}
	out := slices.Clone(known)
	for n, h := range out {
		if i := v.Instance(h.GPUInstance); i != nil && i.Compute(h.ComputeInstance) != nil {
			out[n].UUID = i.Compute(h.ComputeInstance).UUID
		}
	}
	return out
}

// forget makes the session read a GPU's MIG devices again.
func (s *Session) forget(slot int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.handles, slot)
}

// View is a GPU in one consistent state, for a query.
type View struct {
	*State
	*GPU
	Board profiles.Board
	// Slot is the GPU's position in State.GPUs, its handle for the life of the machine.
	Slot int
	// Index is NVML's index.
	Index int
}

// Init starts a session with the GPUs that are on the bus now.
func (e *Engine) Init(query string) (*Session, nvml.Code) { return e.InitWith(query, nil) }

// InitWith is Init with a hook on the session's queries.
func (e *Engine) InitWith(query string, hook Hook) (*Session, nvml.Code) {
	s := &Session{engine: e, hook: hook}
	st, code := s.Ask(query)
	if code != 0 {
		return nil, code
	}
	s.slots = st.OnBus()
	return s, 0
}

// Restrict removes all GPUs from the session but those with the given UUIDs.
func (s *Session) Restrict(uuids []string) {
	st, code := s.state()
	s.slots = slices.DeleteFunc(s.slots, func(slot int) bool {
		return code != 0 || !slices.Contains(uuids, st.GPUs[slot].UUID)
	})
}

// Ask starts a query without a GPU.
func (s *Session) Ask(query string) (*State, nvml.Code) {
	st, code := s.state()
	if code != 0 {
		return nil, code
	}
	if code := s.applyFaults(st, query, ""); code != 0 {
		return nil, code
	}
	return st, 0
}

// Count returns the number of the session's GPUs, including lost ones.
func (s *Session) Count() int { return len(s.slots) }

// SlotOf returns the slot of the GPU at an index.
func (s *Session) SlotOf(index int) (int, bool) {
	if index < 0 || index >= len(s.slots) {
		return 0, false
	}
	return s.slots[index], true
}

// Find returns the slot of the session's GPU that match accepts.
func (s *Session) Find(query string, match func(*GPU) bool) (int, nvml.Code) {
	st, code := s.state()
	if code != 0 {
		return 0, code
	}
	for _, slot := range s.slots {
		if slot < len(st.GPUs) && match(&st.GPUs[slot]) {
			_, code := s.Query(query, slot)
			return slot, code
		}
	}
	if code := s.applyFaults(st, query, ""); code != 0 {
		return 0, code
	}
	return 0, nvml.NotFound
}

// FindAt returns the slot of the session's GPU at a PCI address. A GPU is function 0 of its device: NVML takes another
// function for a wrong argument.
func (s *Session) FindAt(query, address string) (int, nvml.Code) {
	m := addressForm.FindStringSubmatch(address)
	if m == nil || strings.Trim(m[1], "0") != "" {
		return 0, nvml.InvalidArgument
	}
	return s.Find(query, func(g *GPU) bool { return g.At(address) })
}

// addressForm matches an address with or without domain.
var addressForm = regexp.MustCompile(`^(?:[0-9A-Fa-f]{1,8}:)?[0-9A-Fa-f]{1,2}:[0-9A-Fa-f]{1,2}(?:\.([0-9A-Fa-f]))?$`)

// Query starts a query of the GPU in a slot.
func (s *Session) Query(query string, slot int) (View, nvml.Code) {
	st, code := s.state()
	if code != 0 {
		return View{}, code
	}
	if !slices.Contains(s.slots, slot) || slot >= len(st.GPUs) {
		return View{}, nvml.InvalidArgument
	}
	if code := s.applyFaults(st, query, st.GPUs[slot].UUID); code != 0 {
		return View{}, code
	}
	return s.Peer(slot)
}

func (s *Session) state() (*State, nvml.Code) {
	st, err := s.engine.State()
	switch {
	case errors.Is(err, ErrNoMachine):
		return nil, nvml.DriverNotLoaded
	case err != nil:
		return nil, nvml.Unknown
	case !st.DriverLoaded:
		return nil, nvml.DriverNotLoaded
	}
	return st, 0
}

// applyFaults returns the faults of a query. It counts calls in the state file, or in the session if the file is
// read-only.
func (s *Session) applyFaults(st *State, query, uuid string) nvml.Code {
	return s.applyFaultsAt(st, query, uuid, false)
}

func (s *Session) applyFaultsAt(st *State, query, uuid string, afterEffect bool) nvml.Code {
	if slices.Contains(st.AbsentSymbols, query) {
		return nvml.FunctionNotFound
	}
	if s.hook != nil {
		if code := s.hook(query, uuid, afterEffect); code != 0 {
			return code
		}
	}
	counted, hit := false, false
	for _, f := range st.Faults {
		if f.matches(query, uuid, afterEffect) {
			hit, counted = true, counted || f.counts()
		}
	}
	if !hit {
		return 0
	}
	var code nvml.Code
	var latency time.Duration
	if !counted {
		code, latency, _ = st.Clone().applyFaults(query, uuid, afterEffect)
	} else if err := s.engine.count(func(now *State) {
		code, latency, _ = now.applyFaults(query, uuid, afterEffect)
	}); err != nil {
		code, latency = s.applyFaultsLocal(st, query, uuid, afterEffect)
	}
	if counted { // The fault may be used up.
		time.Sleep(latency)
		return code
	}
	for end := time.Now().Add(latency); time.Until(end) > 0; {
		time.Sleep(min(time.Until(end), delayStep))
		if now, code := s.state(); code != 0 || !slices.ContainsFunc(now.Faults, func(f Fault) bool { return f.matches(query, uuid, afterEffect) }) {
			break // A query that hangs is one with a long latency: it returns once the fault is removed.
		}
	}
	return code
}

// delayStep is the interval in which a delayed query notices that its fault was removed.
const delayStep = 20 * time.Millisecond

// count is Update without the sync: counting a call changes no visible file.
func (e *Engine) count(change func(*State)) error {
	withoutSync := e
	if e.onSync != nil {
		withoutSync = &Engine{dir: e.dir}
	}
	return withoutSync.Update(func(s *State) error { change(s); return nil })
}

func (s *Session) applyFaultsLocal(st *State, query, uuid string, afterEffect bool) (nvml.Code, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen != st.Generation+1 {
		s.seen, s.local = st.Generation+1, slices.Clone(st.Faults)
	}
	own := &State{Faults: s.local}
	code, latency, _ := own.applyFaults(query, uuid, afterEffect)
	s.local = own.Faults
	return code, latency
}

// Memory returns the GPU's memory as NVML's second version splits it.
func (v View) Memory() nvml.MemoryInfo {
	const mib = 1 << 20
	m := nvml.MemoryInfo{Total: v.Board.MemoryMiB * mib, Reserved: v.Board.ReservedMiB * mib, Used: v.UsedMiB() * mib}
	m.Free = m.Total - m.Reserved - min(m.Used, m.Total-m.Reserved)
	return m
}

// InstanceMemory returns a GPU instance's memory, which its compute instances share.
func (v View) InstanceMemory(i *Instance) nvml.MemoryInfo {
	const mib = 1 << 20
	p, _ := v.Board.MIG.Profile(i.ProfileID)
	m := nvml.MemoryInfo{Total: p.MemoryMiB * mib}
	for _, p := range v.Processes {
		if p.Place != nil && p.Place.GPUInstance == i.ID {
			m.Used += p.MemoryMiB * mib
		}
	}
	m.Used = min(m.Used, m.Total)
	m.Free = m.Total - m.Used
	return m
}
