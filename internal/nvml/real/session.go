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

func (s *session) DriverVersion() (v string, err error) {
	err = s.query("nvmlSystemGetDriverVersion", func() (ret gonvml.Return) {
		v, ret = s.library.lib.SystemGetDriverVersion()
		return ret
	})
	return v, err
}

func (s *session) CUDAVersion() (v int, err error) {
	err = s.query("nvmlSystemGetCudaDriverVersion_v2", func() (ret gonvml.Return) {
		v, ret = s.library.lib.SystemGetCudaDriverVersion_v2()
		return ret
	})
	return v, err
}

func (s *session) DeviceCount() (n int, err error) {
	err = s.query("nvmlDeviceGetCount_v2", func() (ret gonvml.Return) {
		n, ret = s.library.lib.DeviceGetCount()
		return ret
	})
	return n, err
}

func (s *session) Device(index int) (nvml.Device, error) {
	d := &device{session: s}
	err := s.query("nvmlDeviceGetHandleByIndex_v2", func() (ret gonvml.Return) {
		if index < 0 {
			return gonvml.ERROR_INVALID_ARGUMENT
		}
		d.handle, ret = s.library.lib.DeviceGetHandleByIndex(index)
		return ret
	})
	if err != nil {
		return nil, err
	}
	return d, nil
}
