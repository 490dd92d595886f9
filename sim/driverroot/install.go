// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
)

// Build commands of the two binaries, for the error about a missing one.
const (
	BuildLibrary = `go build -buildmode=c-shared -ldflags '-s -w -extldflags=-Wl,-soname,libnvidia-ml.so.1' -o bin/sim/libnvidia-ml.so.1 ./sim/libnvidiaml`
	BuildSMI     = `CGO_ENABLED=0 go build -ldflags '-s -w' -o bin/sim/nvidia-smi ./sim/cmd/nvidia-smi`
)

func readLibrary(path string, without []string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("the simulated NVML library is missing: %w\nbuild it with\n  %s", err, BuildLibrary)
	}
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("%s is not a shared library: %w\nbuild it with\n  %s", path, err, BuildLibrary)
	}
	if names, err := f.DynString(elf.DT_SONAME); err != nil || !slices.Contains(names, "libnvidia-ml.so.1") {
		return nil, fmt.Errorf("%s has the SONAME %q, not libnvidia-ml.so.1\nbuild it with\n  %s", path, names, BuildLibrary)
	}
	return b, dropSymbols(b, f, without)
}

func readSMI(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("the nvidia-smi stand-in is missing: %w\nbuild it with\n  %s", err, BuildSMI)
	}
	return b, nil
}

// dropSymbols clears entries of the dynamic symbol table in place, so that the loader does not find them.
func dropSymbols(b []byte, f *elf.File, names []string) error {
	if len(names) == 0 {
		return nil
	}
	table := f.SectionByType(elf.SHT_DYNSYM)
	symbols, err := f.DynamicSymbols()
	if err != nil || table == nil {
		return fmt.Errorf("reading the library's symbols: %w", err)
	}
	for _, name := range names {
		i := slices.IndexFunc(symbols, func(s elf.Symbol) bool { return s.Name == name })
		if i < 0 || !strings.HasPrefix(name, "nvml") {
			return fmt.Errorf("the library has no NVML function %q to leave out", name)
		}
		// DynamicSymbols leaves out the null symbol at index 0.
		at := table.Offset + uint64(i+1)*uint64(binary.Size(elf.Sym64{}))
		clear(b[at : at+uint64(binary.Size(elf.Sym64{}))])
	}
	return nil
}
