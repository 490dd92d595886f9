// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// device is a device node below /dev that belongs to a GPU.
type device struct {
	Path  string `json:"path"`
	Type  string `json:"type"` // "c" or "b"
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
	Mode  string `json:"mode"` // permission bits, octal
	// Openable means that permissions and the device cgroup let this process open the node for reading and, unless it
	// is read-only, writing. A node without a driver (ENXIO, ENODEV), as on simulated hardware, counts as openable,
	// with an OpenError.
	Openable  bool   `json:"openable"`
	OpenError string `json:"openError,omitempty"`
}

// devices lists the nvidia* nodes of root's /dev, including directories (nvidia-caps), sorted by path. It leaves out
// unreadable entries.
func devices(root string) []device {
	found := []device{}
	dev := filepath.Join(root, "dev")
	_ = filepath.WalkDir(dev, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dev {
			return nil
		}
		rel, _ := filepath.Rel(dev, path)
		if !strings.HasPrefix(rel, "nvidia") {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if dv, ok := inspect(path); ok {
			dv.Path = "/dev/" + rel
			found = append(found, dv)
		}
		return nil
	})
	slices.SortFunc(found, func(a, b device) int { return strings.Compare(a.Path, b.Path) })
	return found
}

func inspect(path string) (device, bool) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return device{}, false
	}
	kind := ""
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFCHR:
		kind = "c"
	case unix.S_IFBLK:
		kind = "b"
	default:
		return device{}, false
	}
	d := device{
		Type:  kind,
		Major: unix.Major(st.Rdev),
		Minor: unix.Minor(st.Rdev),
		Mode:  fmt.Sprintf("%04o", st.Mode&0o7777),
	}
	// A capability's node is read-only: a process uses the capability by having it open.
	access := unix.O_RDWR
	if st.Mode&0o222 == 0 {
		access = unix.O_RDONLY
	}
	fd, err := unix.Open(path, access|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err == nil {
		_ = unix.Close(fd)
		d.Openable = true
		return d, true
	}
	d.Openable = errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV)
	d.OpenError = err.Error()
	return d, true
}
