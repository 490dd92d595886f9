// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"gpu-dra-driver/sim/profiles"
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

func TestAddProcess_CgroupWithLimit_HasAtMostItsMemory(t *testing.T) {
	p, err := profiles.Load("hgx-h100")
	if err != nil {
		t.Fatal(err)
	}
	p.Driver.CUDA = MemoryLimits
	s, err := New(p, "seed", 1)
	if err != nil {
		t.Fatal(err)
	}
	g := &s.GPUs[0]
	if code := s.SetMemoryLimit(g, MemoryLimit{Cgroup: "one", Soft: 4 << 30, Hard: 4 << 30}); code != 0 {
		t.Fatal(code)
	}
	for _, step := range []struct {
		p    Process
		fits bool
	}{
		{Process{PID: 1, MemoryMiB: 3 << 10, Cgroup: "one"}, true}, {Process{PID: 2, MemoryMiB: 2 << 10, Cgroup: "one"}, false},
		{Process{PID: 2, MemoryMiB: 1 << 10, Cgroup: "one"}, true}, {Process{PID: 3, MemoryMiB: 8 << 10}, true},
		{Process{PID: 1, MemoryMiB: 2 << 10, Cgroup: "one"}, true}, {Process{PID: 4, MemoryMiB: 8 << 10, Cgroup: "another"}, true},
	} {
		if err := s.AddProcess(g, step.p); (err == nil) != step.fits {
			t.Errorf("process %d with %d MiB: %v", step.p.PID, step.p.MemoryMiB, err)
		}
	}
	if _, used, code := s.MemoryLimit(g, "one"); used != 3<<30 || code != 0 {
		t.Errorf("%d bytes used, %v", used, code)
	}
	if code := s.SetMemoryLimit(g, MemoryLimit{Cgroup: "one", Hard: math.MaxUint64}); code != 0 || len(g.Limits) > 0 {
		t.Errorf("cleared: %v, %v", g.Limits, code)
	}
}
