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

// ReadFile reads a file. The error for a missing file is fs.ErrNotExist. It reads twice before it returns EIO: callers
// replace a file on a bad sector, which one bad read does not prove.
func (h *Host) ReadFile(path string) ([]byte, error) {
	read := h.o.ReadFile
	if read == nil {
		read = os.ReadFile
	}
	return again(func() ([]byte, error) { return read(path) })
}

func again(read func() ([]byte, error)) ([]byte, error) {
	data, err := read()
	if errors.Is(err, unix.EIO) {
		return read()
	}
	return data, err
}

// List returns a directory's entries in order. unfinished lists the targets whose temporary files a crash left
// behind. A missing directory has no entries.
func (h *Host) List(dir string) (names, unfinished []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	for _, e := range entries {
		target, isTemp := strings.CutSuffix(e.Name(), tempSuffix)
		if isTemp && strings.HasPrefix(target, tempPrefix) {
			unfinished = append(unfinished, strings.TrimPrefix(target, tempPrefix))
		} else {
			names = append(names, e.Name())
		}
	}
	return names, unfinished, err
}

func tempOf(path string) string {
	return filepath.Join(filepath.Dir(path), tempPrefix+filepath.Base(path)+tempSuffix)
}

// WriteDurable replaces a file atomically, and returns once its data and its name are on disk. The caller holds the
// lock that protects the path.
func (h *Host) WriteDurable(label Label, path string, data []byte, perm fs.FileMode) error {
	if err := h.WriteComplete(label, path, data, perm); err != nil {
		return err
	}
	return h.SyncDir(label, filepath.Dir(path))
}

// WriteComplete replaces a file atomically, and returns once its data are on disk. It saves the sync of the directory:
// after a power cut the file is complete, or what it was before.
func (h *Host) WriteComplete(label Label, path string, data []byte, perm fs.FileMode) error {
	return h.replace(label, path, data, perm, true)
}

// WriteAtomic replaces a file atomically, and saves the two syncs of WriteDurable. After a power cut the file can be
// missing or empty, so it must be written again in each boot.
func (h *Host) WriteAtomic(label Label, path string, data []byte, perm fs.FileMode) error {
	return h.replace(label, path, data, perm, false)
}

func (h *Host) replace(label Label, path string, data []byte, perm fs.FileMode, sync bool) error {
	temp := tempOf(path)
	err := h.fill(label, temp, data, perm, sync)
	if err == nil {
		err = h.rename(label, temp, path)
	}
	if err != nil {
		// The target is unchanged; the temporary file would only use space.
		_ = h.do(label, CallRemove, temp, func() error { return os.Remove(temp) })
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func (h *Host) fill(label Label, path string, data []byte, perm fs.FileMode, sync bool) error {
	var f *os.File
	err := h.do(label, CallWrite, path, func() (err error) {
		if f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, perm); err != nil {
			return err
		}
		_, err = f.Write(data)
		return err
	})
	defer f.Close() // Close allows nil after a failed open
	if err != nil || !sync {
		return err
	}
	return h.do(label, CallSync, path, f.Sync)
}

// Rename durably gives a file another name in its directory. It needs no space on the disk.
func (h *Host) Rename(label Label, from, to string) error {
	if err := h.rename(label, from, to); err != nil {
		return err
	}
	return h.SyncDir(label, filepath.Dir(to))
}

func (h *Host) rename(label Label, from, to string) error {
	return h.run(Operation{Label: label, Call: CallRename, Path: to, From: from}, func() error {
		return os.Rename(from, to)
	})
}

// Remove unlinks a file durably. Removing a missing file succeeds.
func (h *Host) Remove(label Label, path string) error {
	err := h.do(label, CallRemove, path, func() error { return os.Remove(path) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return h.SyncDir(label, filepath.Dir(path))
}

// RemoveUnfinished removes the temporary file that a crash left for path, if any.
func (h *Host) RemoveUnfinished(label Label, path string) error { return h.Remove(label, tempOf(path)) }

// MkdirAll makes directories and their parents durably: a file is only as durable as the directories above it. It also
// syncs existing directories, up to the root of their file system, because the process that made them may have
// crashed before it synced them.
func (h *Host) MkdirAll(label Label, perm fs.FileMode, dirs ...string) error {
	synced := map[string]bool{}
	for _, dir := range dirs {
		if err := h.do(label, CallMkdir, dir, func() error { return os.MkdirAll(dir, perm) }); err != nil {
			return err
		}
	}
	for _, dir := range dirs {
		device, err := deviceOf(dir)
		if err != nil {
			return err
		}
		for parent := filepath.Dir(dir); !synced[parent]; parent = filepath.Dir(parent) {
			on, err := deviceOf(parent)
			if err != nil {
				return err
			}
			if on != device {
				break
			}
			if err := h.SyncDir(label, parent); err != nil {
				return err
			}
			synced[parent] = true
		}
	}
	return nil
}

func deviceOf(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, fmt.Errorf("look at %s: %w", path, err)
	}
	return st.Dev, nil
}

// Link durably gives a file a second name. Unlike a copy it works for an unreadable file.
func (h *Host) Link(label Label, from, to string) error {
	if err := h.do(label, CallLink, to, func() error { return os.Link(from, to) }); err != nil {
		return err
	}
	return h.SyncDir(label, filepath.Dir(to))
}

// SyncDir makes the names in a directory durable.
func (h *Host) SyncDir(label Label, dir string) error {
	err := h.do(label, CallSyncDir, dir, func() error {
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

// Unlinked reports whether a directory was deleted while this process still sees it: a container's mount outlives its
// source. No file can be created in such a directory.
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
