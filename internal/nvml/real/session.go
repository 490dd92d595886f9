// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package real

import (
	"sync"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpu-dra-driver/internal/nvml"
)

// session is one count of an initialised library. Queries hold mu for reading, so that none is under way when the
// library is shut down.
type session struct {
	library *Library
	mu      sync.RWMutex
	closed  bool
}

// Close ends the session.
func (s *session) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return s.library.release()
}

// query runs one call of NVML: not on a closed session, and not where the driver lacks the function.
func (s *session) query(symbol string, call func() gonvml.Return) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return &nvml.Error{Query: symbol, Code: nvml.Uninitialized}
	}
	if !s.library.has(symbol) {
		return &nvml.Error{Query: symbol, Code: nvml.FunctionNotFound}
	}
	return failed(symbol, call())
}

func (s *session) DriverVersion() (string, error) {
	return get(s, "nvmlSystemGetDriverVersion", s.library.lib.SystemGetDriverVersion)
}

func (s *session) CUDAVersion() (int, error) {
	return get(s, "nvmlSystemGetCudaDriverVersion_v2", s.library.lib.SystemGetCudaDriverVersion_v2)
}

func (s *session) DeviceCount() (int, error) {
	return get(s, "nvmlDeviceGetCount_v2", s.library.lib.DeviceGetCount)
}

func (s *session) Device(index int) (nvml.Device, error) {
	const symbol = "nvmlDeviceGetHandleByIndex_v2"
	if index < 0 {
		return nil, &nvml.Error{Query: symbol, Code: nvml.InvalidArgument}
	}
	handle, err := get(s, symbol, with(s.library.lib.DeviceGetHandleByIndex, index))
	if err != nil {
		return nil, err
	}
	return &device{session: s, handle: handle}, nil
}
