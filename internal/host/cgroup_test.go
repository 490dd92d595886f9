// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"gpu-dra-driver/internal/host"
)

// TestCgroups_VersionTwo_IsFound mounts cgroups in a mount namespace of one thread, which ends with the thread.
func TestCgroups_VersionTwo_IsFound(t *testing.T) {
	sys := t.TempDir()
	dir := filepath.Join(sys, "fs/cgroup")
	if got := host.Cgroups(sys); got != "" {
		t.Errorf("without the directory: %q", got)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := host.Cgroups(sys); got != "" {
		t.Errorf("on another file system: %q", got)
	}
	found := make(chan any)
	go func() {
		runtime.LockOSThread() // It is never unlocked, so the thread ends with the goroutine.
		for _, step := range []func() error{
			func() error { return unix.Unshare(unix.CLONE_NEWNS) },
			func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") },
			func() error { return unix.Mount("none", dir, "cgroup2", 0, "") },
		} {
			if err := step(); err != nil {
				found <- err
				return
			}
		}
		found <- host.Cgroups(sys)
	}()
	if got := <-found; got != dir {
		t.Errorf("%v, want %s", got, dir)
	}
}
