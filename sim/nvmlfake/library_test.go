// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nvmlfake_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/conformancetest"
	"gpu-dra-driver/internal/nvml/nvmltest"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/nvmlfake"
	"gpu-dra-driver/sim/simtest"
)

func TestLibrary_EachProfile_Conforms(t *testing.T) {
	conformancetest.Run(t, nvmlfake.New(simtest.Machine(t, "hgx-h100")), conformancetest.Options{GPUs: 8})
}

func open(t *testing.T, lib nvml.Library) nvml.Session {
	t.Helper()
	s, err := lib.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestMIGMode_BoardWithoutMIG_ReturnsNotSupported(t *testing.T) {
	for profile, capable := range map[string]bool{"t4-1": false, "l40s-4": false, "hgx-h100": true, "dgx-a100-40": true} {
		d, err := open(t, nvmlfake.New(simtest.Machine(t, profile))).Device(0)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := d.MIGMode(); nvml.Unavailable(err) == capable {
			t.Errorf("%s: MIGMode: %v", profile, err)
		}
	}
}

func TestProcesses_BothKinds_InOrder(t *testing.T) {
	machine := simtest.Machine(t, "t4-1")
	simtest.Change(t, machine, func(s *engine.State) {
		for _, p := range []engine.Process{{PID: 30, MemoryMiB: 1}, {PID: 10, MemoryMiB: 2, Graphics: true}, {PID: 20, MemoryMiB: 3}} {
			if err := s.AddProcess(&s.GPUs[0], p); err != nil {
				t.Error(err)
			}
		}
	})
	d, err := open(t, nvmlfake.New(machine)).Device(0)
	if err != nil {
		t.Fatal(err)
	}
	got, err := d.Processes()
	if err != nil {
		t.Fatal(err)
	}
	want := []nvml.Process{
		{PID: 10, GPUInstance: -1, ComputeInstance: -1},
		{PID: 20, GPUInstance: -1, ComputeInstance: -1},
		{PID: 30, GPUInstance: -1, ComputeInstance: -1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("processes (-want +got):\n%s", diff)
	}
}

func TestDevice_QueryFails_ErrorNamesQuery(t *testing.T) {
	machine := simtest.Machine(t, "t4-1")
	lib := nvmlfake.New(machine)
	d, err := open(t, lib).Device(0)
	if err != nil {
		t.Fatal(err)
	}
	simtest.Change(t, machine, func(s *engine.State) {
		s.Faults = []engine.Fault{{Query: "nvmlDeviceGetName", Code: nvml.ResetRequired}}
		s.AbsentSymbols = []string{"nvmlDeviceGetNumGpuCores"}
	})
	_, err = d.Name()
	var e *nvml.Error
	if !errors.As(err, &e) || e.Query != "nvmlDeviceGetName" || !errors.Is(err, nvml.ResetRequired) {
		t.Errorf("Name: %v", err)
	}
	if _, err := d.Cores(); !errors.Is(err, nvml.FunctionNotFound) {
		t.Errorf("Cores without the symbol: %v", err)
	}
}

func TestOpen_NoDriver_ReturnsDriverNotLoaded(t *testing.T) {
	machine := simtest.Machine(t, "t4-1")
	simtest.Change(t, machine, func(s *engine.State) { s.DriverLoaded = false })
	lib := nvmlfake.New(machine)
	if _, err := lib.Open(); !errors.Is(err, nvml.DriverNotLoaded) {
		t.Errorf("Open: %v", err)
	}
	simtest.Change(t, machine, func(s *engine.State) { s.DriverLoaded = true })
	open(t, lib)
	if _, err := nvmlfake.NewRoot(t.TempDir()).Open(); !errors.Is(err, nvml.DriverNotLoaded) {
		t.Errorf("Open of an empty root: %v", err)
	}
}

func TestHealth_OldDriver_HasNoRecoveryAction(t *testing.T) {
	machine := simtest.Machine(t, "hgx-h100")
	simtest.Change(t, machine, func(s *engine.State) { s.Profile.Driver.Version, s.GPUs[0].Recovery = "550.54.15", 1 })
	s, err := nvmlfake.New(machine).Open()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	d, err := s.Device(0)
	if err != nil {
		t.Fatal(err)
	}
	if h, err := d.Health(); err != nil || h.Recovery != nvml.RecoveryUnsupported || h.RemapFailed {
		t.Errorf("%+v, %v", h, err)
	}
}

// TestEvents_CallFails_ReturnsCodeUntilFaultEnds fails each call of an event set with each of its codes.
func TestEvents_CallFails_ReturnsCodeUntilFaultEnds(t *testing.T) {
	machine := simtest.MachineInMemory(t, "hgx-h100", 1)
	calls := &nvmltest.Calls{}
	s := open(t, nvmlfake.WithHook(machine, calls.Do))
	d, err := s.Device(0)
	if err != nil {
		t.Fatal(err)
	}
	use := func() error {
		set, err := s.Events([]nvml.Device{d})
		if err != nil {
			return err
		}
		simtest.Change(t, machine, func(s *engine.State) { s.RaiseXID(&s.GPUs[0], 31, "") })
		e, err := set.Wait(0)
		if err == nil && e != (nvml.Event{XID: 31, GPUInstance: -1, ComputeInstance: -1}) {
			t.Errorf("event %+v", e)
		}
		return errors.Join(err, set.Close())
	}
	for _, query := range []string{"nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2", "nvmlEventSetFree"} {
		for _, code := range nvmltest.Codes(t, query) {
			calls.Answer(code, nvmltest.Of(query, ""))
			if err := use(); !errors.Is(err, code) {
				t.Errorf("%s answers %d: %v", query, code, err)
			}
			calls.Clear()
			if err := use(); err != nil {
				t.Errorf("after %s answered %d: %v", query, code, err)
			}
		}
	}
}
