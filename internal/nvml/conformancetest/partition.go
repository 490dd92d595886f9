// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package conformancetest

import (
	"errors"
	"slices"
	"testing"

	"gpu-dra-driver/internal/nvml"
)

// Machine is a simulated machine for Partition, in addition to its NVML.
type Machine struct {
	// Hold makes a process use a part of the first GPU, -1 and -1 for the whole GPU, and returns a function that ends
	// it.
	Hold func(t *testing.T, gpuInstance, computeInstance int) (release func())
}

// Partition checks MIG partitioning on simulated machines. They need at least two GPUs with MIG, with the mode off
// and without processes. Partition restores the machine's state.
func Partition(t *testing.T, lib nvml.Library, m Machine) {
	t.Helper()
	s := open(t, lib)
	defer closed(t, s)
	p := &partition{lib: lib, machine: m, gpu: gpuAt(t, s, 0), other: gpuAt(t, s, 1)}

	t.Run("the mode does not change while a process uses the GPU", p.modeWhileHeld)
	t.Run("no instance is created while the mode is off", p.modeOff)
	t.Run("the compute mode changes as requested", p.computeMode)
	p.mode(t, true)
	t.Run("the compute mode of a GPU in MIG mode cannot change", p.noComputeMode)
	t.Run("profiles are the same in either mode", p.sameOffers)
	t.Run("an instance takes exactly the requested placement", p.everyPlacement)
	t.Run("an invalid placement is an error", p.invalidPlacements)
	t.Run("a full GPU refuses instances", p.untilFull)
	t.Run("a partition with a compute instance is a device", p.device)
	t.Run("compute instances share a GPU instance", p.shared)
	t.Run("the mode is not switched off under an instance", p.modeUnderInstance)
	t.Run("an instance in use is not destroyed", p.held)
	t.Run("partitions of two GPUs are independent", p.separateGPUs)
	t.Run("one of several concurrent callers gets a placement", p.race)
	p.mode(t, false)
	t.Run("a closed session changes nothing", p.afterClose)
}

type partition struct {
	lib        nvml.Library
	machine    Machine
	gpu, other nvml.Device
}

func gpuAt(t *testing.T, s nvml.Session, i int) nvml.Device {
	t.Helper()
	d, err := s.Device(i)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// refused checks that a call failed with one of the codes.
func refused(t *testing.T, what string, err error, codes ...nvml.Code) {
	t.Helper()
	if !slices.ContainsFunc(codes, func(c nvml.Code) bool { return errors.Is(err, c) }) {
		t.Errorf("%s: %v, want %v", what, err, codes)
		return
	}
	typed(t, err)
}

func (p *partition) mode(t *testing.T, on bool) {
	t.Helper()
	if err := p.gpu.SetMIGMode(on); err != nil {
		t.Fatalf("SetMIGMode(%v) of an idle GPU: %v", on, err)
	}
	p.modeIs(t, on)
}

func (p *partition) modeIs(t *testing.T, on bool) {
	t.Helper()
	if current, pending, err := p.gpu.MIGMode(); err != nil || current != on || pending != on {
		t.Errorf("MIGMode = %v, pending %v, %v; want %v and nothing else pending", current, pending, err, on)
	}
}

func (p *partition) modeWhileHeld(t *testing.T) {
	release := p.machine.Hold(t, -1, -1)
	refused(t, "SetMIGMode of a GPU in use", p.gpu.SetMIGMode(true), nvml.InUse)
	p.modeIs(t, false)
	release()
}

func (p *partition) modeOff(t *testing.T) {
	profile, at := p.smallest(t)
	_, err := p.gpu.CreateGPUInstance(profile.ID, at[0])
	refused(t, "CreateGPUInstance with the mode off", err, nvml.NotSupported)
	unpartitioned(t, 0, p.gpu)
}

func (p *partition) computeMode(t *testing.T) {
	found, err := p.gpu.ComputeMode()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []nvml.ComputeMode{nvml.ComputeExclusiveProcess, nvml.ComputeProhibited, nvml.ComputeDefault,
		found} {
		if err := p.gpu.SetComputeMode(want); err != nil {
			t.Errorf("SetComputeMode(%s): %v", want, err)
		}
		if got, err := p.gpu.ComputeMode(); err != nil || got != want {
			t.Errorf("the compute mode is %s (%v), want %s", got, err, want)
		}
	}
	if other, err := p.other.ComputeMode(); err != nil || other != found {
		t.Errorf("another GPU's compute mode is %s (%v)", other, err)
	}
	refused(t, "SetComputeMode with an unknown mode", p.gpu.SetComputeMode(17), nvml.InvalidArgument)
}

func (p *partition) noComputeMode(t *testing.T) {
	refused(t, "SetComputeMode of a GPU in MIG mode", p.gpu.SetComputeMode(nvml.ComputeExclusiveProcess),
		nvml.NotSupported)
}

func (p *partition) sameOffers(t *testing.T) {
	for _, q := range queries {
		if q.name != "GPUInstanceProfiles" && q.name != "GPUInstancePlacements" {
			continue
		}
		withMIG, err := q.ask(p.gpu)
		whole, otherErr := q.ask(p.other)
		if err != nil || otherErr != nil || withMIG != whole {
			t.Errorf("%s with the mode on: %s, %v\nwith it off: %s, %v", q.name, withMIG, err, whole, otherErr)
		}
	}
}

// profiles returns the GPU's profiles, each with its placements.
func (p *partition) profiles(t *testing.T) ([]nvml.GPUInstanceProfile, [][]nvml.MIGPlacement) {
	t.Helper()
	profiles, err := p.gpu.GPUInstanceProfiles()
	if err != nil || len(profiles) == 0 {
		t.Fatalf("GPUInstanceProfiles = %v, %v", profiles, err)
	}
	var all [][]nvml.MIGPlacement
	for _, profile := range profiles {
		at, err := p.gpu.GPUInstancePlacements(profile.ID)
		if err != nil || len(at) == 0 {
			t.Fatalf("GPUInstancePlacements of %s = %v, %v", profile.Name, at, err)
		}
		all = append(all, at)
	}
	return profiles, all
}

// smallest returns the profile with the most instances, largest the profile with the most compute slices.
func (p *partition) smallest(t *testing.T) (nvml.GPUInstanceProfile, []nvml.MIGPlacement) {
	t.Helper()
	profiles, at := p.profiles(t)
	n := 0
	for i := range profiles {
		if profiles[i].Instances > profiles[n].Instances {
			n = i
		}
	}
	return profiles[n], at[n]
}

func (p *partition) largest(t *testing.T) (nvml.GPUInstanceProfile, []nvml.MIGPlacement) {
	t.Helper()
	profiles, at := p.profiles(t)
	n := 0
	for i := range profiles {
		if profiles[i].Slices > profiles[n].Slices {
			n = i
		}
	}
	return profiles[n], at[n]
}

func (p *partition) create(t *testing.T, profile nvml.GPUInstanceProfile, at nvml.MIGPlacement) nvml.GPUInstance {
	t.Helper()
	g, err := p.gpu.CreateGPUInstance(profile.ID, at)
	if err != nil {
		t.Fatalf("make %s at %+v: %v", profile.Name, at, err)
	}
	return g
}

func (p *partition) destroy(t *testing.T, part interface{ Destroy() error }) {
	t.Helper()
	if err := part.Destroy(); err != nil {
		t.Fatalf("Destroy: %v", err)
	}
}

// instances returns the present instances.
func (p *partition) instances(t *testing.T) []nvml.GPUInstanceInfo {
	t.Helper()
	c, err := readPartitioning(t, 0, p.gpu)
	if err != nil {
		t.Fatal(err)
	}
	c.check(t, 0, p.gpu)
	var out []nvml.GPUInstanceInfo
	for _, i := range c.Instances {
		out = append(out, i)
	}
	return out
}

func (p *partition) devices(t *testing.T) []nvml.MIGDevice {
	t.Helper()
	found, err := p.gpu.MIGDevices()
	if err != nil {
		t.Fatal(err)
	}
	return found
}
