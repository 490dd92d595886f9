// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/formtest"
	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/pkg/gpu"
)

// TestGPU_EarlierForms_AreRead reads the records of earlier releases, with all keys.
func TestGPU_EarlierForms_AreRead(t *testing.T) {
	const address = "0000:1b:00.0"
	want := formtest.Fill[GPU]()
	want.PCIAddress = address
	written, err := Seal(gpuKind, want)
	if err != nil {
		t.Fatal(err)
	}
	g, err := OpenGPUs(host.New(host.Options{}), t.TempDir(), "s")
	if err != nil {
		t.Fatal(err)
	}
	var payloads [][]byte
	for _, data := range formtest.Files(t, "1", "gpu.json", written) {
		if err := os.WriteFile(file(g.dir, address), data, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := g.Get(address)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
		_, payload, _ := bytes.Cut(data, []byte("\n"))
		payloads = append(payloads, payload)
	}
	formtest.Check[GPU](t, payloads...)
}

// TestGPU_EarlierVersion_ReadsInterconnect reads the key that earlier versions of the plugin wrote.
func TestGPU_EarlierVersion_ReadsInterconnect(t *testing.T) {
	const earlier = `{"bootID":"b","pciAddress":"0000:1b:00.0","uuid":"GPU-0","found":0,"set":1,
		"wiring":{"links":[{"index":3,"peer":"switch"}],"fabric":{"state":"ready"}}}`
	want := gpu.Interconnect{Links: []gpu.Link{{Index: 3, Peer: gpu.PeerSwitch}}, Fabric: gpu.Fabric{State: gpu.FabricReady}}
	var got GPU
	if err := json.Unmarshal([]byte(earlier), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.Interconnect); diff != "" {
		t.Errorf("interconnect (-want +got):\n%s", diff)
	}
}

// TestGPUs_AnotherBoardInSlot_RecordIsNotUsed checks that a record of the board before sets nothing on the one there now.
func TestGPUs_AnotherBoardInSlot_RecordIsNotUsed(t *testing.T) {
	const address = "0000:1b:00.0"
	for _, outlivesBoot := range []bool{false, true} {
		dir := t.TempDir()
		boot := filepath.Join(dir, "boot")
		if err := os.WriteFile(boot, []byte("b"), 0o600); err != nil {
			t.Fatal(err)
		}
		g, err := OpenGPUs(host.New(host.Options{BootIDFile: boot}), dir, "s")
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Put(GPU{BootID: "b", PCIAddress: address, UUID: "GPU-0", Found: 2, Set: 3}); err != nil {
			t.Fatal(err)
		}
		fresh := GPU{BootID: "b", PCIAddress: address, UUID: "GPU-1"}
		r, known, err := g.OfBoot(address, "GPU-1")
		if diff := cmp.Diff(fresh, r); diff != "" || known || err != nil {
			t.Errorf("known %v, %v (-want +got):\n%s", known, err, diff)
		}
		set := func(int) error { t.Error("the earlier board's value is set"); return nil }
		if err := g.Restore(address, "GPU-1", outlivesBoot, set); err != nil {
			t.Error(err)
		}
		if left, err := g.Addresses(); len(left) > 0 || err != nil {
			t.Errorf("the record stays: %v, %v", left, err)
		}
	}
}

// TestGPUs_Unreadable_KnownWithDefault checks that a damaged record does not count as none.
func TestGPUs_Unreadable_KnownWithDefault(t *testing.T) {
	const address = "0000:1b:00.0"
	for name, c := range map[string]struct {
		read  error
		known bool
		err   error
	}{
		"bad sector": {syscall.EIO, true, nil}, "damaged": {nil, true, nil},
		"gone": {os.ErrNotExist, false, nil}, "not permitted": {syscall.EACCES, false, syscall.EACCES},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			boot := filepath.Join(dir, "boot")
			if err := os.WriteFile(boot, []byte("b"), 0o600); err != nil {
				t.Fatal(err)
			}
			g, err := OpenGPUs(host.New(host.Options{BootIDFile: boot, ReadFile: func(string) ([]byte, error) { return []byte("x"), c.read }}), dir, "s")
			if err != nil {
				t.Fatal(err)
			}
			r, known, err := g.OfBoot(address, "GPU-0")
			if known != c.known || !errors.Is(err, c.err) || known && (r.Found != 0 || r.Set != SetUnknown) {
				t.Errorf("%+v, known %v, %v", r, known, err)
			}
			set := 0
			err = g.Restore(address, "GPU-0", false, func(found int) error { set = 1 + found; return nil })
			if !errors.Is(err, c.err) || (set == 1) != c.known {
				t.Errorf("restored %v, %v", set, err)
			}
		})
	}
}
