// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/specs-go"
)

// checkNode says which device node is missing and what makes it.
func (r *Root) checkNode(path, remedy string) error {
	seen := filepath.Join(r.o.DevRoot, path)
	var s unix.Stat_t
	if err := unix.Lstat(seen, &s); err != nil {
		return fmt.Errorf("%w: device node %s: %w; make it on the node with: %s", ErrIncomplete, seen, err, remedy)
	}
	if s.Mode&unix.S_IFMT != unix.S_IFCHR {
		return fmt.Errorf("%w: %s is not a character device; remove it and make it anew with: %s", ErrIncomplete, seen, remedy)
	}
	return nil
}

// addSwitches adds to a group's edits the NVSwitches that connect its GPUs, where the node has device nodes for them.
func (r *Root) addSwitches(edits *specs.ContainerEdits) error {
	paths, err := filepath.Glob(filepath.Join(r.o.DevRoot, "dev", "nvidia-nvswitch*"))
	if err != nil || len(paths) == 0 {
		return err
	}
	var switches specs.ContainerEdits
	for _, path := range paths {
		var s unix.Stat_t
		if unix.Lstat(path, &s) != nil || s.Mode&unix.S_IFMT != unix.S_IFCHR {
			continue // Gone since, or no device: a group works without it.
		}
		switches.DeviceNodes = append(switches.DeviceNodes, &specs.DeviceNode{
			Path: filepath.Join("/dev", filepath.Base(path)), HostPath: path, Major: int64(unix.Major(s.Rdev)), Minor: int64(unix.Minor(s.Rdev)),
		})
	}
	if err := r.finish(&switches); err != nil {
		return err
	}
	edits.DeviceNodes = append(edits.DeviceNodes, switches.DeviceNodes...)
	return nil
}
