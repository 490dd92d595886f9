// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package computepolicy

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// script replaces nvidia-smi with a shell script.
func script(t *testing.T, text string) SMI {
	t.Helper()
	root := t.TempDir()
	path := filepath.Join(root, "usr/bin/nvidia-smi")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return SMI{Root: root}
}

const table = `+-------------------------------------+
| GPU compute policies:               |
| GPU     Name             Value      |
|=====================================|
|   0     Timeslice        Medium     |
+-------------------------------------+
`

func TestParse_TableOrNoise_ReturnsSliceOrError(t *testing.T) {
	if n, err := parse(table); n != 2 || err != nil {
		t.Errorf("parse = %d, %v", n, err)
	}
	for _, out := range []string{"", "Timeslice", "| Timeslice | Odd |", strings.Repeat("x", 5000)} {
		if n, err := parse(out); err == nil || len(err.Error()) > 400 {
			t.Errorf("parse(%.20q) = %d, %v", out, n, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(table)
	f.Fuzz(func(t *testing.T, out string) {
		if n, err := parse(out); err == nil && (n < 0 || n > 3) {
			t.Errorf("parse = %d", n)
		}
	})
}

func TestSMI_CannotRun_ReturnsError(t *testing.T) {
	if err := (SMI{Root: t.TempDir()}).Set(t.Context(), "GPU-0", 1); err == nil || !strings.Contains(err.Error(), "nvidia-utils") {
		t.Error(err)
	}
	if err := script(t, "").Set(t.Context(), "GPU-0", 4); err == nil || !strings.Contains(err.Error(), "0 to 3") {
		t.Error(err)
	}
	// The root has no interpreter, so the program cannot start.
	if _, err := script(t, "#!/none\n").Get(t.Context(), "GPU-0"); err == nil {
		t.Error("a program that cannot start has an answer")
	}
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	if _, err := script(t, "#!/none\n").Get(ctx, "GPU-0"); err == nil {
		t.Error("a call whose time is over has an answer")
	}
}

// TestSMI_RootWithoutLoader_RunsBesideIt has a driver root with programs and libraries alone, so the program needs this
// process's own root.
func TestSMI_RootWithoutLoader_RunsBesideIt(t *testing.T) {
	smi := script(t, "#!/bin/sh\necho \"| 0 Timeslice Long |\"\ntest \"$LD_LIBRARY_PATH\" = \"${0%/usr/bin/*}/lib64\"\n")
	library := filepath.Join(smi.Root, "lib64/libnvidia-ml.so.1")
	if err := os.Mkdir(filepath.Dir(library), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(library, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if n, err := smi.Get(t.Context(), "GPU-0"); n != 3 || err != nil {
		t.Errorf("Get = %d, %v", n, err)
	}
}
