// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestCgroupOf_Process_IsItsDirectory(t *testing.T) {
	proc, cgroups := t.TempDir(), t.TempDir()
	pod := filepath.Join(cgroups, "pods/one")
	if err := os.MkdirAll(pod, 0o755); err != nil {
		t.Fatal(err)
	}
	want, err := CgroupAt(pod)
	if err != nil {
		t.Fatal(err)
	}
	for pid, c := range map[string]struct{ text, want string }{
		"1": {"0::/\n", ""}, "2": {"0::/pods/one\n", want}, "3": {"0::/pods/two\n", ""}, "4": {"4:memory:/pods/one\n", ""},
	} {
		if err := errors.Join(os.Mkdir(filepath.Join(proc, pid), 0o755), os.WriteFile(filepath.Join(proc, pid, "cgroup"), []byte(c.text), 0o600)); err != nil {
			t.Fatal(err)
		}
		if got := CgroupOf(proc, cgroups, uint32(pid[0]-'0')); got != c.want {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
	if got := CgroupOf(proc, cgroups, 5); got != "" {
		t.Errorf("a process that has ended: %q", got)
	}
}
