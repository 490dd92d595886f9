// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package native

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"gpu-dra-driver/internal/nvml"
)

func TestFind_Links_StayInRoot(t *testing.T) {
	for name, tc := range map[string]struct {
		links map[string]string // link, target
		want  string            // "" for none
	}{
		"plain file": {nil, "lib/libnvidia-ml.so.1"},
		"relative link": {map[string]string{
			"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": "../../../opt/libnvidia-ml.so.580",
		}, "opt/libnvidia-ml.so.580"},
		"absolute link starts at the root": {map[string]string{
			"usr/lib64/libnvidia-ml.so.1": "/opt/libnvidia-ml.so.580",
		}, "opt/libnvidia-ml.so.580"},
		"linked directory": {map[string]string{
			"lib64": "/opt", "opt/libnvidia-ml.so.1": "libnvidia-ml.so.580",
		}, "opt/libnvidia-ml.so.580"},
		"a link does not lead out": {map[string]string{"lib64/libnvidia-ml.so.1": "/etc/passwd"}, ""},
		"broken link":              {map[string]string{"lib64/libnvidia-ml.so.1": "gone"}, ""},
		"loop":                     {map[string]string{"lib64/libnvidia-ml.so.1": "libnvidia-ml.so.1"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			write(t, filepath.Join(root, "opt/libnvidia-ml.so.580"))
			if name == "plain file" {
				write(t, filepath.Join(root, "lib/libnvidia-ml.so.1"))
			}
			for link, target := range tc.links {
				if err := os.MkdirAll(filepath.Dir(filepath.Join(root, link)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
					t.Fatal(err)
				}
			}
			got, _, err := New(root).find(soname)
			if tc.want == "" {
				if !errors.Is(err, nvml.LibraryNotFound) {
					t.Fatalf("Find = %q, %v; want LibraryNotFound", got, err)
				}
				return
			}
			if want := filepath.Join(root, tc.want); got != want || err != nil {
				t.Errorf("Find = %q, %v; want %q", got, err, want)
			}
		})
	}
}

func write(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
}
