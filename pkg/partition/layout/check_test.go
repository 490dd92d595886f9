// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package layout_test

import (
	"encoding/json"
	"strings"
	"testing"

	"gpu-dra-driver/internal/testing/layouttest"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/partition/layout"
)

func TestCheck_ProfilesMisreported_ReturnsError(t *testing.T) {
	for want, spoil := range map[string]func(*gpu.MIG){
		"NVML fell over":                         func(m *gpu.MIG) { m.Fault = "NVML fell over" },
		"no MIG profiles":                        func(m *gpu.MIG) { m.Profiles = nil },
		"for a GPU without MIG":                  func(m *gpu.MIG) { m.Capable = false },
		"33 MIG profiles":                        func(m *gpu.MIG) { m.Profiles = make([]gpu.Profile, 33) },
		"two MIG profiles with the name":         func(m *gpu.MIG) { m.Profiles[1].Name = m.Profiles[0].Name },
		"same ID 19":                             func(m *gpu.MIG) { m.Profiles[1].ID = 19 },
		"ID is negative":                         func(m *gpu.MIG) { m.Profiles[1].ID = -1 },
		"not a valid MIG profile name":           func(m *gpu.MIG) { m.Profiles[0].Name = "1c.1g.10gb" },
		"\"1g.10gb+extremelylongadditionnames\"": func(m *gpu.MIG) { m.Profiles[0].Name = "1g.10gb+extremelylongadditionnames" },
		"0 compute slices":                       func(m *gpu.MIG) { m.Profiles[0].Slices = 0 },
		"0 instances":                            func(m *gpu.MIG) { m.Profiles[0].Instances = 0 },
		"-1 decoders":                            func(m *gpu.MIG) { m.Profiles[0].Decoders = -1 },
		"0 bytes of memory":                      func(m *gpu.MIG) { m.Profiles[0].MemoryBytes = 0 },
		"0 placements":                           func(m *gpu.MIG) { m.Profiles[0].Placements = nil },
		"at 0 of 0 memory slices":                func(m *gpu.MIG) { m.Profiles[0].Placements[0].Size = 0 },
		"at -1 of 1 memory slices":               func(m *gpu.MIG) { m.Profiles[0].Placements[0].Start = -1 },
		"at 0 of 64 memory slices":               func(m *gpu.MIG) { m.Profiles[6].Placements[0].Size = 64 },
		"two placements at 0":                    func(m *gpu.MIG) { m.Profiles[0].Placements[1].Start = 0 },
		"of 1 and of 2 memory slices":            func(m *gpu.MIG) { m.Profiles[0].Placements[1].Size = 2 },
	} {
		m := layouttest.H100()
		spoil(&m)
		if err := layout.Check(m); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	for _, m := range []gpu.MIG{{}, layouttest.H100(), layouttest.A100(), layouttest.A30(), layouttest.RTXPRO6000()} {
		if err := layout.Check(m); err != nil {
			t.Error(err)
		}
	}
}

// FuzzOrder checks for any profiles that Order offers every choice once, and nothing panics.
func FuzzOrder(f *testing.F) {
	for _, m := range []gpu.MIG{layouttest.H100(), layouttest.A100(), layouttest.A30(), layouttest.RTXPRO6000()} {
		text, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"capable":true,"profiles":[{"id":1,"name":"1g.1gb","slices":1,"instances":31,"memoryBytes":1,"ofaEngines":3,"placements":[{"start":30,"size":1},{"start":0,"size":1}]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var m gpu.MIG
		if json.Unmarshal(text, &m) != nil || layout.Check(m) != nil {
			return
		}
		n := 0
		for _, p := range m.Profiles {
			n += len(p.Placements)
		}
		order := layout.Order(m.Profiles)
		if len(order) != n {
			t.Errorf("%d of %d placements are offered", len(order), n)
		}
		for _, r := range layout.Binding(m.Profiles) {
			for _, p := range m.Profiles {
				if r.Of(p) > r.Total {
					t.Errorf("%s is more than the GPU's %s", p.Name, r.Name)
				}
			}
		}
		var occupied []gpu.Placement
		for _, c := range order {
			if n := layouttest.Stranded(m.Profiles, occupied); n < 0 || n > layout.Slices(m.Profiles) {
				t.Errorf("%d slices stranded by %v", n, occupied)
			}
			occupied = append(occupied, c.Placement)
		}
		for _, p := range m.Profiles {
			if layout.Memory(m.Profiles) < p.MemoryBytes {
				t.Errorf("less memory than a %s has", p.Name)
			}
		}
	})
}
