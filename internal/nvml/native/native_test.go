// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package native

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/conformancetest"
)

// root holds a driver from 2019, built once: a process keeps the first NVML library it loads.
var root string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "old-driver")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	lib := filepath.Join(dir, "usr/lib64/libnvidia-ml.so.418.87.01")
	if err := os.MkdirAll(filepath.Dir(lib), 0o755); err != nil {
		panic(err)
	}
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", lib, "testdata/oldnvml.c").CombinedOutput(); err != nil {
		panic(string(out))
	}
	if err := os.Symlink("libnvidia-ml.so.418.87.01", filepath.Join(dir, "usr/lib64/libnvidia-ml.so.1")); err != nil {
		panic(err)
	}
	root = dir
	return m.Run()
}

func TestLibrary_OldDriver_Conforms(t *testing.T) {
	conformancetest.Run(t, New(root), conformancetest.Options{GPUs: 1})
}

func TestOpen_NoDriver_ReturnsTypedError(t *testing.T) {
	for name, tc := range map[string]struct {
		setup func(t *testing.T) string
		want  error
	}{
		"no driver root": {func(t *testing.T) string { return filepath.Join(t.TempDir(), "absent") }, nvml.LibraryNotFound},
		"no library":     {func(t *testing.T) string { return t.TempDir() }, nvml.LibraryNotFound},
		"kernel module absent": {func(t *testing.T) string {
			t.Setenv("NVML_INIT", "9")
			return root
		}, nvml.DriverNotLoaded},
		"kernel module of another version": {func(t *testing.T) string {
			t.Setenv("NVML_INIT", "18")
			return root
		}, nvml.LibRMMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(tc.setup(t)).Open()
			if !errors.Is(err, tc.want) {
				t.Errorf("Open = %v, %v; want %v", s, err, tc.want)
			}
		})
	}
}

func TestOpen_DriverLoadedLater_Succeeds(t *testing.T) {
	lib := New(root)
	t.Setenv("NVML_INIT", "9")
	for range 3 {
		if _, err := lib.Open(); !errors.Is(err, nvml.DriverNotLoaded) {
			t.Fatalf("Open without a kernel module: %v", err)
		}
	}
	t.Setenv("NVML_INIT", "0")
	s, err := lib.Open()
	if err != nil {
		t.Fatalf("Open after the module was loaded: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestOpen_LibraryReplaced_ReturnsErrReplaced(t *testing.T) {
	lib := New(root)
	s, err := lib.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(root, "usr/lib64/libnvidia-ml.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{
		"libnvidia-ml.so.430.14":    nvml.ErrReplaced, // an upgrade
		"libnvidia-ml.so.1":         nvml.ErrReplaced, // another file that does not say its version
		"libnvidia-ml.so.418.87.01": nil,              // the same version installed again
	} {
		other := t.TempDir()
		if err := os.WriteFile(filepath.Join(other, name), data, 0o755); err != nil {
			t.Fatal(err)
		}
		if name != soname {
			if err := os.Symlink(name, filepath.Join(other, soname)); err != nil {
				t.Fatal(err)
			}
		}
		s, err := New(other).Open()
		if !errors.Is(err, want) {
			t.Errorf("Open of %s, with libnvidia-ml.so.418.87.01 loaded: %v, want %v", name, err, want)
		}
		if err == nil {
			_ = s.Close()
		}
	}
}

// TestOpen_LibraryReplacedBesideSession_ReturnsErrReplaced replaces the driver while a session stays open. While the files
// are missing, other sessions can be opened.
func TestOpen_LibraryReplacedBesideSession_ReturnsErrReplaced(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(root, "usr/lib64/libnvidia-ml.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	install := func(name string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(filepath.Join(dir, name), data, 0o755), os.Symlink(name, filepath.Join(dir, soname))); err != nil {
			t.Fatal(err)
		}
	}
	install("libnvidia-ml.so.418.87.01")
	lib := New(dir)
	held, err := lib.Open()
	if err != nil {
		t.Fatal(err)
	}
	open := func(want error) {
		t.Helper()
		s, err := lib.Open()
		if !errors.Is(err, want) {
			t.Errorf("Open beside a session: %v, want %v", err, want)
		}
		if err == nil {
			_ = s.Close()
		}
	}
	open(nil)
	if err := os.Remove(filepath.Join(dir, soname)); err != nil {
		t.Fatal(err)
	}
	open(nil)
	install("libnvidia-ml.so.430.14")
	open(nvml.ErrReplaced)
	if err := held.Close(); err != nil {
		t.Error(err)
	}
}

func TestDevice_FunctionMissing_ReturnsFunctionNotFound(t *testing.T) {
	d := first(t)
	_, err := d.AddressingMode()
	if want := (&nvml.Error{Query: "nvmlDeviceGetAddressingMode", Code: nvml.FunctionNotFound}); !cmp.Equal(err, error(want)) {
		t.Errorf("AddressingMode: %v, want %v", err, want)
	}
	if _, err := d.Cores(); !nvml.Unavailable(err) {
		t.Errorf("Cores: %v, want unavailable", err)
	}
	if _, err := d.Memory(); !nvml.Unavailable(err) {
		t.Errorf("Memory: %v, want unavailable", err)
	}
}

func TestDevice_Queries_ReturnOwnTypes(t *testing.T) {
	d := first(t)
	type answers struct {
		PCI       nvml.PCIInfo
		Brand     nvml.Brand
		Compute   nvml.ComputeMode
		Processes []nvml.Process
	}
	var got answers
	var errs [4]error
	got.PCI, errs[0] = d.PCI()
	got.Brand, errs[1] = d.Brand()
	got.Compute, errs[2] = d.ComputeMode()
	got.Processes, errs[3] = d.Processes()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	want := answers{
		PCI:       nvml.PCIInfo{BusID: "00000000:3B:00.0", DeviceID: 0x1EB810DE, SubsystemID: 0x12A210DE},
		Brand:     2, // Tesla
		Compute:   nvml.ComputeExclusiveProcess,
		Processes: []nvml.Process{{PID: 7, GPUInstance: -1, ComputeInstance: -1}, {PID: 42, GPUInstance: -1, ComputeInstance: -1}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
}

func TestDevice_Lost_ReturnsGPUIsLost(t *testing.T) {
	d := first(t)
	t.Setenv("NVML_LOST", "1")
	if _, err := d.UUID(); !errors.Is(err, nvml.GPUIsLost) {
		t.Errorf("UUID: %v, want GPUIsLost", err)
	}
	if _, err := d.Processes(); !errors.Is(err, nvml.GPUIsLost) {
		t.Errorf("Processes: %v, want GPUIsLost", err)
	}
}

func first(t *testing.T) nvml.Device {
	t.Helper()
	s, err := New(root).Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	d, err := s.Device(0)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
