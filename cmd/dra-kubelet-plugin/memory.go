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

// tuneMemory trades a little processor time, of which the plugin needs next to none, for a small heap. An operator's
// own setting stands.
func tuneMemory(environ []string) {
	const percent = 50
	if !slices.ContainsFunc(environ, func(kv string) bool { return strings.HasPrefix(kv, "GOGC=") }) {
		debug.SetGCPercent(percent)
	}
}

// freeMemory returns the memory that work left behind: free heap, and the pages of the binary. Nearly all of these are
// read in while Go's packages and Kubernetes' types initialise, and few again; what is needed comes back from the page
// cache with the next use.
func freeMemory() {
	debug.FreeOSMemory()
	if err := dropBinary(); err != nil {
		klog.Background().V(4).Info("The binary's pages stay in memory", "err", err)
	}
}

// dropBinary unmaps the pages of this program's code and constants. Only segments that the file says are never written
// are touched: what the dynamic linker wrote to and then protected looks read-only in /proc/self/maps too, and would be
// lost.
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
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, uintptr(start), uintptr(end-start), unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("madvise: %w", errno)
		}
	}
	return nil
}
