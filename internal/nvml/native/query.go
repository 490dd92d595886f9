// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package native

import (
	"errors"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpu-dra-driver/internal/nvml"
)

// maxEntries limits lists and loops: no GPU has more profiles, slices or MIG devices. It ends a loop over a driver that
// never reports the end.
const maxEntries = 64

// querier calls NVML: a session, or an instance that may be gone.
type querier interface {
	query(symbol string, call func() gonvml.Return) error
}

// get runs a query with one result.
func get[T any](q querier, symbol string, call func() (T, gonvml.Return)) (T, error) {
	var v, none T
	err := q.query(symbol, func() (ret gonvml.Return) {
		v, ret = call()
		return ret
	})
	if err != nil {
		return none, err
	}
	return v, nil
}

// number runs a query with a number as its result.
func number[To, From ~int | ~int32 | ~uint32](q querier, symbol string, call func() (From, gonvml.Return)) (To, error) {
	v, err := get(q, symbol, call)
	return To(v), err
}

// with binds the argument of a query.
func with[A, T any](call func(A) (T, gonvml.Return), a A) func() (T, gonvml.Return) {
	return func() (T, gonvml.Return) { return call(a) }
}

// list runs a query with several results. go-nvml cuts its array at NVML's count, and panics if that exceeds the
// array.
func list[T any](q querier, symbol string, call func() ([]T, gonvml.Return)) ([]T, error) {
	return get(q, symbol, func() (v []T, ret gonvml.Return) {
		defer func() {
			if recover() != nil {
				v, ret = nil, gonvml.ERROR_UNKNOWN
			}
		}()
		return call()
	})
}

// each queries profiles by index until the last one. It leaves out the profiles that the GPU does not have.
func each[T any](ask func(index int) (T, error)) ([]T, error) {
	var out []T
	for index := range maxEntries {
		switch p, err := ask(index); {
		case err == nil:
			out = append(out, p)
		case errors.Is(err, nvml.InvalidArgument):
			return out, nil
		case !errors.Is(err, nvml.NotSupported):
			return nil, err
		}
	}
	return out, nil
}

// inOrder sorts listed instances by ID, without duplicates. One can vanish between its listing and its query, so
// inOrder lists again while the lists become shorter. If the last list still has the instance, its query failed.
func inOrder[T any](list func() ([]T, error), id func(T) (int, error)) ([]T, error) {
	for before := math.MaxInt; ; {
		all, err := list()
		if err != nil {
			return nil, err
		}
		out, err := sorted(all, id)
		if !nvml.Vanished(err) || len(all) >= before {
			return out, err
		}
		before = len(all)
	}
}

func sorted[T any](all []T, id func(T) (int, error)) ([]T, error) {
	byID := map[int]T{}
	for _, i := range all {
		n, err := id(i)
		if err != nil {
			return nil, err
		}
		if _, seen := byID[n]; !seen {
			byID[n] = i
		}
	}
	var out []T
	for _, n := range slices.Sorted(maps.Keys(byID)) {
		out = append(out, byID[n])
	}
	return out, nil
}

// destroyable forwards queries of an instance until the instance was destroyed through it: NVML may crash on a
// destroyed handle.
type destroyable struct {
	querier
	destroyed atomic.Bool
}

func (d *destroyable) query(symbol string, call func() gonvml.Return) error {
	if d.destroyed.Load() {
		return &nvml.Error{Query: symbol, Code: nvml.NotFound}
	}
	return d.querier.query(symbol, call)
}

func (d *destroyable) destroy(symbol string, call func() gonvml.Return) error {
	err := d.query(symbol, call)
	if err == nil {
		d.destroyed.Store(true)
	}
	return err
}

// session is one reference to an initialised library. Queries hold mu for reading, so that the library is not shut
// down during a query.
type session struct {
	library *Library
	mu      sync.RWMutex
	closed  bool
}

func (s *session) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return s.library.release()
}

// query runs one call of NVML, unless the session is closed or the driver lacks the function.
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

// CUDAVersion asks NVML, which loads libcuda.so.1 for the answer. The dynamic linker does not find that library below
// another driver root, unless it is loaded already.
func (s *session) CUDAVersion() (int, error) {
	const symbol = "nvmlSystemGetCudaDriverVersion_v2"
	version, err := get(s, symbol, s.library.lib.SystemGetCudaDriverVersion_v2)
	if err == nil && version > 0 || errors.Is(err, nvml.Uninitialized) {
		return version, err
	}
	if known := s.library.cuda.Load(); known > 0 {
		return int(known), nil
	}
	path, _, missing := s.library.find(cudaSoname)
	cuda := dl.New(path, dl.RTLD_LAZY|dl.RTLD_LOCAL)
	if missing != nil || cuda.Open() != nil {
		return 0, &nvml.Error{Query: symbol, Code: nvml.LibraryNotFound}
	}
	version, err = get(s, symbol, s.library.lib.SystemGetCudaDriverVersion_v2)
	_ = cuda.Close() // It is large. If it stays loaded, nothing else is different.
	s.library.cuda.Store(int64(version))
	return version, err
}

func (s *session) DeviceCount() (int, error) {
	return get(s, "nvmlDeviceGetCount_v2", s.library.lib.DeviceGetCount)
}

func (s *session) Device(index int) (nvml.Device, error) {
	const symbol = "nvmlDeviceGetHandleByIndex_v2"
	if index < 0 {
		return nil, &nvml.Error{Query: symbol, Code: nvml.InvalidArgument}
	}
	return s.device(symbol, with(s.library.lib.DeviceGetHandleByIndex, index))
}

func (s *session) DeviceAt(address string) (nvml.Device, error) {
	return s.device("nvmlDeviceGetHandleByPciBusId_v2", with(s.library.lib.DeviceGetHandleByPciBusId, address))
}

func (s *session) device(symbol string, find func() (gonvml.Device, gonvml.Return)) (nvml.Device, error) {
	handle, err := get(s, symbol, find)
	if err != nil {
		return nil, err
	}
	return &device{session: s, handle: handle}, nil
}
