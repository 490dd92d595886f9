// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// directories are those of the driver root that nvcdi searches. Installing or removing a driver changes one of them.
var directories = []string{
	"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib/x86_64-linux-gnu/nvidia/current",
	"usr/lib/aarch64-linux-gnu/nvidia/current", "usr/lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu",
	"usr/bin", "usr/local/bin", "bin", "lib/firmware/nvidia", "usr/lib/firmware/nvidia", "etc/ld.so.cache",
	"etc/vulkan/icd.d", "usr/share/vulkan/icd.d", "usr/share/glvnd/egl_vendor.d",
	"run/nvidia-persistenced", "var/run/nvidia-persistenced", "run/nvidia-fabricmanager", "var/run/nvidia-fabricmanager",
	"tmp/nvidia-mps",
}

// controlNodes are the device nodes that belong to no GPU. A container cannot use CUDA without the needed ones.
var controlNodes = []struct {
	path   string
	needed bool
	remedy string
}{
	{"/dev/nvidiactl", true, "nvidia-modprobe -c 0"},
	{"/dev/nvidia-uvm", true, "modprobe nvidia-uvm && nvidia-modprobe -u -c 0"},
	{"/dev/nvidia-uvm-tools", false, ""},
	{"/dev/nvidia-modeset", false, ""},
}

// commonStamp changes when the files change that Common is read from.
func (r *Root) commonStamp() string {
	var b strings.Builder
	for _, dir := range directories {
		stamp(&b, filepath.Join(r.o.DriverRoot, dir))
	}
	for _, n := range controlNodes {
		nodeStamp(&b, filepath.Join(r.o.DevRoot, n.path))
	}
	return b.String()
}

// gpuStamp changes when the nodes change that a GPU's edits are read from.
func (r *Root) gpuStamp(device Device) string {
	var b strings.Builder
	nodeStamp(&b, filepath.Join(r.o.DevRoot, node(device)))
	stamp(&b, filepath.Join(r.o.DevRoot, "dev/dri"))
	stamp(&b, filepath.Join("/sys/bus/pci/devices", device.PCIAddress, "drm"))
	return b.String()
}

func node(device Device) string { return fmt.Sprintf("/dev/nvidia%d", device.Minor) }

// stamp tells a file or directory from what it was before. Absence is a stamp too.
func stamp(b *strings.Builder, path string) {
	var s unix.Stat_t
	if unix.Stat(path, &s) != nil {
		b.WriteString(" -")
		return
	}
	fmt.Fprintf(b, " %d:%d:%d", s.Ino, s.Mtim.Sec, s.Mtim.Nsec)
}

// nodeStamp tells a device node by what a container is told of it.
func nodeStamp(b *strings.Builder, path string) {
	var s unix.Stat_t
	if unix.Lstat(path, &s) != nil {
		b.WriteString(" -")
		return
	}
	fmt.Fprintf(b, " %o:%d:%d:%d", s.Mode, s.Rdev, s.Uid, s.Gid)
}
