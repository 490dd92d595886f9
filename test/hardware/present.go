// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// roots are where a machine's files are.
type roots struct{ driver, proc, sys string }

// present returns the signs of an NVIDIA GPU or its driver that need no NVML: a PCI device, the kernel's driver,
// nvidia-smi. Without NVML the checks must not pass on such a machine. It returns an error for what cannot be read.
func (r roots) present() (signs []string, err error) {
	devices := filepath.Join(r.sys, "bus/pci/devices")
	entries, err := os.ReadDir(devices)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // A machine can have no PCI.
		return nil, fmt.Errorf("look for GPUs: %w", err)
	}
	for _, e := range entries {
		vendor, vendorErr := os.ReadFile(filepath.Join(devices, e.Name(), "vendor"))
		class, classErr := os.ReadFile(filepath.Join(devices, e.Name(), "class"))
		if err := errors.Join(vendorErr, classErr); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				continue // Removed meanwhile.
			}
			return nil, fmt.Errorf("look for GPUs: %w", err)
		}
		// 0x03 is a display controller, of any kind.
		if strings.TrimSpace(string(vendor)) == "0x10de" && strings.HasPrefix(string(class), "0x03") {
			signs = append(signs, "PCI device "+e.Name())
		}
	}
	for _, path := range []string{
		filepath.Join(r.proc, "driver/nvidia/version"),
		filepath.Join(r.driver, "usr/bin/nvidia-smi"), filepath.Join(r.driver, "usr/local/bin/nvidia-smi"),
		filepath.Join(r.driver, "bin/nvidia-smi"), filepath.Join(r.driver, "usr/local/nvidia/bin/nvidia-smi"),
	} {
		switch _, err := os.Stat(path); {
		case err == nil:
			signs = append(signs, path)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("look for NVIDIA's driver: %w", err)
		}
	}
	return signs, nil
}
