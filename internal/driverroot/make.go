// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/internal/nvml"
)

// Library is NVML of a process whose /dev can lack the driver's device nodes. A container has the nodes of its start,
// and a driver makes them at its first use.
type Library struct {
	nvml.Library
	Root *Root
	// OwnDev is the directory in which NVML finds the nodes. Empty: no nodes are made.
	OwnDev string
}

// minorsLimit limits the wait for the driver's files of all GPUs. That of a GPU that hangs can hang.
const minorsLimit = time.Second

// minorFile is a GPU's minor number; ok means that the driver's file has it.
type minorFile struct {
	address string
	minor   int
	ok      bool
}

// Open makes missing nodes and opens the library.
func (l Library) Open() (nvml.Session, error) {
	made := l.Root.makeNodes(l.OwnDev)
	s, err := l.Library.Open()
	if err != nil && made != nil {
		err = fmt.Errorf("%w (%w)", err, made)
	}
	return s, err
}

// makeNodes makes the missing nodes that NVML needs, by the kernel's numbers. It changes none.
func (r *Root) makeNodes(dev string) error {
	if dev == "" {
		return nil
	}
	gpus, err := os.ReadDir(r.proc("gpus"))
	if err != nil {
		return nil // There is no driver.
	}
	wanted := controlNodes[:1]
	if nodes, err := filepath.Glob(filepath.Join(dev, "nvidia[0-9]*")); err != nil || len(nodes) < len(gpus) {
		// Other GPUs get their nodes while one hangs.
		files := map[string]minorFile{}
		for _, g := range gpus {
			files[g.Name()] = minorFile{address: g.Name()}
		}
		ctx, cancel := context.WithTimeout(context.Background(), minorsLimit)
		defer cancel()
		ended, _ := r.minors.Each(ctx, files, func(f *minorFile) error {
			data, err := os.ReadFile(r.proc("gpus", f.address, "information"))
			f.minor, f.ok = parseMinor(minorForm, data)
			return err
		})
		for _, f := range ended {
			if f.Item.ok && f.Err == nil {
				wanted = append(wanted[:len(wanted):len(wanted)], gpuNode(Device{Minor: f.Item.minor}))
			}
		}
	} else if _, err := os.Lstat(filepath.Join(dev, "nvidiactl")); err == nil {
		return nil
	}
	described, err := r.describe(wanted...)
	if err != nil {
		return err
	}
	var failed []error
	for _, n := range described {
		path := filepath.Join(dev, strings.TrimPrefix(n.Path, "/dev/"))
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		mode := uint32(ptr.Deref(n.FileMode, 0o666).Perm())
		err := unix.Mknod(path, unix.S_IFCHR|mode, int(unix.Mkdev(uint32(n.Major), uint32(n.Minor))))
		if err == nil {
			// The umask has no say.
			err = errors.Join(os.Chmod(path, os.FileMode(mode)), os.Chown(path, 0, int(ptr.Deref(n.GID, 0))))
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			failed = append(failed,
				fmt.Errorf("make the device node %s: %w; run on the node, as root: nvidia-modprobe -c0 -u, then "+
					"restart the plugin's pod", path, err))
		}
	}
	return errors.Join(failed...)
}
