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
