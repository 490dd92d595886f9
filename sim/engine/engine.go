// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Dir is the directory of the simulator's own files in a root.
const Dir = "var/lib/gpusim"

// ErrNoMachine means that the root holds no simulated machine.
var ErrNoMachine = errors.New("no simulated machine")

// Engine is the machine of a root directory. Several goroutines and processes can use it concurrently.
type Engine struct {
	dir    string // "" of a machine in memory
	onSync func(*State) error

	updating sync.Mutex // one Update at a time of a machine in memory
	mu       sync.Mutex
	cached   *State
	stamp    stamp
	// events happened to a machine in memory. Its next change closes changed.
	events  []Event
	changed chan struct{}
}

type stamp struct {
	inode, size uint64
	mtime       syscall.Timespec
}

// Open returns the machine under root, without reading it. Every Update calls onSync, if set, with the new state and
// with the lock held, so that other files of the root follow the state.
func Open(root string, onSync func(*State) error) *Engine {
	return &Engine{dir: filepath.Join(root, Dir), onSync: onSync}
}

// InMemory returns a machine of one test, which other processes cannot see. It has no files, so its queries need no
// system calls.
func InMemory(s *State) (*Engine, error) {
	if err := s.validate(); err != nil {
		return nil, err
	}
	return &Engine{cached: s.Clone()}, nil
}

// State returns the machine's current state. It is shared: do not change it. The file is read only if it changed.
func (e *Engine) State() (*State, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.read()
}

func (e *Engine) read() (*State, error) {
	if e.dir == "" {
		return e.cached, nil
	}
	path := filepath.Join(e.dir, "state.json")
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		e.cached = nil
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			return nil, fmt.Errorf("%w: %s does not exist", ErrNoMachine, path)
		}
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	now := stamp{inode: st.Ino, size: uint64(st.Size), mtime: st.Mtim}
	if e.cached != nil && now == e.stamp {
		return e.cached, nil
	}
	e.cached = nil
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	s, err := Decode(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	e.cached, e.stamp = s, now
	return s, nil
}

// Create writes the first state of an empty root.
func (e *Engine) Create(s *State) error {
	if err := os.MkdirAll(e.dir, 0o755); err != nil {
		return err
	}
	return e.locked(func() error {
		if _, err := os.Lstat(filepath.Join(e.dir, "state.json")); err == nil {
			return fmt.Errorf("%s already holds a simulated machine", filepath.Dir(filepath.Dir(filepath.Dir(e.dir))))
		}
		return e.commit(s.Clone(), nil)
	})
}

// Update changes the machine: change modifies a copy, which Update writes unless change returns an error.
func (e *Engine) Update(change func(*State) error) error {
	return e.locked(func() error {
		e.mu.Lock()
		old, err := e.read()
		e.mu.Unlock()
		if err != nil {
			return err
		}
		s := old.Clone()
		if err := change(s); err != nil {
			return err
		}
		return e.commit(s, old)
	})
}

func (e *Engine) commit(s, old *State) error {
	if old != nil {
		s.Generation = old.Generation + 1
		s.settle(old, time.Now())
	}
	if !s.DriverLoaded {
		for i := range s.GPUs {
			s.GPUs[i].Instances = nil // Instances belong to the driver.
		}
	}
	if err := s.validate(); err != nil {
		return fmt.Errorf("refusing to write a broken state: %w", err)
	}
	if e.dir == "" {
		e.mu.Lock()
		e.cached = s
		e.mu.Unlock()
		return e.deliver(s.Raised)
	}
	b, err := s.Encode()
	if err != nil {
		return err
	}
	if err := errors.Join(e.write(b, s.Generation), e.deliver(s.Raised)); err != nil {
		return err
	}
	if e.onSync != nil {
		return e.onSync(s)
	}
	return nil
}

// write replaces the file. Its time is the generation in microseconds past the last whole second. So two writes
// within a clock tick differ, even if the second file reuses the first one's inode.
func (e *Engine) write(b []byte, generation uint64) error {
	path := filepath.Join(e.dir, "state.json")
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, b, 0o644); err != nil {
		return err
	}
	at := time.Now().Truncate(time.Second).Add(time.Duration(generation%1_000_000) * time.Microsecond)
	if err := os.Chtimes(tmp, at, at); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

func (e *Engine) locked(f func() error) error {
	if e.dir == "" {
		e.updating.Lock()
		defer e.updating.Unlock()
		return f()
	}
	lock, err := os.OpenFile(filepath.Join(e.dir, "lock"), os.O_RDONLY|os.O_CREATE|syscall.O_CLOEXEC, 0o644)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w under %s", ErrNoMachine, e.dir)
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	for {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("locking %s: %w", lock.Name(), err)
	}
	return f()
}
