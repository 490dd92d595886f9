// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"gpu-dra-driver/internal/host"
)

// inMounts calls a function in a mount namespace of one thread, which ends with the thread: a killed test leaves no mount.
func inMounts(do func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // It is never unlocked, so the thread ends with the goroutine.
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = do()
		}
		done <- err
	}()
	return <-done
}

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
	err := inMounts(func() error {
		err := unix.Mount("none", dir, "cgroup2", 0, "")
		if got := host.Cgroups(sys); err == nil && got != dir {
			err = fmt.Errorf("%q, want %s", got, dir)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
