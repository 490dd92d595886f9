// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"debug/elf"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// tuneMemory trades processor time, which the plugin rarely needs, for a small heap. An operator's own setting has
// priority.
func tuneMemory(environ []string) {
	const gcPercent = 50
	if !slices.ContainsFunc(environ, func(kv string) bool { return strings.HasPrefix(kv, "GOGC=") }) {
		debug.SetGCPercent(gcPercent)
	}
}

// freeMemory returns the pages of the binary to the kernel. Most of them are used only while Go's packages and
// Kubernetes' types initialise. The next use reads them from the page cache.
func freeMemory() {
	if err := dropBinary(); err != nil {
		klog.Background().V(4).Info("The binary's pages stay in memory", "err", err)
	}
}

// dropBinary unmaps the pages of this program's code and constants, but only segments that the file marks read-only.
// The dynamic linker writes to other segments and then protects them, so they look read-only in /proc/self/maps;
// without them, their data is lost.
func dropBinary() error {
	program, err := elf.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer program.Close()
	if program.Type != elf.ET_EXEC {
		return fmt.Errorf("the program is of type %s, its addresses are not those of the file", program.Type)
	}
	page := uint64(unix.Getpagesize())
	for _, segment := range program.Progs {
		if segment.Type != elf.PT_LOAD || segment.Flags&elf.PF_W != 0 {
			continue
		}
		start, end := segment.Vaddr&^(page-1), (segment.Vaddr+segment.Filesz)&^(page-1)
		if start >= end {
			continue
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, uintptr(start), uintptr(end-start),
			unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("madvise: %w", errno)
		}
	}
	return nil
}
