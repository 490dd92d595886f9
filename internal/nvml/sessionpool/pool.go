// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package sessionpool shares one open NVML session among successive operations, and finds GPUs in it.
package sessionpool

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/nvml"
)

// linger is the time that NVML stays open after an operation. The steps of one claim, and the claims after a restart,
// reuse the session, because opening NVML costs more than most operations. An open session prevents unloading the
// driver, so the time is short.
const linger = 500 * time.Millisecond

// Pool shares one open NVML session among operations. It is safe for concurrent use.
type Pool struct {
	library nvml.Library
	report  func(error)

	mu      sync.Mutex
	session nvml.Session
	users   int
	idle    *time.Timer
}

// New makes a Pool. It calls report with errors of closing a session.
func New(library nvml.Library, report func(error)) *Pool {
	p := &Pool{library: library, report: report}
	p.idle = time.AfterFunc(linger, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.closeUnused()
	})
	return p
}

// ErrNoGPU means that the driver does not list the GPU.
var ErrNoGPU = errors.New("the driver lists no such GPU")

// Device finds a GPU by its UUID. The handle is valid until a MIG mode is switched.
func Device(session nvml.Session, uuid string) (nvml.Device, error) {
	n, err := session.DeviceCount()
	if err != nil {
		return nil, fmt.Errorf("count the GPUs: %w", err)
	}
	missing := ErrNoGPU
	for i := range n {
		d, err := session.Device(i)
		var is string
		if err == nil {
			is, err = d.UUID()
		}
		switch {
		case errors.Is(err, nvml.GPUIsLost):
			missing = nvml.GPUIsLost
		case err == nil && is == uuid:
			return d, nil
		}
	}
	return nil, fmt.Errorf("find GPU %s: %w", uuid, missing)
}

// IsGone reports that an error means a missing GPU, and so no partition of it exists either.
func IsGone(err error) bool {
	return errors.Is(err, ErrNoGPU) || errors.Is(err, nvml.GPUIsLost) || errors.Is(err, nvml.DriverNotLoaded) ||
		errors.Is(err, nvml.GPUNotFound)
}

// With runs an operation on the session. NVML lists GPUs only when it is opened. If a GPU is missing from an older
// session, With tries a new one.
func (p *Pool) With(do func(nvml.Session) error) error {
	for {
		session, fresh, err := p.acquire()
		if err != nil {
			return err
		}
		err = host.Guard(func() error { return do(session) })
		stale := !fresh && (errors.Is(err, ErrNoGPU) || errors.Is(err, nvml.GPUIsLost) || errors.Is(err, nvml.Uninitialized))
		// A stale session stays while other operations use it: a later attempt gets a new one.
		if closed := p.release(session, stale); !stale || !closed {
			return err
		}
	}
}

// acquire returns the session; fresh reports that it has just been opened.
func (p *Pool) acquire() (session nvml.Session, fresh bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle.Stop()
	if p.session == nil {
		session, err := p.library.Open()
		if err != nil {
			return nil, false, fmt.Errorf("open NVML: %w", err)
		}
		p.session, fresh = session, true
	}
	p.users++
	return p.session, fresh, nil
}

// release ends a use of a session, and reports whether the session is closed or replaced. A stale one is closed at
// once.
func (p *Pool) release(session nvml.Session, stale bool) (closed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users--
	if stale {
		p.closeUnused()
	} else if p.users == 0 {
		p.idle.Reset(linger)
	}
	return p.session != session
}

// closeUnused closes the session if no operation uses it. The caller holds p.mu.
func (p *Pool) closeUnused() {
	if p.users > 0 || p.session == nil {
		return
	}
	if err := p.session.Close(); err != nil {
		p.report(fmt.Errorf("close NVML: %w", err))
	}
	p.session = nil
}
