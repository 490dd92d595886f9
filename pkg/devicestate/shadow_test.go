// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"gpu-dra-driver/internal/host"
)

// shadow is the disk below a directory as a power cut leaves it: of a file what was synced, of a directory the names
// that it had when it was synced. What is not synced is lost, the worst that POSIX allows.
type shadow struct {
	root string
	// live is what the running system sees, disk what would be found after the power is cut.
	live, disk map[string]*inode
}

// inode is a file or a directory; a file that was never synced is found empty.
type inode struct {
	dir    bool
	synced []byte
}

func newShadow(root string) *shadow {
	s := &shadow{root: root, live: map[string]*inode{}, disk: map[string]*inode{}}
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		n := &inode{dir: d.IsDir()}
		if !n.dir {
			n.synced, err = os.ReadFile(path)
		}
		s.live[path], s.disk[path] = n, n
		return err
	})
	return s
}

func (s *shadow) after(e host.Effect) {
	switch e.Op {
	case host.OpWrite:
		s.live[e.Path] = &inode{}
	case host.OpSync:
		s.live[e.Path].synced, _ = os.ReadFile(e.Path)
	case host.OpRename:
		temp := filepath.Join(filepath.Dir(e.Path), "."+filepath.Base(e.Path)+".tmp")
		s.live[e.Path] = s.live[temp]
		delete(s.live, temp)
	case host.OpLink:
		data, _ := os.ReadFile(e.Path) // The first name was on disk already.
		s.live[e.Path] = &inode{synced: data}
	case host.OpRemove:
		delete(s.live, e.Path)
	case host.OpMkdir:
		for dir := e.Path; strings.HasPrefix(dir, s.root) && s.live[dir] == nil; dir = filepath.Dir(dir) {
			s.live[dir] = &inode{dir: true}
		}
	case host.OpSyncDir:
		for path := range s.disk {
			if filepath.Dir(path) == e.Path && s.live[path] == nil {
				delete(s.disk, path)
			}
		}
		for path, n := range s.live {
			if filepath.Dir(path) == e.Path {
				s.disk[path] = n
			}
		}
	}
}

// cut rebuilds the directory as the disk has it. Lock files and notes, which nobody syncs, are gone.
func (s *shadow) cut() error {
	entries, err := os.ReadDir(s.root)
	errs := []error{err}
	for _, e := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(s.root, e.Name())))
	}
	for path, n := range s.disk {
		if n.dir && s.reachable(path) {
			errs = append(errs, os.MkdirAll(path, 0o700))
		}
	}
	for path, n := range s.disk {
		if !n.dir && s.reachable(path) && !strings.Contains(path, "/locks/") {
			errs = append(errs, os.WriteFile(path, n.synced, 0o600))
		}
	}
	return errors.Join(errs...)
}

func (s *shadow) reachable(path string) bool {
	for ; path != s.root; path = filepath.Dir(path) {
		if s.disk[path] == nil {
			return false
		}
	}
	return true
}
