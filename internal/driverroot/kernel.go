// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
)

// NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.126.09  Release Build …
var versionForm = regexp.MustCompile(`(?m)^NVRM version:.*?Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s`)

// minorForm is a line of /proc/driver/nvidia/gpus/<address>/information.
var minorForm = regexp.MustCompile(`(?m)^Device Minor:\s*(\d+)\s*$`)

func (r *Root) proc(elem ...string) string {
	return filepath.Join(append([]string{r.o.ProcRoot, "driver", "nvidia"}, elem...)...)
}

// driverVersion is that of the kernel module, which the libraries must match.
func (r *Root) driverVersion() (string, error) {
	path := r.proc("version")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w (there is no %s); load it on the node (modprobe nvidia, or start the driver container)",
			ErrDriverNotLoaded, path)
	}
	if err != nil {
		return "", fmt.Errorf("read the driver's version: %w", err)
	}
	return parseVersion(path, data)
}

func parseVersion(path string, data []byte) (string, error) {
	m := versionForm.FindSubmatch(data)
	if m == nil {
		return "", fmt.Errorf("%w: %s names no version of the kernel module", ErrIncomplete, path)
	}
	return string(m[1]), nil
}

// minor asks the kernel for the GPU's minor number of this boot. Where it does not tell, the plan's is taken.
func (r *Root) minor(device Device) (int, error) {
	path := r.proc("gpus", device.PCIAddress, "information")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("%w at PCI address %s (there is no %s); it fell off the bus or was unbound, see the kernel log",
			ErrNoGPU, device.PCIAddress, path)
	}
	if err != nil {
		return 0, fmt.Errorf("read the minor number of the GPU at %s: %w", device.PCIAddress, err)
	}
	if n, ok := parseMinor(minorForm, data); ok {
		return n, nil
	}
	return device.Minor, nil
}

// parseMinor returns the minor number that a form captures.
func parseMinor(form *regexp.Regexp, data []byte) (int, bool) {
	m := form.FindSubmatch(data)
	if m == nil {
		return 0, false
	}
	n, err := strconv.Atoi(string(m[1]))
	return n, err == nil && n < 1<<20
}
