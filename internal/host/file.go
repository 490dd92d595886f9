// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	tempPrefix = "."
	tempSuffix = ".tmp"
)

// ReadFile is os.ReadFile. A missing file is fs.ErrNotExist.
func (h *Host) ReadFile(path string) ([]byte, error) { return h.read(path) }

// Names lists a directory's entries in order, temporary files left out. A missing directory has none.
func (h *Host) Names(dir string) ([]string, error) {
	return names(dir, func(name string) (string, bool) { return name, !isTemp(name) })
}

// Unfinished lists the targets whose temporary files a crash left in a directory.
func (h *Host) Unfinished(dir string) ([]string, error) {
	return names(dir, func(name string) (string, bool) {
		return strings.TrimSuffix(strings.TrimPrefix(name, tempPrefix), tempSuffix), isTemp(name)
	})
}

func names(dir string, pick func(string) (string, bool)) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if name, ok := pick(e.Name()); ok {
			out = append(out, name)
		}
	}
	return out, nil
}

func isTemp(name string) bool {
	return strings.HasPrefix(name, tempPrefix) && strings.HasSuffix(name, tempSuffix)
}

func tempOf(path string) string {
	return filepath.Join(filepath.Dir(path), tempPrefix+filepath.Base(path)+tempSuffix)
}

// WriteDurable replaces a file by data, whole or not at all, and returns once both file and name are on disk. The
// caller holds the lock that the path belongs to.
func (h *Host) WriteDurable(label Label, path string, data []byte, perm fs.FileMode) error {
	temp := tempOf(path)
	err := h.fill(label, temp, data, perm)
	if err == nil {
		err = h.do(Effect{label, OpRename, path}, func() error { return os.Rename(temp, path) })
	}
	if err != nil {
		// Whatever the reason, the target is untouched; what is left of the temporary file only takes up room.
		_ = h.do(Effect{label, OpRemove, temp}, func() error { return os.Remove(temp) })
		return fmt.Errorf("write %s: %w", path, err)
	}
	return h.SyncDir(label, filepath.Dir(path))
}

func (h *Host) fill(label Label, path string, data []byte, perm fs.FileMode) error {
	var f *os.File
	err := h.do(Effect{label, OpWrite, path}, func() (err error) {
		if f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, perm); err != nil {
			return err
		}
		_, err = f.Write(data)
		return err
	})
	if f != nil {
		defer f.Close()
	}
	if err != nil {
		return err
	}
	return h.do(Effect{label, OpSync, path}, f.Sync)
}

// Remove unlinks a file and returns once that is on disk. A file that is not there is a success.
func (h *Host) Remove(label Label, path string) error {
	var gone bool
	err := h.do(Effect{label, OpRemove, path}, func() error {
		err := os.Remove(path)
		gone = errors.Is(err, fs.ErrNotExist)
		if gone {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	if gone {
		return nil
	}
	return h.SyncDir(label, filepath.Dir(path))
}

// RemoveUnfinished removes the temporary file that a crash left beside path, if any.
func (h *Host) RemoveUnfinished(label Label, path string) error { return h.Remove(label, tempOf(path)) }

// MkdirAll makes a directory and its parents and returns once their names are on disk, for a durable file is no more
// durable than the directories it is in. Those that exist already are synced all the same, up to the top of their file
// system: who made them may have died before doing so.
func (h *Host) MkdirAll(label Label, dir string, perm fs.FileMode) error {
	if err := h.do(Effect{label, OpMkdir, dir}, func() error { return os.MkdirAll(dir, perm) }); err != nil {
		return err
	}
	device, err := deviceOf(dir)
	if err != nil {
		return err
	}
	for parent := filepath.Dir(dir); ; parent = filepath.Dir(parent) {
		if on, err := deviceOf(parent); err != nil || on != device {
			return err
		}
		if err := h.SyncDir(label, parent); err != nil {
			return err
		}
		if parent == filepath.Dir(parent) {
			return nil
		}
	}
}

func deviceOf(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, fmt.Errorf("look at %s: %w", path, err)
	}
	return st.Dev, nil
}

// Link gives a file a second name, durable when it returns. Unlike a copy it needs no reading of what may not be
// readable.
func (h *Host) Link(label Label, from, to string) error {
	if err := h.do(Effect{label, OpLink, to}, func() error { return os.Link(from, to) }); err != nil {
		return err
	}
	return h.SyncDir(label, filepath.Dir(to))
}

// SyncDir returns once the names in a directory are on disk.
func (h *Host) SyncDir(label Label, dir string) error {
	err := h.do(Effect{label, OpSyncDir, dir}, func() error {
		d, err := os.Open(dir)
		if err != nil {
			return err
		}
		defer d.Close()
		return d.Sync()
	})
	if err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}

// Unlinked says whether a directory was deleted while this process still sees it, as a container does whose mount of it
// outlives it. Nothing can be made in it any more.
func (h *Host) Unlinked(dir string) (bool, error) {
	var st unix.Stat_t
	err := unix.Stat(dir, &st)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at %s: %w", dir, err)
	}
	return st.Nlink == 0, nil
}
