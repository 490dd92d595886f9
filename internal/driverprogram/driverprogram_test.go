// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverprogram

import (
	"os"
	"path/filepath"
	"testing"
)

// TestFind_Links_StayInDriverRoot has the links of Debian's packages, which are absolute, and one that leads out.
func TestFind_Links_StayInDriverRoot(t *testing.T) {
	root, outside := t.TempDir(), filepath.Join(t.TempDir(), "nvidia-smi")
	for _, program := range []string{filepath.Join(root, "usr/lib/nvidia/current/nvidia-smi"), outside} {
		if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(program, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		"usr/bin/nvidia-smi":                  "/etc/alternatives/nvidia--nvidia-smi",
		"etc/alternatives/nvidia--nvidia-smi": "/usr/lib/nvidia/current/nvidia-smi",
		"usr/bin/outside":                     outside,
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, link)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	if path, err := Find(root, "nvidia-smi", ""); path != "/usr/bin/nvidia-smi" || err != nil {
		t.Errorf("Find = %q, %v", path, err)
	}
	if path, err := Find(root, "outside", ""); err == nil {
		t.Errorf("Find = %q for a link to a file outside of the root", path)
	}
}
