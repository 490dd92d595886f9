// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Kernel has the kernel's own lists of the driver and its GPUs. They need neither NVML nor device nodes, and no GPU
// that hangs. Only they show that a GPU or the driver is absent, because one wrong answer of NVML would withdraw a GPU
// or leave a partition without an owner. A list that cannot be read shows nothing.
type Kernel struct {
	// ProcRoot and SysRoot are the machine's /proc and /sys.
	ProcRoot, SysRoot string
}

// HasDriver reports whether the driver's module is loaded.
func (k Kernel) HasDriver() bool { return k.has("driver/nvidia", "module/nvidia") }

// HasGPU reports whether the driver has the GPU at a PCI address.
func (k Kernel) HasGPU(address string) bool {
	return k.has(filepath.Join("driver/nvidia/gpus", address), filepath.Join("bus/pci/drivers/nvidia", address))
}

// has reports whether /proc or /sys has an entry, or cannot answer. A mount that is missing makes one of them empty.
func (k Kernel) has(proc, sys string) bool {
	_, procErr := os.Lstat(filepath.Join(k.ProcRoot, proc))
	_, sysErr := os.Lstat(filepath.Join(k.SysRoot, sys))
	return !errors.Is(procErr, fs.ErrNotExist) || !errors.Is(sysErr, fs.ErrNotExist)
}
