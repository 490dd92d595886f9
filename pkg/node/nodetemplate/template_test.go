// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nodetemplate

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/profiles"
)

var update = flag.Bool("update", false, "write the catalogue anew")

// node returns the slices of a simulated node.
func node(t *testing.T, profile string) (out []resourceapi.ResourceSlice) {
	t.Helper()
	published, err := slicetest.Node(profile, "n1", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range published {
		out = append(out, *s)
	}
	return out
}

// encode writes a Snapshot as an entry of the catalogue: the fields that all GPUs share once.
func encode(t *testing.T, s gpu.Snapshot) []byte {
	t.Helper()
	var gpus []map[string]json.RawMessage
	common := map[string]json.RawMessage{}
	for i, g := range s.GPUs {
		g.UUID, g.Bridges = "", nil // The placeholder and the slices need neither.
		data, err := json.Marshal(g)
		if err != nil {
			t.Fatal(err)
		}
		fields := map[string]json.RawMessage{}
		if err := json.Unmarshal(data, &fields); err != nil {
			t.Fatal(err)
		}
		gpus = append(gpus, fields)
		for name, value := range fields {
			if i == 0 {
				common[name] = value
			}
		}
	}
	for name, value := range common {
		if slices.ContainsFunc(gpus, func(g map[string]json.RawMessage) bool { return !bytes.Equal(g[name], value) }) {
			delete(common, name)
		}
	}
	for _, g := range gpus {
		for name := range common {
			delete(g, name)
		}
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	if err := e.Encode(map[string]any{"driver": s.Driver, "machine": s.Machine, "common": common, "gpus": gpus}); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestBoards_Catalogue_EqualsSimulator keeps the catalogue and the simulator together.
func TestBoards_Catalogue_EqualsSimulator(t *testing.T) {
	for _, name := range profiles.Names() {
		s, err := slicetest.Scan(name, "n1", 0)
		if err != nil {
			t.Fatal(err)
		}
		path, got := filepath.Join("boards", name+".json"), encode(t, s)
		if *update {
			if err := os.WriteFile(path, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(path); err != nil || !bytes.Equal(want, got) {
			t.Errorf("%s differs from the simulator (%v): go test ./pkg/node/nodetemplate -update", path, err)
		}
	}
	if diff := cmp.Diff(profiles.Names(), Boards()); diff != "" {
		t.Errorf("boards (-simulator +catalogue)\n%s", diff)
	}
}

// TestFromBoard_EachBoard_IsWhatTheSimulatorPublishes compares all but the UUIDs, which are placeholders.
func TestFromBoard_EachBoard_IsWhatTheSimulatorPublishes(t *testing.T) {
	for _, name := range Boards() {
		predicted, err := FromBoard(name, slicetest.Driver, "n1")
		if err != nil {
			t.Fatal(err)
		}
		published := node(t, name)
		if len(published) != len(predicted.Slices) {
			t.Fatalf("%s: %d slices, want %d", name, len(predicted.Slices), len(published))
		}
		for i := range published {
			want, got := published[i].Spec, predicted.Slices[i].Spec
			for j := range want.Devices {
				d := &want.Devices[j]
				for _, id := range []resourceapi.QualifiedName{"uuid", "parentUUID"} {
					if _, ok := d.Attributes[id]; ok {
						address := *d.Attributes["resource.kubernetes.io/pciBusID"].StringValue
						d.Attributes[id] = resourceapi.DeviceAttribute{StringValue: new(placeholder(address))}
					}
				}
			}
			if !equality.Semantic.DeepEqual(want, got) {
				t.Errorf("%s, slice %d (-simulator +prediction)\n%s", name, i, cmp.Diff(want, got))
			}
		}
	}
	if _, err := FromBoard("dgx-2", slicetest.Driver, "new"); err == nil || !strings.Contains(err.Error(), "hgx-h100") {
		t.Errorf("an unknown board: %v", err)
	}
}
