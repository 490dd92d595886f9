// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package profiles

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLoad_EachProfile_Succeeds(t *testing.T) {
	want := []string{"a100-pcie-4", "a30", "dgx-1-v100", "dgx-a100-40", "dgx-a100-80", "gb200-tray", "gh200", "h100-nvl-4", "hgx-b200", "hgx-h100", "hgx-h200", "l40s-4", "rtx-pro-4500", "rtx-pro-5000",
		"rtx-pro-6000", "t4-1"}
	if diff := cmp.Diff(want, Names()); diff != "" {
		t.Fatalf("profiles (-want +got):\n%s", diff)
	}
	for _, name := range Names() {
		p, err := Load(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if p.Name != name {
			t.Errorf("%s: the file names itself %q", name, p.Name)
		}
	}
}

func TestLoad_EachBoard_HasItsFacts(t *testing.T) {
	type facts struct {
		name               string
		gpus, mib, kept    uint64
		device             uint32
		arch, major, minor int
		sm, links          int
		mig                bool
	}
	want := map[string]facts{
		"hgx-h100":     {"NVIDIA H100 80GB HBM3", 8, 81559, 454, 0x233010DE, 9, 9, 0, 132, 18, true},
		"hgx-h200":     {"NVIDIA H200", 8, 143771, 615, 0x233510DE, 9, 9, 0, 132, 18, true},
		"dgx-a100-40":  {"NVIDIA A100-SXM4-40GB", 8, 40960, 518, 0x20B010DE, 7, 8, 0, 108, 12, true},
		"l40s-4":       {"NVIDIA L40S", 4, 46068, 1104, 0x26B910DE, 8, 8, 9, 142, 0, false},
		"dgx-1-v100":   {"Tesla V100-SXM2-32GB", 8, 32768, 269, 0x1DB510DE, 5, 7, 0, 80, 6, false},
		"a100-pcie-4":  {"NVIDIA A100 80GB PCIe", 4, 81920, 518, 0x20B510DE, 7, 8, 0, 108, 12, true},
		"gb200-tray":   {"NVIDIA GB200", 4, 189471, 742, 0x294110DE, 10, 10, 0, 152, 18, true},
		"gh200":        {"NVIDIA GH200 480GB", 1, 97871, 564, 0x234210DE, 9, 9, 0, 132, 0, true},
		"h100-nvl-4":   {"NVIDIA H100 NVL", 4, 95830, 561, 0x232110DE, 9, 9, 0, 132, 12, true},
		"rtx-pro-5000": {"NVIDIA RTX PRO 5000 Blackwell", 4, 48935, 607, 0x2BB310DE, 10, 12, 0, 110, 0, true},
		"rtx-pro-4500": {"NVIDIA RTX PRO 4500 Blackwell", 4, 32623, 607, 0x2C3110DE, 10, 12, 0, 82, 0, true},
		"t4-1":         {"Tesla T4", 1, 15360, 448, 0x1EB810DE, 6, 7, 5, 40, 0, false},
	}
	for name, w := range want {
		p, err := Load(name)
		if err != nil {
			t.Fatal(err)
		}
		b := p.Board
		got := facts{b.ProductName, uint64(len(p.Slots)), b.MemoryMiB, b.ReservedMiB, b.DeviceID(), b.Architecture, b.ComputeMajor, b.ComputeMinor, b.Multiprocessors, b.NVLinks, b.MIGCapable}
		if got != w {
			t.Errorf("%s: got %+v, want %+v", name, got, w)
		}
	}
}

func TestValidate_InvalidField_NamesIt(t *testing.T) {
	tests := map[string]struct {
		change func(*Profile)
		says   string
	}{
		"reserved above total":      {func(p *Profile) { p.Board.ReservedMiB = p.Board.MemoryMiB }, "reservedMiB"},
		"upper-case address":        {func(p *Profile) { p.Slots[0].Address = "0000:1B:00.0" }, "slots[0]"},
		"an address twice":          {func(p *Profile) { p.Slots[1].Address = p.Slots[0].Address }, "slots[1].address"},
		"no root complex":           {func(p *Profile) { p.Slots[0].Path = []string{"0000:15:01.0"} }, "root complex"},
		"no source":                 {func(p *Profile) { p.Sources = nil }, "sources"},
		"PCI ID without prefix":     {func(p *Profile) { p.Board.PCIDeviceID = "233010DE" }, "pciDeviceID"},
		"MIG count without MIG":     {func(p *Profile) { p.Board.MIGCapable = false }, "maxMIGDevices"},
		"a wire to nowhere":         {func(p *Profile) { p.Wires = []Wire{{A: 0, B: 99, Links: 1}} }, "wires[0]"},
		"a wire twice over":         {func(p *Profile) { p.Wires = []Wire{{A: 0, B: 1, Links: 19}} }, "slots[0] has 19"},
		"switches on a mesh":        {func(p *Profile) { p.Wires = []Wire{{A: 0, B: 1, Links: 1}} }, "board.switches"},
		"a fabric without name":     {func(p *Profile) { p.Fabric = &Fabric{ClusterUUID: "x"} }, "clusterUUID"},
		"version with a path in it": {func(p *Profile) { p.Driver.Version = "../580" }, "driver.version"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p, err := Load("hgx-h100")
			if err != nil {
				t.Fatal(err)
			}
			tt.change(&p)
			if err := p.Validate(); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want an error that names %q", err, tt.says)
			}
		})
	}
}

func TestDecode_UnknownField_ReturnsError(t *testing.T) {
	if _, err := Decode([]byte(`{"name":"x","colour":"green"}`)); err == nil || !strings.Contains(err.Error(), "colour") {
		t.Errorf("got %v, want an error that names the field", err)
	}
}

func TestLoad_UnknownName_ListsProfiles(t *testing.T) {
	if _, err := Load("hgx-h1000"); err == nil || !strings.Contains(err.Error(), "hgx-h100,") {
		t.Errorf("got %v, want the list of profiles", err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, name := range Names() {
		b, err := os.ReadFile("data/" + name + ".json")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"slots":[{"path":[]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Decode(b)
		if err != nil {
			return
		}
		out, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Decode(out)
		if err != nil {
			t.Fatalf("a valid profile does not survive a round trip: %v", err)
		}
		if diff := cmp.Diff(p, again); diff != "" {
			t.Errorf("round trip (-first +second):\n%s", diff)
		}
	})
}
