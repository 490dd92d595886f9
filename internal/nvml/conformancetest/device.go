// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package conformancetest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/gpu"
)

var uuidForm = regexp.MustCompile("^GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")

// query is one method of nvml.Device, with its answer as text.
type query struct {
	name string
	ask  func(nvml.Device) (string, error)
	// moves means that the answer may differ from one moment to the next.
	moves bool
	// check returns an error for a malformed answer.
	check func(answer string) error
}

func asText[T any](f func(nvml.Device) (T, error)) func(nvml.Device) (string, error) {
	return func(d nvml.Device) (string, error) {
		v, err := f(d)
		return fmt.Sprintf("%+v", v), err
	}
}

var queries = []query{
	{name: "UUID", ask: asText(nvml.Device.UUID), check: func(s string) error {
		if !uuidForm.MatchString(s) {
			return errors.New("want GPU- and a UUID in lower case")
		}
		return nil
	}},
	{name: "PCI", ask: func(d nvml.Device) (string, error) { p, err := d.PCI(); return p.BusID, err },
		check: func(s string) error {
			_, err := gpu.CanonicalAddress(s)
			return err
		}},
	{name: "PCI device ID", ask: func(d nvml.Device) (string, error) {
		p, err := d.PCI()
		return fmt.Sprintf("%04x", p.DeviceID&0xffff), err
	}, check: func(s string) error {
		if s != "10de" {
			return errors.New("want NVIDIA's vendor ID 10de in the low half")
		}
		return nil
	}},
	{name: "Name", ask: asText(nvml.Device.Name), check: func(s string) error {
		if s == "" || strings.TrimSpace(s) != s {
			return errors.New("want a name without blanks around it")
		}
		return nil
	}},
	{name: "MinorNumber", ask: asText(nvml.Device.MinorNumber), check: notNegative},
	{name: "Brand", ask: asText(nvml.Device.Brand)},
	{name: "Architecture", ask: asText(nvml.Device.Architecture)},
	{name: "CUDAComputeCapability", ask: func(d nvml.Device) (string, error) {
		major, minor, err := d.CUDAComputeCapability()
		return fmt.Sprintf("%d.%d", major, minor), err
	}, check: func(s string) error {
		if strings.HasPrefix(s, "0.") || strings.HasPrefix(s, "-") {
			return errors.New("want a capability of 1.0 or more")
		}
		return nil
	}},
	{name: "Memory total", ask: func(d nvml.Device) (string, error) {
		m, err := d.Memory()
		return fmt.Sprint(m.Total), err
	}},
	{name: "Memory", moves: true, ask: func(d nvml.Device) (string, error) {
		m, err := d.Memory()
		if err == nil && (m.Reserved > m.Total || m.Free > m.Total || m.Used > m.Total) {
			return fmt.Sprintf("%+v: a part is larger than the total", m), nil
		}
		return "", err
	}, check: func(s string) error {
		if s != "" {
			return errors.New("parts must fit into the total")
		}
		return nil
	}},
	{name: "Cores", ask: asText(nvml.Device.Cores), check: func(s string) error {
		if s == "0" {
			return errors.New("want some cores, or an error")
		}
		return notNegative(s)
	}},
	{name: "AddressingMode", ask: asText(nvml.Device.AddressingMode)},
	{name: "MIGMode", ask: func(d nvml.Device) (string, error) {
		current, pending, err := d.MIGMode()
		return fmt.Sprint(current, pending), err
	}},
	{name: "GPUInstanceProfiles", ask: asText(nvml.Device.GPUInstanceProfiles)},
	{name: "GPUInstancePlacements", ask: asText(func(d nvml.Device) ([]nvml.MIGPlacement, error) {
		return d.GPUInstancePlacements(0)
	})},
	{name: "GPUInstances", moves: true, ask: asText(nvml.Device.GPUInstances)},
	{name: "MIGDevices", moves: true, ask: asText(nvml.Device.MIGDevices)},
	{name: "VirtualizationMode", ask: asText(nvml.Device.VirtualizationMode)},
	{name: "ComputeMode", ask: asText(nvml.Device.ComputeMode)},
	{name: "MIGComputeMode", moves: true, ask: asText(func(d nvml.Device) (nvml.ComputeMode, error) {
		return d.MIGComputeMode("MIG-0")
	})},
	{name: "MemoryLimit", ask: asText(func(d nvml.Device) (uint64, error) { return d.MemoryLimit("/sys/fs/cgroup") })},
	{name: "NVLinks", ask: asText(nvml.Device.NVLinks)},
	{name: "Health", moves: true, ask: asText(nvml.Device.Health)},
	{name: "Fabric", ask: asText(nvml.Device.Fabric)},
	{name: "Utilization", moves: true, ask: asText(nvml.Device.Utilization)},
	{name: "Power", moves: true, ask: asText(nvml.Device.Power), check: notNegative},
	{name: "Temperature", moves: true, ask: asText(nvml.Device.Temperature)},
	{
		name:  "Clock",
		moves: true,
		ask:   asText(func(d nvml.Device) (int, error) { return d.Clock(nvml.ClockSM) }),
		check: notNegative,
	},
	{name: "Counters", moves: true, ask: asText(nvml.Device.Counters)},
	{name: "ProcessMemory", moves: true, ask: asText(nvml.Device.ProcessMemory)},
	{name: "ProcessUtilization", moves: true, ask: asText(func(d nvml.Device) ([]nvml.ProcessUtilization, error) {
		return d.ProcessUtilization(0)
	})},
	{name: "MIGMemory", moves: true, ask: asText(func(d nvml.Device) (nvml.MemoryInfo, error) {
		return d.MIGMemory("MIG-0")
	})},
	{name: "Performance", moves: true, ask: func(d nvml.Device) (string, error) {
		s, err := d.Performance(-1)
		if err == nil {
			s.Free()
		}
		return "", err
	}},
	{name: "Processes", moves: true, ask: func(d nvml.Device) (string, error) {
		ps, err := d.Processes()
		for i, p := range ps {
			if i > 0 && !before(ps[i-1], p) {
				return fmt.Sprintf("%v: %+v after %+v", ps, p, ps[i-1]), err
			}
			if p.GPUInstance < -1 || p.ComputeInstance < -1 || p.GPUInstance == -1 && p.ComputeInstance != -1 {
				return fmt.Sprintf("%+v: no such instance", p), err
			}
		}
		return "", err
	}, check: func(s string) error {
		if s != "" {
			return errors.New("want each process once for each instance it holds, in order")
		}
		return nil
	}},
}

func before(a, b nvml.Process) bool {
	key := func(p nvml.Process) []int { return []int{int(p.PID), p.GPUInstance, p.ComputeInstance} }
	return slices.Compare(key(a), key(b)) < 0
}

func notNegative(s string) error {
	if strings.HasPrefix(s, "-") {
		return errors.New("want no negative number")
	}
	return nil
}

func devices(t *testing.T, s nvml.Session, o Options) {
	each(s, func(i int, d nvml.Device) {
		for _, q := range queries {
			answer, err := q.ask(d)
			switch {
			case err != nil:
				typed(t, err)
			case q.check != nil:
				if err := q.check(answer); err != nil {
					t.Errorf("GPU %d: %s = %q: %v", i, q.name, answer, err)
				}
			}
		}
		minor, err := d.MinorNumber()
		if err != nil || o.DevRoot == "" {
			return
		}
		node := filepath.Join(o.DevRoot, "dev", fmt.Sprintf("nvidia%d", minor))
		if info, err := os.Stat(node); err != nil || info.Mode()&fs.ModeCharDevice == 0 {
			t.Errorf("GPU %d has minor number %d, and %s is not a character device: %v", i, minor, node, err)
		}
	})
}

func each(s nvml.Session, f func(int, nvml.Device)) {
	n, _ := s.DeviceCount()
	for i := range n {
		if d, err := s.Device(i); err == nil {
			f(i, d)
		}
	}
}

func distinct(t *testing.T, s nvml.Session) {
	for _, q := range queries {
		if q.name != "UUID" && q.name != "PCI" && q.name != "MinorNumber" {
			continue
		}
		seen := map[string]int{}
		each(s, func(i int, d nvml.Device) {
			answer, err := q.ask(d)
			if err != nil {
				return
			}
			if other, ok := seen[answer]; ok {
				t.Errorf("GPUs %d and %d both have %s %s", other, i, q.name, answer)
			}
			seen[answer] = i
		})
	}
}

// read returns every answer that should not change, by GPU and query. Errors are texts.
func read(s nvml.Session) map[string]string {
	out := map[string]string{}
	each(s, func(i int, d nvml.Device) {
		for _, q := range queries {
			if q.moves {
				continue
			}
			answer, err := q.ask(d)
			if err != nil {
				answer = err.Error()
			}
			out[fmt.Sprintf("GPU %d %s", i, q.name)] = answer
		}
	})
	return out
}

func static(t *testing.T, lib nvml.Library) map[string]string {
	t.Helper()
	s := open(t, lib)
	defer closed(t, s)
	return read(s)
}

func repeatable(t *testing.T, lib nvml.Library) { compare(t, static(t, lib), static(t, lib)) }

func compare(t *testing.T, want, got map[string]string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a second reading differs (-first +second):\n%s", diff)
	}
}
