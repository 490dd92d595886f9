// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"path/filepath"

	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/specs-go"
)

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
