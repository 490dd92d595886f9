// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// TestNotes_EarlierForms_AreRead reads the notes in the lock files of earlier releases.
func TestNotes_EarlierForms_AreRead(t *testing.T) {
	goldens, err := filepath.Glob("testdata/forms/*/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	for _, golden := range goldens {
		archive, err := txtar.ParseFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range archive.Files {
			lines := strings.Fields(string(f.Data))
			if !strings.HasPrefix(f.Name, "plugin/state/locks/gpu-") || len(lines) == 0 {
				continue
			}
			read++
			if uids, ok := notedUIDs(lines, lines[0]); !ok || len(uids) == 0 {
				t.Errorf("%s: %s has the notes %v: %q", golden, f.Name, ok, lines)
			}
		}
	}
	if read < 20 {
		t.Errorf("only %d lock files have notes", read)
	}
}
