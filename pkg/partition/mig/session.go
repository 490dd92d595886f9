// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig

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

// sessions shares one open NVML among pieces of work.
type sessions struct {
	library nvml.Library
	report  func(error)

	mu    sync.Mutex
	open  nvml.Session
	users int
	close *time.Timer
}

// use lends the open session, or a new one. fresh says that it has just been opened.
func (s *sessions) use() (session nvml.Session, fresh bool, err error) {
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
func (s *sessions) done(session nvml.Session, stale bool) {
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
func (s *sessions) shut() {
	if err := s.open.Close(); err != nil {
		s.report(fmt.Errorf("close NVML: %w", err))
	}
	s.open = nil
}

// with does a piece of work on a GPU. NVML enumerates GPUs when it is opened, so one that is not found in a session which
// has been open for a while is looked for in a new one.
func (s *sessions) with(do func(nvml.Session) error) error {
	for {
		session, fresh, err := s.use()
		if err != nil {
			return err
		}
		err = do(session)
		stale := !fresh && (errors.Is(err, errNoGPU) || errors.Is(err, nvml.GPUIsLost) || errors.Is(err, nvml.Uninitialized))
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
