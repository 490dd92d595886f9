// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"testing"

	"gpu-dra-driver/internal/nvml/conformance"
	"gpu-dra-driver/internal/nvml/real"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/front"
	"gpu-dra-driver/sim/profiles"
	"gpu-dra-driver/sim/simtest"
)

func TestTheSimulatorInProcessConforms(t *testing.T) {
	for _, name := range profiles.Names() {
		t.Run(name, func(t *testing.T) {
			machine := simtest.Machine(t, name)
			p, err := profiles.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			conformance.Run(t, front.New(machine), conformance.Options{GPUs: len(p.Slots)})
		})
	}
}

func TestTheSimulatorInProcessConformsWithALostGPU(t *testing.T) {
	machine := simtest.Machine(t, "hgx-h100")
	simtest.Change(t, machine, func(s *engine.State) { s.GPUs[3].Lost = true })
	conformance.Run(t, front.New(machine), conformance.Options{GPUs: 8})
}

func TestTheSimulatedLibraryConforms(t *testing.T) {
	for _, name := range profiles.Names() {
		t.Run(name, func(t *testing.T) {
			root := simtest.Root(t, name, nil)
			root.Use(t)
			p, err := profiles.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			conformance.Run(t, real.New(root.Path), conformance.Options{GPUs: len(p.Slots), DevRoot: root.Path})
		})
	}
}

// machine is what Partition needs of a simulated one.
func machine(e interface {
	Update(func(*engine.State) error) error
}) conformance.Machine {
	return conformance.Machine{Hold: func(t *testing.T, gpuInstance, computeInstance int) func() {
		const pid = 4711
		p := engine.Process{PID: pid, Name: "holder", MemoryMiB: 16}
		if gpuInstance >= 0 {
			p.Place = &engine.Place{GPUInstance: gpuInstance, ComputeInstance: computeInstance}
		}
		simtest.Change(t, e, func(s *engine.State) { s.GPUs[0].Processes = append(s.GPUs[0].Processes, p) })
		return func() { simtest.Change(t, e, func(s *engine.State) { s.GPUs[0].Processes = nil }) }
	}}
}

// cuttable are the profiles of machines with two GPUs that have MIG.
func cuttable(t *testing.T) (names []string) {
	for _, name := range profiles.Names() {
		p, err := profiles.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		if p.Board.MIGCapable && len(p.Slots) > 1 {
			names = append(names, name)
		}
	}
	if len(names) < 3 {
		t.Fatalf("profiles with MIG: %v", names)
	}
	return names
}

func TestTheSimulatorInProcessIsCutAsHardwareIs(t *testing.T) {
	for _, name := range cuttable(t) {
		t.Run(name, func(t *testing.T) {
			e := simtest.Machine(t, name)
			conformance.Partition(t, front.New(e), machine(e))
		})
	}
}

func TestTheSimulatedLibraryIsCutAsHardwareIs(t *testing.T) {
	for _, name := range cuttable(t) {
		t.Run(name, func(t *testing.T) {
			root := simtest.Root(t, name, nil)
			root.Use(t)
			conformance.Partition(t, real.New(root.Path), machine(root))
		})
	}
}
