// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"slices"
	"sync"
	"time"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/profiles"
)

// Session is an initialised NVML. A code of 0 is success.
type Session struct {
	engine *Engine
	slots  []int

	mu    sync.Mutex
	local []Fault // counted here where the state file cannot be written
	seen  uint64  // the generation local was taken from
}

// View is a GPU as a query sees it: one consistent state.
type View struct {
	*State
	*GPU
	Board profiles.Board
	// Slot is the GPU's position in State.GPUs, its handle for as long as the machine exists.
	Slot int
	// Index is NVML's.
	Index int
}

// Init begins a session: the GPUs that are on the bus now are those it will know.
func (e *Engine) Init(query string) (*Session, nvml.Code) {
	s := &Session{engine: e}
	st, code := s.Ask(query)
	if code != 0 {
		return nil, code
	}
	s.slots = st.OnBus()
	return s, 0
}

// Ask begins a query of no GPU.
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

// Count is the number of GPUs the session knows, lost ones included.
func (s *Session) Count() int { return len(s.slots) }

// SlotOf is the handle of the GPU at an index.
func (s *Session) SlotOf(index int) (int, bool) {
	if index < 0 || index >= len(s.slots) {
		return 0, false
	}
	return s.slots[index], true
}

// Find is the slot of the GPU that match accepts, among those the session knows.
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

// Query begins a query of the GPU in a slot.
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

// applyFaults returns the faults of a query. Faults that count are counted in the state file; where that cannot be written, as through a
// read-only mount, the session counts for itself.
func (s *Session) applyFaults(st *State, query, uuid string) nvml.Code {
	return s.applyFaultsAt(st, query, uuid, false)
}

func (s *Session) applyFaultsAt(st *State, query, uuid string, afterEffect bool) nvml.Code {
	if slices.Contains(st.AbsentSymbols, query) {
		return nvml.FunctionNotFound
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
	if latency > 0 {
		time.Sleep(latency)
	}
	return code
}

// count is Update without the sync: counting a call changes nothing that the root shows.
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

// Memory is the GPU's memory as NVML's second version splits it.
func (v View) Memory() nvml.MemoryInfo {
	const mib = 1 << 20
	m := nvml.MemoryInfo{Total: v.Board.MemoryMiB * mib, Reserved: v.Board.ReservedMiB * mib, Used: v.UsedMiB() * mib}
	m.Free = m.Total - m.Reserved - min(m.Used, m.Total-m.Reserved)
	return m
}
