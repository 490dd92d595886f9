// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"gpu-dra-driver/test/cluster/internal/spec"
)

// MountIDs returns the IDs of the present mounts, for Reboot.
func MountIDs() ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var ids []string
	for line := range strings.Lines(string(b)) {
		id, _, _ := strings.Cut(line, " ")
		ids = append(ids, id)
	}
	return ids, nil
}

// Reboot changes the node's file system as a reboot does: it undoes every mount outside of base, empties /run and
// /dev/shm, and changes the boot ID.
func Reboot(s spec.Spec, base []string) error {
	ids, err := MountIDs()
	if err != nil {
		return err
	}
	points, err := mountpoints()
	if err != nil {
		return err
	}
	if len(ids) != len(points) {
		return errors.New("the node's mounts changed while they were read")
	}
	var stay []string
	for i := len(ids) - 1; i >= 0; i-- {
		if slices.Contains(base, ids[i]) {
			stay = append(stay, points[i])
			continue
		}
		// A mount inside an unmounted one is gone already.
		if err := unix.Unmount(points[i], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && err != unix.EINVAL && err != unix.ENOENT {
			return fmt.Errorf("unmount %s: %w", points[i], err)
		}
	}
	for _, dir := range []string{"/run", "/dev/shm"} {
		if err := empty(dir, stay); err != nil {
			return fmt.Errorf("empty %s: %w", dir, err)
		}
	}
	return NewBootID(s)
}

// empty removes the content of dir, except mount points and their parents.
func empty(dir string, mountpoints []string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case slices.Contains(mountpoints, path):
		case slices.ContainsFunc(mountpoints, func(m string) bool { return strings.HasPrefix(m, path+"/") }):
			err = empty(path, mountpoints)
		default:
			err = os.RemoveAll(path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
