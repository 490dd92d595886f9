// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/topology"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/nvmlfake"
	"gpu-dra-driver/sim/profiles"
	"gpu-dra-driver/sim/simtest"
)

// placed returns the inventory's Snapshot of a machine, with GPUs on the profile's NUMA nodes.
func placed(t *testing.T, machine *engine.Engine) gpu.Snapshot {
	t.Helper()
	st, err := machine.State()
	if err != nil {
		t.Fatal(err)
	}
	s := scan(t, bare(t, nvmlfake.New(machine)))
	for n := range s.GPUs {
		for _, slot := range st.Profile.Slots {
			if slot.Address == s.GPUs[n].PCIAddress {
				s.GPUs[n].NUMANode, s.GPUs[n].PCIeRoot, s.GPUs[n].Bridges = &slot.NUMANode, slot.Path[0], slot.Path[1:]
			}
		}
	}
	return s
}

// groups returns the groups of a snapshot, by GPUs' indices: "01 23 0123".
func groups(s gpu.Snapshot) string {
	index := map[string]int{}
	for _, g := range s.GPUs {
		index[g.PCIAddress] = g.Index
	}
	var out []string
	for _, i := range topology.Find(s.GPUs) {
		for _, g := range i.Groups {
			word := ""
			for _, m := range g.Members {
				word += fmt.Sprint(index[m])
			}
			out = append(out, word)
		}
	}
	return strings.Join(out, " ")
}

func TestScan_EachBoard_LinksFormGroups(t *testing.T) {
	for name, want := range map[string]string{
		"hgx-h100": "01 23 45 67 0123 4567 01234567", "hgx-h200": "01 23 45 67 0123 4567 01234567", "hgx-b200": "01 23 45 67 0123 4567 01234567",
		// Its NUMA nodes are 3, 1, 7 and 5, in the order of PCI addresses.
		"dgx-a100-40": "23 01 67 45 2301 6745 23016745", "dgx-a100-80": "23 01 67 45 2301 6745 23016745",
		"dgx-1-v100": "03 12 47 56 0312 4756", "a100-pcie-4": "01 23", "gb200-tray": "01 23 0123",
		"h100-nvl-4": "01 23",
		"a30":        "", "l40s-4": "", "t4-1": "", "rtx-pro-6000": "", "rtx-pro-5000": "", "rtx-pro-4500": "", "gh200": "",
	} {
		if got := groups(placed(t, simtest.Machine(t, name))); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if n := len(profiles.Names()); n != 16 {
		t.Errorf("%d profiles, and the groups of 16 are checked", n)
	}
}

func TestScan_LinkFails_RemovesGroups(t *testing.T) {
	for name, c := range map[string]struct {
		profile string
		fail    func(*engine.State)
		want    string
	}{
		"a link to a switch":     {"hgx-h100", func(s *engine.State) { s.GPUs[2].LinksDown = []int{17} }, "01 45 67 4567"},
		"registration":           {"hgx-h100", func(s *engine.State) { s.GPUs[7].Fabric = engine.FabricPending }, "01 23 45 0123"},
		"registration, refused":  {"hgx-b200", func(s *engine.State) { s.GPUs[0].Fabric = engine.FabricFailed }, "23 45 67 4567"},
		"a bridge":               {"a100-pcie-4", func(s *engine.State) { s.GPUs[0].LinksDown = []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11} }, "23"},
		"one link of a bridge":   {"a100-pcie-4", func(s *engine.State) { s.GPUs[1].LinksDown = []int{11} }, "01 23"},
		"a GPU of a mesh":        {"dgx-1-v100", func(s *engine.State) { s.Remove(&s.GPUs[0]) }, "01 36 45 3645"}, // numbered anew
		"an edge of a mesh":      {"dgx-1-v100", func(s *engine.State) { s.GPUs[0].LinksDown = []int{2, 3} }, "01 23 47 56 4756"},
		"the query, everywhere":  {"hgx-h100", func(s *engine.State) { s.AbsentSymbols = []string{"nvmlDeviceGetNvLinkState"} }, ""},
		"the question for peers": {"hgx-h100", func(s *engine.State) { s.AbsentSymbols = []string{"nvmlDeviceGetP2PStatus"} }, "01 23 45 67 0123 4567 01234567"},
		"the answer for peers": {"a100-pcie-4", func(s *engine.State) {
			s.Faults = []engine.Fault{{Query: "nvmlDeviceGetP2PStatus", GPU: s.GPUs[3].UUID, Code: nvml.Unknown}}
		}, "01"},
	} {
		machine := simtest.Machine(t, c.profile)
		if err := machine.Update(func(s *engine.State) error { c.fail(s); return nil }); err != nil {
			t.Fatal(err)
		}
		s := placed(t, machine)
		if got := groups(s); got != c.want {
			t.Errorf("%s: %q, want %q (%+v)", name, got, c.want, s.Problems)
		}
	}
}

func TestScan_MultiNodeFabric_ReadsClusterUUID(t *testing.T) {
	s := placed(t, simtest.Machine(t, "gb200-tray"))
	want := gpu.Fabric{State: gpu.FabricReady, ClusterUUID: "7b968a6d-c8aa-45e1-9e07-e1e51be99c31", CliqueID: 32766}
	if diff := cmp.Diff(want, s.GPUs[3].Fabric); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
