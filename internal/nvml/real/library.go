// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package real is the border to the driver's own libnvidia-ml.so.1, through go-nvml. Nothing else imports go-nvml.
//
// Traps. The dynamic linker binds NVML's functions once: the first library that a process loads answers for all its
// life, whatever is on disk later. After a driver upgrade that library no longer speaks to the kernel module, so Open
// answers nvml.ErrReplaced and the process has to start again. A process therefore reaches one library, and two driver roots
// need two processes. A function that the installed driver lacks ends the process when it is called, so each is looked
// up before. Never link with -z now or run under LD_BIND_NOW=1: every absent function would count as called.
package real

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	securejoin "github.com/cyphar/filepath-securejoin"

	"gpu-dra-driver/internal/nvml"
)

// loaded is the library that the dynamic linker bound for this process, whichever Library opened it.
var loaded struct {
	sync.Mutex
	path string
	info os.FileInfo
}

// Library opens sessions with one driver root's NVML.
type Library struct {
	driverRoot string

	mu       sync.Mutex
	lib      gonvml.Interface
	sessions int
	symbols  map[string]bool
}

// New makes a Library for the driver under driverRoot ("/" for the machine's own). It loads nothing: the driver may
// appear later.
func New(driverRoot string) *Library { return &Library{driverRoot: driverRoot} }

// Open finds and loads the library and initialises it. See nvml.Library for its errors.
func (l *Library) Open() (nvml.Session, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sessions == 0 {
		if err := l.start(); err != nil {
			return nil, err
		}
	}
	l.sessions++
	return &session{library: l}, nil
}

// start initialises NVML for the first session.
func (l *Library) start() error {
	path, err := Find(l.driverRoot)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("look at %s: %w", path, errors.Join(nvml.LibraryNotFound, err))
	}
	loaded.Lock()
	defer loaded.Unlock()
	if replaced(path, info) {
		return fmt.Errorf("load %s, where this process has loaded %s: %w", path, loaded.path, nvml.ErrReplaced)
	}
	if l.lib == nil {
		l.lib = gonvml.New(gonvml.WithLibraryPath(path))
	}
	ret := l.lib.Init()
	if ret == gonvml.ERROR_LIBRARY_NOT_FOUND && loaded.info == nil {
		// dlopen refused the file: not a library, of another machine, or itself short of a library.
		l.lib = nil
		return fmt.Errorf("load %s: %w", path, nvml.LibraryNotFound)
	}
	loaded.path, loaded.info = path, info
	if err := failed("nvmlInit_v2", ret); err != nil {
		return fmt.Errorf("initialise %s: %w", path, err)
	}
	l.symbols = map[string]bool{}
	return nil
}

// replaced says that a library is another version than the loaded one. A file's name tells the version; where it does
// not, any other file counts. The caller holds the lock.
func replaced(path string, info os.FileInfo) bool {
	if loaded.info == nil || os.SameFile(loaded.info, info) {
		return false
	}
	return filepath.Base(path) != filepath.Base(loaded.path) || filepath.Base(path) == soname
}

// release ends a session, and NVML's initialisation with the last.
func (l *Library) release() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sessions--
	if l.sessions > 0 {
		return nil
	}
	return failed("nvmlShutdown", l.lib.Shutdown())
}

// has says whether the loaded library has a function.
func (l *Library) has(symbol string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	known, ok := l.symbols[symbol]
	if !ok {
		known = l.lib.Extensions().LookupSymbol(symbol) == nil
		l.symbols[symbol] = known
	}
	return known
}

// failed is nil on success and otherwise the query with NVML's code.
func failed(query string, ret gonvml.Return) error {
	if ret == gonvml.SUCCESS {
		return nil
	}
	return &nvml.Error{Query: query, Code: nvml.Code(ret)}
}

// soname is the name that every driver's NVML can be found under.
const soname = "libnvidia-ml.so.1"

// directories is where drivers put their libraries below the driver root, in the order nvidia-container-toolkit looks.
var directories = []string{
	"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu",
	"usr/lib/x86_64-linux-gnu/nvidia/current", "usr/lib/aarch64-linux-gnu/nvidia/current", "usr/lib",
	"lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib", "",
}

// Find looks for the NVML library under a driver root. Links are followed as the driver's own machine would: an
// absolute one starts at the root, and none leads out of it. Without a library the error is nvml.LibraryNotFound and
// names the directories.
func Find(driverRoot string) (string, error) {
	for _, dir := range directories {
		path, err := securejoin.SecureJoin(driverRoot, filepath.Join(dir, soname))
		if err != nil {
			continue
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", fmt.Errorf("look for %s under the driver root %s (in %s): %w", soname, driverRoot,
		strings.Join(directories[:len(directories)-1], ", "), nvml.LibraryNotFound)
}
