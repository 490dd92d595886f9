// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverprogram

import (
	"os"
	"path/filepath"
	"strings"
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
	if err := os.Mkdir(filepath.Join(root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	if p, err := Find(root, "nvidia-smi", ""); p != (Program{Path: "/usr/bin/nvidia-smi", Root: root}) || err != nil {
		t.Errorf("Find = %+v, %v", p, err)
	}
	if p, err := Find(root, "outside", ""); err == nil {
		t.Errorf("Find = %+v for a link to a file outside of the root", p)
	}
}

// put writes a file below a directory.
func put(t *testing.T, dir, path, text string) string {
	t.Helper()
	file := filepath.Join(dir, path)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestFind_FormsOfRoot_RunsWhereItsLoaderIs(t *testing.T) {
	shell, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	const script, foreign = "#! /bin/sh -e\n", "#!/none/sh\n"
	for name, test := range map[string]struct {
		program string
		files   []string
		inside  bool
		refused string
	}{
		"static in a root file system":        {program: "static", files: []string{"dev/null"}, inside: true},
		"script in a root file system":        {program: script, files: []string{"dev/null", "bin/sh"}, inside: true},
		"script without its shell":            {program: script, files: []string{"dev/null"}},
		"dynamic in programs and libraries":   {program: string(shell)},
		"static in programs and libraries":    {program: "static"},
		"a loader that is nowhere":            {program: foreign, files: []string{"dev/null"}, refused: "needs /none/sh, which is neither"},
		"a loader that only the root has":     {program: foreign, files: []string{"dev/null", "none/sh"}, inside: true},
		"a root file system without its /dev": {program: foreign, files: []string{"none/sh"}, refused: "a whole root file system"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for _, f := range append(test.files, "lib64/libnvidia-ml.so.1", "lib64/libcuda.so.1", "usr/lib/libcuda.so.1", "lib/other.so") {
				put(t, root, f, "")
			}
			file := put(t, root, "sbin/tool", test.program)
			p, err := Find(root, "tool", "")
			if test.refused != "" {
				if err == nil || !strings.Contains(err.Error(), test.refused) {
					t.Errorf("Find = %+v, %v", p, err)
				}
				return
			}
			want := Program{Path: file, LibraryPath: filepath.Join(root, "usr/lib") + ":" + filepath.Join(root, "lib64")}
			if test.inside {
				want = Program{Path: "/sbin/tool", Root: root}
			}
			if p != want || err != nil {
				t.Errorf("Find = %+v, %v; want %+v", p, err, want)
			}
		})
	}
}

func TestDevRoot_NodesInRootOrNot_ReturnsTheirParent(t *testing.T) {
	with, without := t.TempDir(), t.TempDir()
	put(t, with, "dev/nvidiactl", "")
	for root, want := range map[string]string{with: with, without: "/", "/": "/"} {
		if got := DevRoot(root); got != want {
			t.Errorf("DevRoot(%s) = %s, want %s", root, got, want)
		}
	}
	if err := os.Mkdir(filepath.Join(without, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	// Nodes can appear in the root's /dev, unless the node's has them.
	if got := DevRoot(without); got != without && !hasNodes("/") {
		t.Errorf("DevRoot = %s", got)
	}
}
