// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/inventory"
	"gpu-dra-driver/pkg/resourceslices"
	"gpu-dra-driver/sim/nvmlfake"
	"gpu-dra-driver/sim/profiles"
	"gpu-dra-driver/sim/simtest"
)

var update = flag.Bool("update", false, "write the goldens anew")

// snapshot is what the inventory sees of the first GPUs of a profile, with their places as the profile has them.
func snapshot(t *testing.T, profile string, gpus int) gpu.Snapshot {
	t.Helper()
	p, err := profiles.Load(profile)
	if err != nil {
		t.Fatal(err)
	}
	none := t.TempDir()
	i := inventory.New(inventory.Options{Library: nvmlfake.New(simtest.Machine(t, profile)), ProcRoot: none, SysRoot: none, DevRoot: none})
	s, err := i.Look(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	s.GPUs = s.GPUs[:gpus]
	for n := range s.GPUs {
		for _, slot := range p.Slots {
			if slot.Address == s.GPUs[n].PCIAddress {
				s.GPUs[n].PCIeRoot = slot.Path[0]
				if slot.NUMANode >= 0 {
					s.GPUs[n].NUMANode = &slot.NUMANode
				}
			}
		}
	}
	return s
}

// TestGoldens shows, for the first GPUs of each simulated machine, the Snapshot and the devices made of it.
func TestGoldens(t *testing.T) {
	for _, name := range profiles.Names() {
		t.Run(name, func(t *testing.T) {
			p, err := profiles.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			gpus := min(2, len(p.Slots))
			in := snapshot(t, name, gpus)
			pool, warnings := resourceslices.Build(in, nil, resourceslices.Options{Node: "node-1", Taints: true, SharedDevices: true, Counters: true, Offer: offer})
			archive := &txtar.Archive{Comment: fmt.Appendf(nil, "The first %d GPUs of the simulator's profile %s: what the inventory sees, what is published of it.\n", gpus, name)}
			archive.Files = append(archive.Files, txtar.File{Name: "snapshot.yaml", Data: encode(t, in)})
			for n, slice := range pool.Slices {
				archive.Files = append(archive.Files, txtar.File{Name: fmt.Sprintf("%s/slice-%d.yaml", pool.Name, n), Data: encode(t, slice)})
			}
			if len(warnings) > 0 {
				archive.Files = append(archive.Files, txtar.File{Name: "warnings.yaml", Data: encode(t, warnings)})
			}
			got := txtar.Format(archive)
			path := filepath.Join("testdata", name+".txtar")
			if *update {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(want, got) {
				t.Errorf("published devices changed; read the difference, then go test ./pkg/resourceslices -update (-want +got):\n%s", cmp.Diff(string(want), string(got)))
			}
		})
	}
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	out, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
