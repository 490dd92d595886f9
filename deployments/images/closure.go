// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// libDirs lists the default directories of dynamic linkers on the supported distributions, in their order. The image
// has no ld.so.cache, so its libraries must be in one of them too.
func libDirs(triplet string) []string {
	return []string{"lib/" + triplet, "usr/lib/" + triplet, "lib64", "usr/lib64", "lib", "usr/lib"}
}

// closure returns every shared object that the binaries (paths on this machine) and the extra sonames need, each at its
// path in root. The dynamic linker, which the C library names too, is among them. It follows symbolic links: an image needs the
// soname, not the versioned file.
func closure(root fs.FS, triplet string, extra []string, binaries ...string) ([]entry, error) {
	found := map[string]entry{}
	queue := slices.Clone(extra)
	addLinker := func(of, interp string) error {
		name := strings.TrimPrefix(interp, "/")
		linker, err := fs.ReadFile(root, name)
		if err != nil {
			return fmt.Errorf("the dynamic linker of %s is missing: %w", of, err)
		}
		found[path.Base(name)] = entry{name: name, mode: 0o755, data: linker}
		return nil
	}
	for _, b := range binaries {
		data, err := os.ReadFile(b)
		if err != nil {
			return nil, err
		}
		interp, needed, err := elfNeeds(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Base(b), err)
		}
		queue = append(queue, needed...)
		if interp != "" {
			if err := addLinker(filepath.Base(b), interp); err != nil {
				return nil, err
			}
		}
	}
	for len(queue) > 0 {
		soname := queue[0]
		queue = queue[1:]
		if _, ok := found[soname]; ok {
			continue
		}
		lib, err := findLib(root, triplet, soname)
		if err != nil {
			return nil, err
		}
		found[soname] = lib
		interp, needed, err := elfNeeds(lib.data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", lib.name, err)
		}
		if interp != "" {
			if err := addLinker(lib.name, interp); err != nil {
				return nil, err
			}
		}
		queue = append(queue, needed...)
	}
	return slices.SortedFunc(maps.Values(found), func(a, b entry) int { return strings.Compare(a.name, b.name) }), nil
}

func findLib(root fs.FS, triplet, soname string) (entry, error) {
	for _, dir := range libDirs(triplet) {
		data, err := fs.ReadFile(root, dir+"/"+soname)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return entry{}, fmt.Errorf("cannot read %s: %w", soname, err)
		}
		return entry{name: dir + "/" + soname, mode: 0o755, data: data}, nil
	}
	return entry{}, fmt.Errorf("library %s is in none of %s; install it (libc6 and libgcc-s1 on Debian, "+
		"libc6-ARCH-cross and libgcc-s1-ARCH-cross for a foreign architecture)", soname, strings.Join(libDirs(triplet), ", "))
}

// elfNeeds returns the dynamic linker and the needed sonames of an ELF object; both are empty for a static one.
func elfNeeds(data []byte) (interp string, needed []string, err error) {
	f, err := elf.NewFile(strings.NewReader(string(data)))
	if err != nil {
		return "", nil, fmt.Errorf("not an ELF object: %w", err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			raw, err := io.ReadAll(p.Open())
			if err != nil {
				return "", nil, fmt.Errorf("unreadable PT_INTERP: %w", err)
			}
			interp = strings.TrimRight(string(raw), "\x00")
		}
	}
	needed, err = f.ImportedLibraries()
	if err != nil {
		return "", nil, fmt.Errorf("unreadable dynamic section: %w", err)
	}
	return interp, needed, nil
}
