// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package sessionpool shares one open NVML session among operations that follow each other, and finds GPUs in it.
package sessionpool

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"gpu-dra-driver/internal/nvml"
)

// linger is how long NVML stays open after a piece of work: the steps of one claim, and the claims of a restart, follow
// each other within it, and opening NVML costs more than most of them. No longer, for it keeps the driver from being unloaded.
const linger = 500 * time.Millisecond

// Pool shares one open NVML session among operations.
type Pool struct {
	library nvml.Library
	report  func(error)

	mu    sync.Mutex
	open  nvml.Session
	users int
	close *time.Timer
}

// New makes a Pool; report is called with errors of closing a session.
func New(library nvml.Library, report func(error)) *Pool {
	return &Pool{library: library, report: report}
}

// ErrNoGPU says that the driver does not list the GPU.
var ErrNoGPU = errors.New("the driver lists no such GPU")

// Device finds a GPU by its UUID. The handle is good until a MIG mode is switched.
func Device(session nvml.Session, uuid string) (nvml.Device, error) {
	n, err := session.DeviceCount()
	if err != nil {
		return nil, fmt.Errorf("count the GPUs: %w", err)
	}
	lost := false
	for i := range n {
		d, err := session.Device(i)
		var is string
		if err == nil {
			is, err = d.UUID()
		}
		switch {
		case errors.Is(err, nvml.GPUIsLost):
			lost = true
		case err == nil && is == uuid:
			return d, nil
		}
	}
	if lost {
		return nil, fmt.Errorf("find GPU %s: %w", uuid, nvml.GPUIsLost)
	}
	return nil, fmt.Errorf("find GPU %s: %w", uuid, ErrNoGPU)
}

// IsGone says that an error means the GPU is not there, and so neither is anything that was made on it.
func IsGone(err error) bool {
	return errors.Is(err, ErrNoGPU) || errors.Is(err, nvml.GPUIsLost) || errors.Is(err, nvml.DriverNotLoaded) ||
		errors.Is(err, nvml.GPUNotFound)
}

// use lends the open session, or a new one. fresh says that it has just been opened.
func (s *Pool) use() (session nvml.Session, fresh bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.close != nil {
		s.close.Stop()
		s.close = nil
	}
	if s.open == nil {
		if s.open, err = s.library.Open(); err != nil {
			s.open = nil
			return nil, false, fmt.Errorf("open NVML: %w", err)
		}
		fresh = true
	}
	s.users++
	return s.open, fresh, nil
}

// done gives the session back. One that is stale is not lent again.
func (s *Pool) done(session nvml.Session, stale bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users--
	switch {
	case s.users > 0:
	case stale:
		s.shut()
	default:
		s.close = time.AfterFunc(linger, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.users == 0 && s.open == session {
				s.shut()
			}
		})
	}
}

// shut closes the session. s.mu is held.
func (s *Pool) shut() {
	if err := s.open.Close(); err != nil {
		s.report(fmt.Errorf("close NVML: %w", err))
	}
	s.open = nil
}

// With does a piece of work on a GPU. NVML enumerates GPUs when it is opened, so one that is not found in a session which
// has been open for a while is looked for in a new one.
func (s *Pool) With(do func(nvml.Session) error) error {
	for {
		session, fresh, err := s.use()
		if err != nil {
			return err
		}
		err = do(session)
		stale := !fresh && (errors.Is(err, ErrNoGPU) || errors.Is(err, nvml.GPUIsLost) || errors.Is(err, nvml.Uninitialized))
		s.done(session, stale)
		if !stale {
			return err
		}
		s.mu.Lock()
		shared := s.open == session
		s.mu.Unlock()
		if shared {
			return err // Others are at work in it: whoever tries again later gets a new one.
		}
	}
}
