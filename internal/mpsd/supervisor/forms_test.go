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
	files := written(t, noteFile, want)
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
	requests, lists := written(t, "request.json", request), written(t, "list.json", list)
	for i := range requests {
		var gotRequest mpsd.Daemon
		var gotList mpsd.List
		if err := json.Unmarshal(requests[i], &gotRequest); err != nil {
			t.Error(err)
		}
		if err := json.Unmarshal(lists[i], &gotList); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(request, gotRequest) + cmp.Diff(list, gotList); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	formtest.Check[mpsd.Daemon](t, requests...)
	formtest.Check[mpsd.List](t, lists...)
}

// written returns the goldens of a value that is written as JSON.
func written(t *testing.T, name string, value any) [][]byte {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return formtest.Files(t, "1", name, append(data, '\n'))
}
