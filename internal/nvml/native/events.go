// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package native

import (
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpu-dra-driver/internal/nvml"
)

// eventSet is NVML's event set. NVML must not free it while a Wait runs.
type eventSet struct {
	session *session
	handle  gonvml.EventSet
	// devices are the handles by which events name their GPU, because a lost GPU has no UUID.
	devices []gonvml.Device
	refused map[int]error

	mu     sync.Mutex
	closed bool
}

func (s *session) Events(devices []nvml.Device) (nvml.EventSet, error) {
	if len(devices) == 0 {
		return nil, &nvml.Error{Query: "nvmlDeviceRegisterEvents", Code: nvml.InvalidArgument}
	}
	handle, err := get(s, "nvmlEventSetCreate", s.library.lib.EventSetCreate)
	if err != nil {
		return nil, err
	}
	e := &eventSet{session: s, handle: handle, devices: make([]gonvml.Device, len(devices)), refused: map[int]error{}}
	for n, d := range devices {
		err = e.register(n, d)
		if errors.Is(err, nvml.Unknown) {
			break // NVML leaves the set undefined.
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

func (e *eventSet) register(n int, given nvml.Device) error {
	const symbol = "nvmlDeviceRegisterEvents"
	d, ok := given.(*device)
	if !ok {
		return &nvml.Error{Query: symbol, Code: nvml.InvalidArgument}
	}
	e.devices[n] = d.handle
	return e.session.query(symbol, func() gonvml.Return {
		return d.handle.RegisterEvents(gonvml.EventTypeXidCriticalError, e.handle)
	})
}

func (e *eventSet) Refused() map[int]error { return e.refused }

func (e *eventSet) Wait(limit time.Duration) (nvml.Event, error) {
	const symbol = "nvmlEventSetWait_v2"
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nvml.Event{}, &nvml.Error{Query: symbol, Code: nvml.InvalidArgument}
	}
	ms := uint32(min(max(limit.Milliseconds(), 0), math.MaxUint32-1))
	data, err := get(e.session, symbol, func() (gonvml.EventData, gonvml.Return) { return e.handle.Wait(ms) })
	if err != nil {
		return nvml.Event{}, err
	}
	return nvml.Event{
		Device: slices.Index(e.devices, data.Device), XID: data.EventData,
		// NVML's ID of the whole GPU has all bits set, as -1 has.
		GPUInstance: int(int32(data.GpuInstanceId)), ComputeInstance: int(int32(data.ComputeInstanceId)),
	}, nil
}

func (e *eventSet) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	return e.session.query("nvmlEventSetFree", e.handle.Free)
}
