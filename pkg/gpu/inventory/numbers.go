// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// modules are the kernel modules that give numbers to device nodes.
var modules = []string{"nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm"}

// Bindings returns a text that differs after the kernel has loaded a driver's module again, or bound a GPU to the
// driver again, which gives the GPU a minor number. sysfs has a new inode for each. It makes a dozen system calls, and none
// reaches the driver, which can hang.
func Bindings(sysRoot string) string {
	var b strings.Builder
	add := func(path string) {
		var s unix.Stat_t
		if unix.Lstat(path, &s) == nil {
			fmt.Fprintf(&b, "%s %d %d.%d\n", filepath.Base(path), s.Ino, s.Ctim.Sec, s.Ctim.Nsec)
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
	mu      sync.Mutex
	reading map[string]bool
	last    map[string]string
}

// read returns the line of each GPU in order.
func (m *minorNumbers) read(dir string, addresses []string) string {
	read := make(chan struct{}, len(addresses))
	pending := 0
	m.mu.Lock()
	for _, address := range addresses {
		if m.reading[address] {
			continue
		}
		m.reading[address] = true
		pending++
		go func() {
			data, err := os.ReadFile(filepath.Join(dir, address, "information"))
			m.mu.Lock()
			defer m.mu.Unlock()
			if delete(m.reading, address); err == nil {
				m.last[address] = string(minorForm.Find(data))
			}
			read <- struct{}{}
		}()
	}
	m.mu.Unlock()
	late := time.After(minorLimit)
	for ; pending > 0; pending-- {
		select {
		case <-read:
			continue
		case <-late:
		}
		break
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var b strings.Builder
	for _, address := range addresses {
		b.WriteString("\n" + address + " " + m.last[address])
	}
	return b.String()
}
