// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package simtest makes simulated machines for tests.
//
// Machine makes one in the test's directory, for the in-process NVML fake: no root, no device nodes, no compiler.
// Root makes a whole driver root with libnvidia-ml.so.1, which it builds: it needs a C compiler, and root for device
// nodes.
//
// Trap. NVML's symbols bind once in a process, to the first simulated library that go-nvml opens. A test binary that
// opens libraries of several roots selects a machine with Root.Use, which sets GPUSIM_ROOT.
package simtest

import (
	"path/filepath"
	"testing"

	"gpu-dra-driver/sim/driverroot"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/profiles"
)

// Machine returns a machine of the profile in a directory of the test.
func Machine(t testing.TB, profile string) *engine.Engine {
	t.Helper()
	return MachineIn(t, t.TempDir(), profile)
}

// MachineIn returns a machine of the profile in a directory.
func MachineIn(t testing.TB, dir, profile string) *engine.Engine {
	t.Helper()
	e := engine.Open(dir, nil)
	if err := e.Create(newState(t, profile, 0)); err != nil {
		t.Fatal(err)
	}
	return e
}

// MachineInMemory returns a machine without files. It has the profile's first n GPUs, or all of them if n is 0.
func MachineInMemory(t testing.TB, profile string, n int) *engine.Engine {
	t.Helper()
	e, err := engine.InMemory(newState(t, profile, n))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func newState(t testing.TB, profile string, gpus int) *engine.State {
	t.Helper()
	p, err := profiles.Load(profile)
	if err != nil {
		t.Fatal(err)
	}
	s, err := engine.New(p, "", gpus)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// DriverRoot is a driver root in a directory of the test.
type DriverRoot struct {
	*driverroot.Root
	// Library is the path of libnvidia-ml.so.1 in the root.
	Library string
	// ProcRoot, SysRoot and BootIDFile are values for the plugin's flags of those names. The root is also the device
	// root.
	ProcRoot, SysRoot, BootIDFile string
}

// Root returns a driver root with a machine of the profile. change may be nil.
func Root(t testing.TB, profile string, change func(*driverroot.Options)) *DriverRoot {
	t.Helper()
	o := driverroot.Options{Profile: profile}
	if change != nil {
		change(&o)
	}
	dir := filepath.Join(t.TempDir(), "root")
	var r *driverroot.Root
	err := withBinaries(func(library, smi string) (err error) {
		o.Library, o.SMI = library, smi
		r, err = driverroot.Up(dir, o)
		return err
	})
	if err != nil {
		t.Fatalf("making a simulated driver root: %v", err)
	}
	return &DriverRoot{
		Root: r, Library: filepath.Join(dir, driverroot.LibDir, "libnvidia-ml.so.1"),
		ProcRoot: filepath.Join(dir, driverroot.ProcDir), SysRoot: filepath.Join(dir, driverroot.SysDir),
		BootIDFile: filepath.Join(dir, driverroot.BootIDFile),
	}
}

// Use selects this machine for simulated libraries that this process initialises from now on.
func (r *DriverRoot) Use(t testing.TB) {
	t.Helper()
	t.Setenv("GPUSIM_ROOT", r.Path)
}

// Change changes a machine, or fails the test.
func Change(t testing.TB, machine interface {
	Update(func(*engine.State) error) error
}, change func(*engine.State)) {
	t.Helper()
	if err := machine.Update(func(s *engine.State) error { change(s); return nil }); err != nil {
		t.Fatal(err)
	}
}
