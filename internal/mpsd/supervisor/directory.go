// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// mountShm gives clients and daemon a /dev/shm of their own, as large as configured.
func mountShm(dir string, bytes uint64) error {
	if mounted(dir) {
		return nil
	}
	if err := unix.Mount("shm", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, fmt.Sprintf("size=%d,mode=1777", bytes)); err != nil {
		return fmt.Errorf("mount shared memory at %s: %w", dir, err)
	}
	return nil
}

// mounted says whether a directory is the root of a mount.
func mounted(dir string) bool {
	var here, above unix.Stat_t
	return unix.Lstat(dir, &here) == nil && unix.Lstat(filepath.Dir(dir), &above) == nil && here.Dev != above.Dev
}

// emptied empties a directory. The directory itself stays: containers have it mounted.
func emptied(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("clear the pipe directory: %w", err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("clear the pipe directory: %w", err)
		}
	}
	return nil
}

// removeDir removes a daemon's directory, and nothing that is mounted in it.
func removeDir(dir string) error {
	shm := filepath.Join(dir, shmDir)
	for mounted(shm) { // Containers that still have it keep it.
		if err := unix.Unmount(shm, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount shared memory at %s: %w", shm, err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the directory of an MPS daemon: %w", err)
	}
	return nil
}
