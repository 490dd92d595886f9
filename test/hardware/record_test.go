// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/nvmlfake"
	"gpu-dra-driver/sim/profiles"
	"gpu-dra-driver/sim/simtest"
)

func TestRecord_Simulator_IsItsProfile(t *testing.T) {
	for _, name := range profiles.Names() {
		t.Run(name, func(t *testing.T) {
			root := simtest.Root(t, name, nil)
			lib := nvmlfake.NewRoot(root.Path)
			s, err := inventory.New(inventory.Options{Library: lib, ProcRoot: root.ProcRoot, SysRoot: root.SysRoot, DevRoot: root.Path}).Scan(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			session, err := lib.Open()
			if err != nil {
				t.Fatal(err)
			}
			defer session.Close()
			got, err := Record(session, s, root.SysRoot)
			if err != nil {
				t.Fatal(err)
			}
			want, err := profiles.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			// A person completes the facts that package `nvml` lacks.
			b := want.Board
			want.Board = profiles.Board{
				ProductName: b.ProductName, Brand: b.Brand, Architecture: b.Architecture, ComputeMajor: b.ComputeMajor,
				ComputeMinor: b.ComputeMinor, PCIDeviceID: b.PCIDeviceID, PCISubsystemID: b.PCISubsystemID, MemoryMiB: b.MemoryMiB,
				ReservedMiB: b.ReservedMiB, Cores: b.Cores, Multiprocessors: b.Multiprocessors, AddressingMode: b.AddressingMode,
				AddressingModeReported: b.AddressingModeReported, MIGCapable: b.MIGCapable, MaxMIGDevices: b.MaxMIGDevices, MIG: b.MIG,
				NVLinks: b.NVLinks, NVLinkVersion: b.NVLinkVersion, Fabric: b.Fabric,
			}
			want.Name, want.Description, want.Sources = got.Name, got.Description, got.Sources
			for i := range want.Slots {
				want.Slots[i].ModuleID = got.Slots[i].ModuleID
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("recorded (-profile +recorded):\n%s", diff)
			}
			text, err := json.Marshal(got)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := profiles.Decode(text); err != nil {
				t.Errorf("the simulator does not take the recording: %v", err)
			}
		})
	}
}

func TestDescribeMIG_Simulator_NamesProfiles(t *testing.T) {
	root := simtest.Root(t, "hgx-h100", nil)
	session, err := nvmlfake.NewRoot(root.Path).Open()
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	simtest.Change(t, root, func(s *engine.State) {
		g := &s.GPUs[0]
		s.SetMIGMode(g, true)
		i, _ := s.CreateInstance(g, 9, 4)
		s.CreateCompute(g, i.ID, 2)
	})
	for index, want := range map[int][]string{
		0: {"MIG mode on", "profile 9 3g.40gb: 2 at once, at {0,4}:4, 3 slices", "GPU instance 1: 3g.40gb at 4:4", "compute instance 1/0"},
		1: {"MIG mode off", "profile 19 1g.10gb: 7 at once, at {0,1,2,3,4,5,6}:1, 1 slices"},
	} {
		d, err := session.Device(index)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := describeMIG(d)
		if err != nil {
			t.Fatal(err)
		}
		said := strings.Join(lines, "\n")
		for _, w := range want {
			if !strings.Contains(said, w) {
				t.Errorf("GPU %d: %q is missing in\n%s", index, w, said)
			}
		}
	}
}
