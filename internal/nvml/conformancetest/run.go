// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package conformancetest

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"gpu-dra-driver/internal/nvml"
)

// Options configures the checks for a machine.
type Options struct {
	// DevRoot holds /dev with a node for each GPU's minor number. Empty: not checked.
	DevRoot string
	// GPUs is the expected number of GPUs. Negative: any number.
	GPUs int
}

// Run checks every rule, each in a subtest. The library must open.
func Run(t *testing.T, lib nvml.Library, o Options) {
	t.Helper()
	first := open(t, lib)
	defer closed(t, first)

	t.Run("the driver names its versions", func(t *testing.T) { versions(t, first) })
	t.Run("the number of GPUs is right", func(t *testing.T) { count(t, first, o) })
	t.Run("an index out of range is refused", func(t *testing.T) { outOfRange(t, first) })
	t.Run("a GPU is found at its address", func(t *testing.T) { byAddress(t, first) })
	t.Run("each GPU's answers are well-formed", func(t *testing.T) { devices(t, first, o) })
	t.Run("partitions match each GPU's profiles and instances", func(t *testing.T) { partitions(t, first) })
	t.Run("no two GPUs share an identity", func(t *testing.T) { distinct(t, first) })
	t.Run("constant answers do not change", func(t *testing.T) { repeatable(t, lib) })
	t.Run("sessions are counted", func(t *testing.T) { counting(t, lib) })
	t.Run("a closed session answers Uninitialized", func(t *testing.T) { afterClose(t, lib) })
	t.Run("event sets deliver only what is registered", func(t *testing.T) { events(t, lib) })
	t.Run("measurements are ratios and counters", func(t *testing.T) { measurements(t, first) })
	t.Run("concurrent queries succeed", func(t *testing.T) { concurrent(t, lib) })
}

func open(t *testing.T, lib nvml.Library) nvml.Session {
	t.Helper()
	s, err := lib.Open()
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return s
}

func closed(t *testing.T, s nvml.Session) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// typed checks an error of NVML: it names NVML's query and has a code.
func typed(t *testing.T, err error) {
	t.Helper()
	var e *nvml.Error
	if !errors.As(err, &e) {
		t.Errorf("error %q is not an *nvml.Error", err)
		return
	}
	if !strings.HasPrefix(e.Query, "nvml") || e.Code == 0 {
		t.Errorf("error %q names query %q and code %d, want NVML's name and a code that is not success", err, e.Query,
			e.Code)
	}
}

func versions(t *testing.T, s nvml.Session) {
	v, err := s.DriverVersion()
	if err != nil {
		t.Fatalf("DriverVersion: %v", err)
	}
	if parts := strings.Split(v, "."); len(parts) < 2 || len(parts) > 3 || strings.Trim(v, "0123456789.") != "" {
		t.Errorf("DriverVersion = %q, want two or three numbers", v)
	}
	cuda, err := s.CUDAVersion()
	if err != nil {
		t.Fatalf("CUDAVersion: %v", err)
	}
	if cuda < 9000 || cuda > 99990 || cuda%10 != 0 {
		t.Errorf("CUDAVersion = %d, want 1000 × major + 10 × minor", cuda)
	}
}

func count(t *testing.T, s nvml.Session, o Options) {
	n, err := s.DeviceCount()
	if err != nil {
		t.Fatalf("DeviceCount: %v", err)
	}
	if n < 0 || o.GPUs >= 0 && n != o.GPUs {
		t.Errorf("DeviceCount = %d, want %d", n, o.GPUs)
	}
	for i := range n {
		if _, err := s.Device(i); err != nil && !errors.Is(err, nvml.GPUIsLost) {
			t.Errorf("Device(%d) of %d: %v", i, n, err)
		}
	}
}

func outOfRange(t *testing.T, s nvml.Session) {
	n, err := s.DeviceCount()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{-1, n, n + 1, 1 << 20} {
		d, err := s.Device(i)
		if !errors.Is(err, nvml.InvalidArgument) && !errors.Is(err, nvml.NotFound) {
			t.Errorf("Device(%d) of %d = %v, %v; want InvalidArgument", i, n, d, err)
			continue
		}
		typed(t, err)
	}
}

func byAddress(t *testing.T, s nvml.Session) {
	each(s, func(i int, d nvml.Device) {
		pci, err := d.PCI()
		if err != nil {
			return
		}
		// NVML's format has a domain of eight digits, the kernel's of four.
		for _, address := range []string{pci.BusID, strings.ToLower(strings.TrimPrefix(pci.BusID, "0000"))} {
			found, err := s.DeviceAt(address)
			if err != nil {
				t.Errorf("DeviceAt(%s): %v", address, err)
				continue
			}
			want, _ := d.UUID()
			if uuid, err := found.UUID(); err != nil || uuid != want {
				t.Errorf("DeviceAt(%s) is %s, %v; want GPU %d, %s", address, uuid, err, i, want)
			}
		}
	})
	for address, want := range map[string]nvml.Code{
		"0000:fe:1f.0": nvml.NotFound,
		"0000:fe:1f.7": nvml.InvalidArgument,
		"nonsense":     nvml.InvalidArgument,
		"":             nvml.InvalidArgument,
	} {
		d, err := s.DeviceAt(address)
		if !errors.Is(err, want) {
			t.Errorf("DeviceAt(%q) = %v, %v; want %v", address, d, err, want)
			continue
		}
		typed(t, err)
	}
}

func counting(t *testing.T, lib nvml.Library) {
	a, b := open(t, lib), open(t, lib)
	closed(t, a)
	closed(t, a) // a second Close takes nothing from b
	if _, err := b.DriverVersion(); err != nil {
		t.Errorf("the other session, after one was closed twice: %v", err)
	}
	closed(t, b)
	c := open(t, lib)
	if _, err := c.DriverVersion(); err != nil {
		t.Errorf("a session opened after all others closed: %v", err)
	}
	closed(t, c)
}

func afterClose(t *testing.T, lib nvml.Library) {
	s := open(t, lib)
	n, err := s.DeviceCount()
	if err != nil {
		t.Fatal(err)
	}
	var kept []nvml.Device
	for i := range n {
		if d, err := s.Device(i); err == nil {
			kept = append(kept, d)
		}
	}
	closed(t, s)
	ask := map[string]func() error{
		"DriverVersion": func() error { _, err := s.DriverVersion(); return err },
		"CUDAVersion":   func() error { _, err := s.CUDAVersion(); return err },
		"DeviceCount":   func() error { _, err := s.DeviceCount(); return err },
		"Device":        func() error { _, err := s.Device(0); return err },
	}
	for _, d := range kept {
		for _, q := range queries {
			ask[q.name] = func() error { _, err := q.ask(d); return err }
		}
	}
	for name, f := range ask {
		if err := f(); !errors.Is(err, nvml.Uninitialized) {
			t.Errorf("%s after Close: %v, want Uninitialized", name, err)
		} else {
			typed(t, err)
		}
	}
}

func events(t *testing.T, lib nvml.Library) {
	s := open(t, lib)
	defer closed(t, s)
	if _, err := s.Events(nil); err == nil {
		t.Error("Events of no GPU succeeded")
	}
	var devices []nvml.Device
	each(s, func(_ int, d nvml.Device) { devices = append(devices, d) })
	set, err := s.Events(devices)
	if err != nil {
		typed(t, err)
		return // No GPU has events.
	}
	for n, err := range set.Refused() {
		if n < 0 || n >= len(devices) {
			t.Errorf("GPU %d of %d refused", n, len(devices))
		}
		typed(t, err)
	}
	if e, err := set.Wait(0); err == nil {
		t.Logf("an XID of this moment: %+v", e)
	} else if !errors.Is(err, nvml.Timeout) && !errors.Is(err, nvml.GPUIsLost) {
		t.Errorf("Wait: %v, want Timeout", err)
	} else {
		typed(t, err)
	}
	for range 2 {
		if err := set.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if _, err := set.Wait(0); !errors.Is(err, nvml.InvalidArgument) {
		t.Errorf("Wait after Close: %v, want InvalidArgument", err)
	}
}

func concurrent(t *testing.T, lib nvml.Library) {
	want := static(t, lib)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 4 {
				s, err := lib.Open()
				if err != nil {
					t.Errorf("Open: %v", err)
					return
				}
				compare(t, want, read(s))
				if err := s.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			}
		})
	}
	wg.Wait()
}
