// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"gpu-dra-driver/internal/host"
)

// Disk is a directory as a power cut leaves it. A file has its synced content, and a directory has its synced names.
// All other data is lost, which is the worst case that POSIX allows.
type Disk struct {
	root string
	// live is the content that the running system sees, durable the content that survives a power cut.
	live, durable map[string]*inode
}

// inode is a file or a directory. A file that was never synced is empty after a power cut.
type inode struct {
	dir    bool
	synced []byte
}

// NewDisk takes the present content of a directory as durable.
func NewDisk(root string) *Disk {
	d := &Disk{root: root, live: map[string]*inode{}, durable: map[string]*inode{}}
	_ = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		n := &inode{dir: e.IsDir()}
		if !n.dir {
			n.synced, err = os.ReadFile(path)
		}
		d.live[path], d.durable[path] = n, n
		return err
	})
	return d
}

// Hook calls next, and records every successful operation.
func (d *Disk) Hook(next host.FaultHook) host.FaultHook {
	return func(o host.Operation, do func() error) error {
		return next(o, func() error {
			err := do()
			if err == nil {
				d.note(o)
			}
			return err
		})
	}
}

func (d *Disk) note(o host.Operation) {
	switch o.Call {
	case host.CallWrite:
		d.live[o.Path] = &inode{}
	case host.CallSync:
		d.live[o.Path].synced, _ = os.ReadFile(o.Path)
	case host.CallRename:
		d.live[o.Path] = d.live[o.From]
		delete(d.live, o.From)
	case host.CallLink:
		data, _ := os.ReadFile(o.Path) // The first name is on disk already.
		d.live[o.Path] = &inode{synced: data}
	case host.CallRemove:
		delete(d.live, o.Path)
	case host.CallMkdir:
		for dir := o.Path; strings.HasPrefix(dir, d.root) && d.live[dir] == nil; dir = filepath.Dir(dir) {
			d.live[dir] = &inode{dir: true}
		}
	case host.CallSyncDir:
		for path := range d.durable {
			if filepath.Dir(path) == o.Path && d.live[path] == nil {
				delete(d.durable, path)
			}
		}
		for path, n := range d.live {
			if filepath.Dir(path) == o.Path {
				d.durable[path] = n
			}
		}
	}
}

// CutPower gives the directory its durable content. It drops lock files and their notes, because they are never
// synced.
func (d *Disk) CutPower() error {
	entries, err := os.ReadDir(d.root)
	errs := []error{err}
	for _, e := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(d.root, e.Name())))
	}
	for path, n := range d.durable {
		if n.dir && d.reachable(path) {
			errs = append(errs, os.MkdirAll(path, 0o700))
		}
	}
	for path, n := range d.durable {
		if !n.dir && d.reachable(path) && !strings.Contains(path, "/locks/") {
			errs = append(errs, os.WriteFile(path, n.synced, 0o600))
		}
	}
	return errors.Join(errs...)
}

func (d *Disk) reachable(path string) bool {
	for ; path != d.root; path = filepath.Dir(path) {
		if d.durable[path] == nil {
			return false
		}
	}
	return true
}
