// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package native

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	securejoin "github.com/cyphar/filepath-securejoin"

	"gpu-dra-driver/internal/driverprogram"
	"gpu-dra-driver/internal/nvml"
)

// loaded is the library that the dynamic linker bound for this process; all Libraries share it.
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
	// The version of CUDA for which libcuda.so.1 was loaded, or 0. A process has one version of the driver.
	cuda atomic.Int64
	// links has the nvml.NVLink of each active link, by its linkKey. A link keeps its end while it is active, so a scan
	// of unchanged links asks for their states only.
	links sync.Map
}

type linkKey struct {
	uuid  string
	index int
}

// New makes a Library for the driver under driverRoot ("/" for the machine's own). It loads no library: the driver
// may be installed later.
func New(driverRoot string) *Library { return &Library{driverRoot: driverRoot} }

// Open finds, loads and initialises the library. See nvml.Library for its errors.
func (l *Library) Open() (nvml.Session, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sessions == 0 {
		if err := l.start(); err != nil {
			return nil, err
		}
	} else if path, info, err := l.find(soname); err == nil {
		// Another session can stay open for days. While the driver's files are missing, it goes on.
		loaded.Lock()
		defer loaded.Unlock()
		if err := current(path, info); err != nil {
			return nil, err
		}
	}
	l.sessions++
	return &session{library: l}, nil
}

// current returns ErrReplaced if a library is another version than the loaded one. A file's name contains the version;
// otherwise any other file counts as another version. The caller holds the lock.
func current(path string, info os.FileInfo) error {
	name := filepath.Base(path)
	if loaded.info == nil || os.SameFile(loaded.info, info) || name == filepath.Base(loaded.path) && name != soname {
		return nil
	}
	return fmt.Errorf("load %s, where this process has loaded %s: %w", path, loaded.path, nvml.ErrReplaced)
}

// start initialises NVML for the first session.
func (l *Library) start() error {
	path, info, err := l.find(soname)
	if err != nil {
		return err
	}
	loaded.Lock()
	defer loaded.Unlock()
	if err := current(path, info); err != nil {
		return err
	}
	if l.lib == nil {
		l.lib = gonvml.New(gonvml.WithLibraryPath(path))
	}
	ret := l.lib.Init()
	if ret == gonvml.ERROR_LIBRARY_NOT_FOUND && loaded.info == nil {
		// dlopen rejected the file: not a library, for another machine, or with a missing dependency.
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

// release ends a session. The last one shuts NVML down.
func (l *Library) release() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sessions--
	if l.sessions > 0 {
		return nil
	}
	return failed("nvmlShutdown", l.lib.Shutdown())
}

// has reports whether the loaded library has a function.
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

// failed returns nil on success and otherwise an error with the query and NVML's code.
func failed(query string, ret gonvml.Return) error {
	if ret == gonvml.SUCCESS {
		return nil
	}
	return &nvml.Error{Query: query, Code: nvml.Code(ret)}
}

// The library names that every driver provides.
const soname, cudaSoname = "libnvidia-ml.so.1", "libcuda.so.1"

// find looks for a library under the driver root. It follows links within the root: an absolute link starts at
// the root, and no link leads out of it. Without a library the error is nvml.LibraryNotFound and names the
// directories.
func (l *Library) find(name string) (string, os.FileInfo, error) {
	for _, dir := range driverprogram.Libraries {
		path, err := securejoin.SecureJoin(l.driverRoot, filepath.Join(dir, name))
		if err != nil {
			continue
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, info, nil
		}
	}
	return "", nil, fmt.Errorf("look for %s under the driver root %s (in %s): %w", name, l.driverRoot,
		strings.Join(driverprogram.Libraries[:len(driverprogram.Libraries)-1], ", "), nvml.LibraryNotFound)
}
