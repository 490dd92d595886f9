// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package nvmlfake is NVML over a simulated machine, in process: internal/nvml's Library without a shared library, a
// driver root or device nodes.
//
// Each method runs the same queries as the real binding, by their C names and in its order, so that an injected fault
// applies here too. Trap: as in a process that loads the real library, overlapping sessions share one NVML: it
// enumerates the GPUs when the first of them opens.
package nvmlfake

import (
	"errors"
	"slices"
	"sync"
	"time"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/engine"
)

// New returns the machine's NVML.
func New(e *engine.Engine) nvml.Library { return &library{engine: e} }

// WithHook returns the machine's NVML with a hook on its queries.
func WithHook(e *engine.Engine, hook engine.Hook) nvml.Library {
	return &library{engine: e, hook: hook}
}

// NewRoot returns the NVML of the machine in a root directory.
func NewRoot(root string) nvml.Library { return New(engine.Open(root, nil)) }

type library struct {
	engine *engine.Engine
	hook   engine.Hook

	mu     sync.Mutex
	opened int
	shared *engine.Session
}

func (l *library) Open() (nvml.Session, error) {
	const query = "nvmlInit_v2"
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.opened == 0 {
		s, code := l.engine.InitWith(query, l.hook)
		if code != 0 {
			return nil, failed(query, code)
		}
		l.shared = s
	}
	l.opened++
	return &session{library: l, inner: l.shared}, nil
}

type session struct {
	library *library

	mu    sync.Mutex
	inner *engine.Session
}

func (s *session) open() (*engine.Session, nvml.Code) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inner == nil {
		return nil, nvml.Uninitialized
	}
	return s.inner, 0
}

func (s *session) ask(query string) (*engine.State, error) {
	inner, code := s.open()
	if code != 0 {
		return nil, failed(query, code)
	}
	st, code := inner.Ask(query)
	return st, failed(query, code)
}

func (s *session) DriverVersion() (string, error) {
	st, err := s.ask("nvmlSystemGetDriverVersion")
	if err != nil {
		return "", err
	}
	return st.Profile.Driver.Version, nil
}

func (s *session) CUDAVersion() (int, error) {
	st, err := s.ask("nvmlSystemGetCudaDriverVersion_v2")
	if err != nil {
		return 0, err
	}
	return st.Profile.Driver.CUDA, nil
}

func (s *session) DeviceCount() (int, error) {
	if _, err := s.ask("nvmlDeviceGetCount_v2"); err != nil {
		return 0, err
	}
	inner, code := s.open()
	if code != 0 {
		return 0, failed("nvmlDeviceGetCount_v2", code)
	}
	return inner.Count(), nil
}

func (s *session) Device(index int) (nvml.Device, error) {
	const query = "nvmlDeviceGetHandleByIndex_v2"
	inner, code := s.open()
	if code != 0 {
		return nil, failed(query, code)
	}
	slot, ok := inner.SlotOf(index)
	if !ok {
		return nil, failed(query, nvml.InvalidArgument)
	}
	if _, code := inner.Query(query, slot); code != 0 {
		return nil, failed(query, code)
	}
	return &device{session: s, slot: slot}, nil
}

func (s *session) DeviceAt(address string) (nvml.Device, error) {
	const query = "nvmlDeviceGetHandleByPciBusId_v2"
	inner, code := s.open()
	if code != 0 {
		return nil, failed(query, code)
	}
	slot, code := inner.FindAt(query, address)
	if code != 0 {
		return nil, failed(query, code)
	}
	return &device{session: s, slot: slot}, nil
}

func (s *session) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inner == nil {
		return nil
	}
	s.inner = nil
	s.library.mu.Lock()
	defer s.library.mu.Unlock()
	s.library.opened--
	return nil
}

// eventSet is an event set over the GPUs in slots.
type eventSet struct {
	session *session
	set     *engine.EventSet
	slots   []int
	refused map[int]error

	mu     sync.Mutex
	closed bool
}

func (s *session) Events(devices []nvml.Device) (nvml.EventSet, error) {
	const create, register = "nvmlEventSetCreate", "nvmlDeviceRegisterEvents"
	if len(devices) == 0 {
		return nil, failed(register, nvml.InvalidArgument)
	}
	if _, err := s.ask(create); err != nil {
		return nil, err
	}
	inner, code := s.open()
	if code != 0 {
		return nil, failed(create, code)
	}
	set, code := inner.NewEventSet()
	if code != 0 {
		return nil, failed(create, code)
	}
	e := &eventSet{session: s, set: set, refused: map[int]error{}}
	var err error
	for n, given := range devices {
		d, ok := given.(*device)
		if !ok {
			d = &device{session: s, slot: -1}
		}
		e.slots = append(e.slots, d.slot)
		_, err = ask(d, register, func(v engine.View) (bool, nvml.Code) { return true, set.Register(v, engine.EventXID) })
		if errors.Is(err, nvml.Unknown) {
			break
		}
		if err != nil {
			e.refused[n] = err
		}
	}
	if len(e.refused) < len(devices) && !errors.Is(err, nvml.Unknown) {
		return e, nil
	}
	return nil, errors.Join(err, e.Close())
}

func (e *eventSet) Refused() map[int]error { return e.refused }

func (e *eventSet) Wait(limit time.Duration) (nvml.Event, error) {
	const query = "nvmlEventSetWait_v2"
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nvml.Event{}, failed(query, nvml.InvalidArgument)
	}
	if _, err := e.session.ask(query); err != nil {
		return nvml.Event{}, err
	}
	event, code := e.set.Wait(limit)
	if code != 0 {
		return nvml.Event{}, failed(query, code)
	}
	return nvml.Event{
		Device: slices.Index(e.slots, event.Slot), XID: event.Data,
		GPUInstance: event.GPUInstance, ComputeInstance: event.ComputeInstance,
	}, nil
}

func (e *eventSet) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	e.set.Free()
	_, err := e.session.ask("nvmlEventSetFree")
	return err
}

func failed(query string, code nvml.Code) error {
	if code == 0 {
		return nil
	}
	return &nvml.Error{Query: query, Code: code}
}
