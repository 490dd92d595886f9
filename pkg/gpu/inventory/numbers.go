// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gpu-dra-driver/internal/host"
)

// modules are the kernel modules that give numbers to device nodes.
var modules = []string{"nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm"}

// Bindings returns a text that differs after the kernel has loaded a driver's module again, or bound a GPU to the
// driver again, which gives the GPU a minor number. sysfs gives each a new inode number, and a file system that uses
// numbers again has a time of birth. Other times change in sysfs after the kernel dropped its caches. It makes a dozen
// system calls, and none reaches the driver, which can hang.
func Bindings(sysRoot string) string {
	var b strings.Builder
	add := func(path string) {
		var s unix.Statx_t
		if unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_BTIME, &s) == nil {
			fmt.Fprintf(&b, "%s %d %d.%d\n", filepath.Base(path), s.Ino, s.Btime.Sec, s.Btime.Nsec)
		}
	}
	for _, m := range modules {
		add(filepath.Join(sysRoot, "module", m))
	}
	dir := filepath.Join(sysRoot, "bus/pci/drivers/nvidia")
	entries, _ := os.ReadDir(dir) // Without a driver there is no directory.
	for _, e := range entries {
		if strings.Contains(e.Name(), ":") { // GPUs, and not the files of the driver.
			add(filepath.Join(dir, e.Name()))
		}
	}
	return b.String()
}

// minorLimit limits the wait for the driver's files of all GPUs.
const minorLimit = 100 * time.Millisecond

// minorForm matches a line of /proc/driver/nvidia/gpus/<address>/information.
var minorForm = regexp.MustCompile(`(?m)^Device Minor:.*$`)

// minorNumbers reads the minor numbers of GPUs from the driver's files. A GPU that hangs keeps its last number.
type minorNumbers struct {
	reading host.Attempts[minorNumber]
	last    map[string]string
	// bindings are those with which all of last were read, "" if they are not known.
	bindings string
}

type minorNumber struct{ address, line string }

// read returns the line of each GPU in order. It reads the files again after the bindings changed, which give the
// numbers.
func (m *minorNumbers) read(dir string, addresses []string, bindings string) string {
	gpus := map[string]minorNumber{}
	for _, address := range addresses {
		if _, known := m.last[address]; !known || bindings == "" || bindings != m.bindings {
			gpus[address] = minorNumber{address: address}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), minorLimit)
	defer cancel()
	ended, _ := m.reading.Each(ctx, gpus, func(n *minorNumber) error {
		data, err := os.ReadFile(filepath.Join(dir, n.address, "information"))
		n.line = string(minorForm.Find(data))
		return err
	})
	for _, a := range ended {
		if a.Err == nil {
			m.last[a.Item.address] = a.Item.line
			delete(gpus, a.Item.address)
		}
	}
	if m.bindings = bindings; len(gpus) > 0 {
		m.bindings = "" // The others are read again.
	}
	var b strings.Builder
	for _, address := range addresses {
		b.WriteString("\n" + address + " " + m.last[address])
	}
	return b.String()
}
