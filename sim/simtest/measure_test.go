// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package simtest

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/native"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/nvmlfake"
)

// loaded creates a partition of the first GPU, with a process.
func loaded(t *testing.T, s *engine.State, profile, computeProfile int, p engine.Process) (uuid string, gpuInstance int) {
	t.Helper()
	g := &s.GPUs[0]
	if code := s.SetMIGMode(g, true); code != 0 {
		t.Fatal(code)
	}
	i, code := s.CreateInstance(g, profile, engine.AnyStart)
	if code != 0 {
		t.Fatal(code)
	}
	c, code := s.CreateCompute(g, i.ID, computeProfile)
	if code != 0 {
		t.Fatal(code)
	}
	p.Place = &engine.Place{GPUInstance: i.ID, ComputeInstance: c.ID}
	if err := s.AddProcess(g, p); err != nil {
		t.Fatal(err)
	}
	return c.UUID, i.ID
}

// measured holds the answers of a GPU to measurements.
type measured struct {
	Utilization            nvml.Utilization
	UtilizationErr         string
	Power, Temperature, SM int
	Memory                 []nvml.ProcessMemory
	Processes              map[uint32]int
	MIG                    nvml.MemoryInfo
	Traffic                bool
}

func measure(t *testing.T, lib nvml.Library, index int, mig string) measured {
	t.Helper()
	s, err := lib.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	d, err := s.Device(index)
	if err != nil {
		t.Fatal(err)
	}
	m := measured{Processes: map[uint32]int{}}
	var errs [7]error
	m.Utilization, errs[0] = d.Utilization()
	if _, err := d.VideoUtilization(); (err == nil) != (errs[0] == nil) {
		t.Errorf("video utilization of GPU %d: %v, utilization: %v", index, err, errs[0])
	}
	m.Power, errs[1] = d.Power()
	m.Temperature, errs[2] = d.Temperature()
	m.SM, errs[3] = d.Clock(nvml.ClockSM)
	m.Memory, errs[4] = d.ProcessMemory()
	c, err := d.Counters()
	if errs[5] = err; err == nil {
		m.Traffic = c.PCIeSent > 0 && c.PCIeReceived > 0 && c.EnergyMJ > 0
	}
	if mig != "" {
		m.MIG, errs[6] = d.MIGMemory(mig)
	}
	for n, err := range errs[1:] {
		if err != nil {
			t.Errorf("measurement %d of GPU %d: %v", n+1, index, err)
		}
	}
	if m.UtilizationErr = ""; errs[0] != nil {
		m.UtilizationErr = errs[0].Error()
	}
	loads, err := d.ProcessUtilization(0)
	if err != nil {
		m.UtilizationErr += ", " + err.Error()
	}
	for _, p := range loads {
		m.Processes[p.PID] = p.SM
	}
	return m
}

// TestMeasurements_LoadedGPUs_EqualInBothLibraries loads a whole GPU and a partition, and reads both through the C ABI and in
// process.
func TestMeasurements_LoadedGPUs_EqualInBothLibraries(t *testing.T) {
	r := Root(t, "hgx-h100", nil)
	var uuid string
	var gi int
	Change(t, r, func(s *engine.State) {
		uuid, gi = loaded(t, s, 19, 0, engine.Process{PID: 7, MemoryMiB: 2048, Load: 50})
		if err := s.AddProcess(&s.GPUs[1], engine.Process{PID: 9, MemoryMiB: 1024, Load: 40}); err != nil {
			t.Fatal(err)
		}
		s.GPUs[1].Meter.Busy, s.GPUs[0].Meter.Busy = 1e9, 1e9
		s.GPUs[1].Meter.EnergyMJ, s.GPUs[0].Meter.EnergyMJ = 1e9, 1e9
	})
	r.Use(t)
	c, inProcess := native.New(r.Path), nvmlfake.NewRoot(r.Path)
	const refused = "nvmlDeviceGetUtilizationRates: not supported, nvmlDeviceGetProcessUtilization: not supported"
	for index, want := range []measured{
		{UtilizationErr: refused, Memory: []nvml.ProcessMemory{{Process: nvml.Process{PID: 7, GPUInstance: gi}, Bytes: 2 << 30}},
			MIG: nvml.MemoryInfo{Total: 9856 << 20, Used: 2 << 30, Free: (9856 - 2048) << 20}},
		{Utilization: nvml.Utilization{GPU: 40, Memory: 20}, Processes: map[uint32]int{9: 40},
			Memory: []nvml.ProcessMemory{{Process: nvml.Process{PID: 9, GPUInstance: -1, ComputeInstance: -1}, Bytes: 1 << 30}}},
	} {
		mig := ""
		if index == 0 {
			mig = uuid
		}
		got := measure(t, c, index, mig)
		if diff := cmp.Diff(measure(t, inProcess, index, mig), got); diff != "" {
			t.Errorf("GPU %d (-in process +C):\n%s", index, diff)
		}
		if got.Power < 69000 || !got.Traffic || got.SM < 1000 {
			t.Errorf("GPU %d: %+v, want the readings of a loaded GPU", index, got)
		}
		got.Power, got.Temperature, got.SM, got.Traffic = 0, 0, 0, false
		if want.Processes == nil {
			want.Processes = map[uint32]int{}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("GPU %d (-want +got):\n%s", index, diff)
		}
	}
	for name, lib := range map[string]nvml.Library{"C": c, "in process": inProcess} {
		whole, part := ratios(t, lib, -1, 0), ratios(t, lib, gi, 0)
		if math.Abs(part.SM-.5) > .001 || math.Abs(whole.SM-.5*16/132) > .001 || math.Abs(part.Tensor-.2) > .001 || math.Abs(part.DRAM-.25) > .001 {
			t.Errorf("%s: partition %+v, board %+v; want half of 16 multiprocessors, of 132", name, part, whole)
		}
	}
}

// ratios returns the performance between two samples.
func ratios(t *testing.T, lib nvml.Library, instance, index int) nvml.Performance {
	t.Helper()
	s, err := lib.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	d, err := s.Device(index)
	if err != nil {
		t.Fatal(err)
	}
	a, err := d.Performance(instance)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Free()
	time.Sleep(120 * time.Millisecond) // NVML's samples have a distance of 100 ms at least.
	b, err := d.Performance(instance)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Free()
	p, err := b.Since(a)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestMeasurements_A100_RefusesPerformance(t *testing.T) {
	r := Root(t, "dgx-a100-40", nil)
	r.Use(t)
	for name, lib := range map[string]nvml.Library{"C": native.New(r.Path), "in process": nvmlfake.NewRoot(r.Path)} {
		s, err := lib.Open()
		if err != nil {
			t.Fatal(err)
		}
		d, err := s.Device(0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Performance(-1); !errors.Is(err, nvml.NotSupported) {
			t.Errorf("%s: performance of an A100: %v, want NotSupported", name, err)
		}
		_ = s.Close()
	}
}
