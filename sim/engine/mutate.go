// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"io/fs"
	"slices"
	"syscall"

	"gpu-dra-driver/internal/nvml"
)

// Mutate runs a query that changes a GPU. Faults and their latency come before the machine's lock, so that changes of
// several GPUs overlap. A fault after the effect replaces the answer.
func (s *Session) Mutate(query string, slot int, change func(*State, *GPU) nvml.Code) nvml.Code {
	if _, code := s.Query(query, slot); code != 0 {
		return code
	}
	code, uuid := nvml.Code(0), ""
	err := s.engine.Update(func(st *State) error {
		if slot >= len(st.GPUs) || !slices.Contains(s.slots, slot) {
			return nvml.InvalidArgument
		}
		g := &st.GPUs[slot]
		uuid = g.UUID
		if g.Lost || g.OffBus {
			return nvml.GPUIsLost
		}
		code = change(st, g)
		return nil
	})
	s.forget(slot)
	switch {
	case err == nil:
	case errors.As(err, &code):
		return code
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return nvml.NoPermission
	default:
		return nvml.Unknown
	}
	if code == 0 {
		st, after := s.state()
		if after != 0 {
			return after
		}
		code = s.applyFaultsAt(st, query, uuid, true)
	}
	return code
}
