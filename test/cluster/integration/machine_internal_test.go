// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestLeftOutside_MountsFilesAndProcesses_OnlyTheClustersAreFound makes things of a cluster and of another program.
func TestLeftOutside_MountsFilesAndProcesses_OnlyTheClustersAreFound(t *testing.T) {
	const identity, other = "onenode-0123test", "onenode-4567test"
	c := cluster{t, filepath.Join(t.TempDir(), "cluster")}
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	mount := func(source, kind string, flags uintptr) func() {
		at := t.TempDir()
		if err := syscall.Mount(source, at, kind, flags, ""); err != nil {
			t.Fatal(err)
		}
		undone := false
		undo := func() {
			if !undone {
				undone = true
				if err := syscall.Unmount(at, 0); err != nil {
					t.Error(err)
				}
			}
		}
		t.Cleanup(undo)
		return undo
	}
	file := func(name string) func() {
		path := filepath.Join("/dev/shm", name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(path) })
		return func() { _ = os.Remove(path) }
	}
	mount(other, "tmpfs", 0)
	mount(t.TempDir(), "", syscall.MS_BIND)
	file(other)
	if left := c.leftOutside(identity); left != "" {
		t.Errorf("of another program: %s", left)
	}
	for want, make := range map[string]func() func(){
		"mount left":           func() func() { return mount(identity, "tmpfs", 0) },
		"mount left: ":         func() func() { return mount(c.dir, "", syscall.MS_BIND) },
		"file left: /dev/shm/": func() func() { return file(identity) },
	} {
		undo := make()
		if left := c.leftOutside(identity); !strings.HasPrefix(left, want) {
			t.Errorf("%q, want %q", left, want)
		}
		undo()
	}
	if left := c.leftOutside(identity); left != "" {
		t.Errorf("after they were removed: %s", left)
	}
	p := exec.Command("sleep", "600")
	p.Args = append([]string{c.dir}, p.Args[1:]...)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = p.Process.Kill(), p.Wait() })
	if found := c.processes(identity); len(found) != 1 {
		t.Errorf("its processes are %v", found)
	}
	if found := (cluster{t, c.dir + "-2"}).processes(other); len(found) != 0 {
		t.Errorf("the processes of another cluster are %v", found)
	}
}
