// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"gpu-dra-driver/internal/formtest"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/node/usage"
)

func filled() usage.Account {
	a := formtest.Fill[usage.Account]()
	for address, g := range a.GPUs {
		g.Seconds = map[usage.State]float64{usage.Allocated: 1}
		a.GPUs[address] = g
	}
	return a
}

func load(t *testing.T, file []byte) usage.Account {
	t.Helper()
	n := newNode(t)
	if err := os.WriteFile(n.path(), file, 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := n.meter().load()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestLoad_EarlierForms_AreRead reads the sums that earlier releases wrote.
func TestLoad_EarlierForms_AreRead(t *testing.T) {
	want := filled()
	written, err := record.Seal(kind, want)
	if err != nil {
		t.Fatal(err)
	}
	var payloads [][]byte
	for _, data := range formtest.Files(t, "1", "usage.json", written) {
		if diff := cmp.Diff(want, load(t, data), cmpopts.IgnoreUnexported(usage.Account{})); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		_, payload, _ := bytes.Cut(data, []byte("\n"))
		payloads = append(payloads, payload)
	}
	formtest.Check[usage.Account](t, payloads...)
}

// TestLoad_PartMissing_KeepsOtherSums reads files without one of the maps, as a release that lacks it writes them.
func TestLoad_PartMissing_KeepsOtherSums(t *testing.T) {
	for _, part := range []string{"gpus", "claims", "namespaces"} {
		t.Run(part, func(t *testing.T) {
			text, err := json.Marshal(filled())
			if err != nil {
				t.Fatal(err)
			}
			parts := map[string]json.RawMessage{}
			if err := json.Unmarshal(text, &parts); err != nil {
				t.Fatal(err)
			}
			delete(parts, part)
			data, err := record.Seal(kind, parts)
			if err != nil {
				t.Fatal(err)
			}
			n := newNode(t)
			if err := os.WriteFile(n.path(), data, 0o600); err != nil {
				t.Fatal(err)
			}
			n.held = true
			m := n.meter()
			a, err := m.load()
			if err != nil {
				t.Fatal(err)
			}
			if len(a.GPUs)+len(a.Claims)+len(a.Namespaces) != 2 {
				t.Errorf("kept are %+v", a)
			}
			if got := n.count(m, true); got.Namespaces["n"].Seconds == nil || got.Claims["u"].GPUs == nil || len(got.GPUs) == 0 {
				t.Errorf("not counted: %+v", got)
			}
		})
	}
}
