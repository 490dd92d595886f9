// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/formtest"
	"gpu-dra-driver/internal/mpsd"
)

// TestNote_EarlierForms_AreRead reads the notes that earlier supervisors wrote beside their daemons.
func TestNote_EarlierForms_AreRead(t *testing.T) {
	want := formtest.Fill[note]()
	dir := t.TempDir()
	files := written(t, "1", noteFile, want)
	for _, data := range files {
		if err := os.WriteFile(filepath.Join(dir, noteFile), data, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := readNote(dir)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	}
	formtest.Check[note](t, files...)
}

// TestProtocol_EarlierForms_AreRead reads the messages of earlier releases, because an upgrade replaces the plugin and keeps
// the supervisor.
func TestProtocol_EarlierForms_AreRead(t *testing.T) {
	request, list := formtest.Fill[mpsd.Daemon](), formtest.Fill[mpsd.List]()
	requests, lists := written(t, "1", "request.json", request), written(t, "2", "list.json", list)
	for i := range requests {
		var got mpsd.Daemon
		if err := json.Unmarshal(requests[i], &got); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(request, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	// Form 1 counts no faults.
	for i, faults := range []int{0, 1} {
		var got mpsd.List
		if err := json.Unmarshal(lists[i], &got); err != nil {
			t.Error(err)
		}
		list.Daemons[0].Faults = faults
		if diff := cmp.Diff(list, got); diff != "" {
			t.Errorf("form %d (-want +got):\n%s", i+1, diff)
		}
	}
	formtest.Check[mpsd.Daemon](t, requests...)
	formtest.Check[mpsd.List](t, lists...)
}

// written returns the goldens of a value that is written as JSON.
func written(t *testing.T, newest, name string, value any) [][]byte {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return formtest.Files(t, newest, name, append(data, '\n'))
}
