// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nvmltest

import (
	"errors"
	"fmt"
	"slices"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/nvml"
)

// Label is the label of NVML's operations.
const Label host.Label = "nvml"

// WithFaults returns a library whose changes go through a hook.
func WithFaults(l nvml.Library, hook host.FaultHook) nvml.Library { return library{l, hook} }

// do makes a change. NVML answers an injected fault with its own errors.
func do(hook host.FaultHook, call host.Call, change func() error) error {
	err := hook(host.Operation{Label: Label, Call: call}, change)
	switch {
	case errors.Is(err, hosttest.ErrInjected):
		return fmt.Errorf("%s: %w", call, nvml.Unknown)
	case errors.Is(err, hosttest.ErrAnswerLost):
		return fmt.Errorf("%s: %w", call, nvml.Timeout)
	}
	return err
}

type library struct {
	nvml.Library
	hook host.FaultHook
}

func (l library) Open() (nvml.Session, error) {
	s, err := l.Library.Open()
	if err != nil {
		return nil, err
	}
	return &session{s, l.hook}, nil // A pointer, because a session pool compares sessions.
}

type session struct {
	nvml.Session
	hook host.FaultHook
}

func (s *session) Device(index int) (nvml.Device, error) {
	d, err := s.Session.Device(index)
	if err != nil {
		return nil, err
	}
	return device{d, s.hook}, nil
}

func (s *session) DeviceAt(address string) (nvml.Device, error) {
	d, err := s.Session.DeviceAt(address)
	if err != nil {
		return nil, err
	}
	return device{d, s.hook}, nil
}

// Events registers the library's own devices.
func (s *session) Events(devices []nvml.Device) (nvml.EventSet, error) {
	own := slices.Clone(devices)
	for n := range own {
		if d, ok := own[n].(device); ok {
			own[n] = d.Device
		}
	}
	return s.Session.Events(own)
}

type device struct {
	nvml.Device
	hook host.FaultHook
}

func (d device) SetComputeMode(m nvml.ComputeMode) error {
	return do(d.hook, "set-compute-mode", func() error { return d.Device.SetComputeMode(m) })
}

func (d device) SetMIGComputeMode(uuid string, m nvml.ComputeMode) error {
	return do(d.hook, "set-mig-compute-mode", func() error { return d.Device.SetMIGComputeMode(uuid, m) })
}

func (d device) SetMemoryLimit(cgroup string, bytes uint64) error {
	return do(d.hook, "set-memory-limit", func() error { return d.Device.SetMemoryLimit(cgroup, bytes) })
}

func (d device) SetMIGMode(on bool) error {
	return do(d.hook, "set-mig-mode", func() error { return d.Device.SetMIGMode(on) })
}

func (d device) CreateGPUInstance(profile int, at nvml.MIGPlacement) (nvml.GPUInstance, error) {
	made := gpuInstance{hook: d.hook}
	err := do(d.hook, "create-gpu-instance", func() (err error) {
		made.GPUInstance, err = d.Device.CreateGPUInstance(profile, at)
		return err
	})
	if err != nil {
		return nil, err
	}
	return made, nil
}

func (d device) GPUInstances() ([]nvml.GPUInstance, error) {
	all, err := d.Device.GPUInstances()
	for i := range all {
		all[i] = gpuInstance{all[i], d.hook}
	}
	return all, err
}

func (d device) GPUInstance(id int) (nvml.GPUInstance, error) {
	i, err := d.Device.GPUInstance(id)
	if err != nil {
		return nil, err
	}
	return gpuInstance{i, d.hook}, nil
}

type gpuInstance struct {
	nvml.GPUInstance
	hook host.FaultHook
}

func (i gpuInstance) Destroy() error {
	return do(i.hook, "destroy-gpu-instance", i.GPUInstance.Destroy)
}

func (i gpuInstance) CreateComputeInstance(profile int) (made nvml.ComputeInstance, err error) {
	err = do(i.hook, "create-compute-instance", func() (err error) {
		made, err = i.GPUInstance.CreateComputeInstance(profile)
		return err
	})
	return made, err
}

func (i gpuInstance) ComputeInstances() ([]nvml.ComputeInstance, error) {
	all, err := i.GPUInstance.ComputeInstances()
	for n := range all {
		all[n] = computeInstance{all[n], i.hook}
	}
	return all, err
}

type computeInstance struct {
	nvml.ComputeInstance
	hook host.FaultHook
}

func (c computeInstance) Destroy() error {
	return do(c.hook, "destroy-compute-instance", c.ComputeInstance.Destroy)
}
