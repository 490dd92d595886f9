// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"context"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/sim/nvmlfake"
	"gpu-dra-driver/sim/profiles"
	"gpu-dra-driver/sim/simtest"
)

var update = flag.Bool("update", false, "draw the pictures anew")

const pictures = "../../docs/topology"

// seen returns the inventory of a profile's machine, with its GPUs in the profile's slots.
func seen(t *testing.T, p profiles.Profile) gpu.Snapshot {
	t.Helper()
	none := t.TempDir()
	s, err := inventory.New(inventory.Options{Library: nvmlfake.New(simtest.Machine(t, p.Name)), ProcRoot: none, SysRoot: none, DevRoot: none}).Scan(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for n := range s.GPUs {
		slot := p.Slots[n]
		s.GPUs[n].PCIeRoot, s.GPUs[n].Bridges = slot.Path[0], slot.Path[1:]
		if slot.NUMANode >= 0 {
			s.GPUs[n].NUMANode = &slot.NUMANode
		}
	}
	return s
}

func TestDraw_SimulatedBoards_MatchPictures(t *testing.T) {
	wanted := map[string]bool{}
	for _, name := range profiles.Names() {
		p, err := profiles.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Slots) < 2 {
			continue
		}
		wanted[name+".svg"] = true
		picture := Draw(p.Description, seen(t, p))
		decoder := xml.NewDecoder(strings.NewReader(picture))
		for {
			if _, err = decoder.Token(); err != nil {
				break
			}
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
		path := filepath.Join(pictures, name+".svg")
		if *update {
			if err := errors.Join(os.MkdirAll(pictures, 0o755), os.WriteFile(path, []byte(picture), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		if is, err := os.ReadFile(path); err != nil || string(is) != picture {
			t.Errorf("%s has drifted, run make generate (%v)", path, err)
		}
	}
	there, err := os.ReadDir(pictures)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../docs/topology.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range there {
		if !wanted[f.Name()] {
			t.Errorf("%s is of no board", f.Name())
		}
		if !strings.Contains(string(text), "topology/"+f.Name()) {
			t.Errorf("docs/topology.md does not show %s", f.Name())
		}
	}
}
