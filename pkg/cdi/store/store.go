// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package store keeps CDI specs on disk, one file a claim, named by the claim's UID.
//
// The host package writes the files, so that tests can make each operation fail. Other drivers use the same directory.
// It is usually on tmpfs and empty after a reboot, so a missing file proves nothing about the claim.
package store

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/pkg/cdi"
)

const (
	labelMkdir host.Label = "spec.mkdir"
	LabelWrite host.Label = "spec.write"
	// labelExtra marks writes of files that a spec mounts.
	labelExtra  host.Label = "spec.extra"
	LabelRemove host.Label = "spec.remove"
)

// Store holds one driver's specs in a CDI directory.
type Store struct {
	host *host.Host
	dir  string
	// mounted is the directory of files that specs mount.
	mounted string
	prefix  string
}

// The names of a claim's files, after the prefix and the claim's UID.
const (
	specName = "json"
	// Topology is the file for NCCL; the runtime does not read it as a spec.
	Topology       = "nccl.xml"
	metadataPrefix = "metadata-"
)

// Metadata returns the name of the i-th metadata file.
func Metadata(i int) string { return metadataPrefix + strconv.Itoa(i) }

// New returns a store. mounted is the directory of files that specs mount. It must be outside of dir. The kernel
// reports the end of a deleted directory only when no container has a file of it mounted. Until then containerd watches
// the old directory, and finds no specs in the new one. The first write creates a directory.
func New(h *host.Host, dir, mounted, driver string) *Store {
	return &Store{host: h, dir: dir, mounted: mounted, prefix: cdi.Vendor(driver) + "-" + cdi.Class + "_"}
}

// parse returns the claim and the name of a file in one of the directories. It is false for files of others.
func (s *Store) parse(file string) (uid, name string, ours bool) {
	rest, ours := strings.CutPrefix(file, s.prefix)
	uid, name, named := strings.Cut(rest, ".")
	return uid, name, ours && named
}

// ParseMetadataName returns the claim and the number of the metadata file with a name. It is false for other names.
func (s *Store) ParseMetadataName(file string) (uid string, i int, ok bool) {
	uid, name, ours := s.parse(file)
	i, err := strconv.Atoi(strings.TrimPrefix(name, metadataPrefix))
	return uid, i, ours && err == nil && i >= 0 && name == Metadata(i)
}

func (s *Store) path(uid string) string { return filepath.Join(s.dir, s.prefix+uid+"."+specName) }

// Write writes the claim's spec, unless it already has this content.
func (s *Store) Write(uid string, data []byte) error {
	return s.write(LabelWrite, "write the CDI spec", s.path(uid), data)
}

// Read returns the claim's spec. A missing one is fs.ErrNotExist.
func (s *Store) Read(uid string) ([]byte, error) { return s.host.ReadFile(s.path(uid)) }

// Mounted returns the directory of files that specs mount.
func (s *Store) Mounted() string { return s.mounted }

// MountedPath returns the path of a file that the claim's spec mounts: Topology or a Metadata.
func (s *Store) MountedPath(uid, name string) string {
	return filepath.Join(s.mounted, s.prefix+uid+"."+name)
}

// WriteMounted writes a file that the claim's spec mounts, unless it already has this content. Remove removes it too.
func (s *Store) WriteMounted(uid, name string, data []byte) error {
	return s.write(labelExtra, "write a file of the CDI spec", s.MountedPath(uid, name), data)
}

// write writes a file that differs. No file needs a sync: no spec is used in a later boot without a new Prepare, which
// compares the files.
func (s *Store) write(label host.Label, attempt, path string, data []byte) error {
	if old, err := s.host.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	err := s.host.WriteAtomic(label, path, data, 0o644)
	if errors.Is(err, fs.ErrNotExist) {
		if err := s.host.MkdirAll(labelMkdir, 0o755, filepath.Dir(path)); err != nil {
			return fmt.Errorf("%s: create its directory: %w", attempt, err)
		}
		err = s.host.WriteAtomic(label, path, data, 0o644)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", attempt, err)
	}
	return nil
}

// Withdraw removes the claim's spec but keeps the files that it mounts, which running containers use. A missing spec is
// no error.
func (s *Store) Withdraw(uid string) error {
	if err := s.host.Remove(LabelRemove, s.path(uid)); err != nil {
		return fmt.Errorf("remove the CDI spec: %w", err)
	}
	return nil
}

// Remove removes the claim's spec, then its other files and unfinished writes. Missing files are not errors.
func (s *Store) Remove(uid string) error {
	if err := s.Withdraw(uid); err != nil {
		return err
	}
	files, err := s.list(s.dir, s.mounted)
	if err != nil {
		return err
	}
	for _, f := range files {
		if f.uid != uid || f.unfinished {
			continue
		}
		if err := s.host.Remove(LabelRemove, f.path); err != nil {
			return fmt.Errorf("remove a file of the CDI spec: %w", err)
		}
	}
	return s.removeUnfinished(uid, files)
}

// RemoveUnfinished removes unfinished writes of the claim's files.
func (s *Store) RemoveUnfinished(uid string) error {
	files, err := s.list(s.dir, s.mounted)
	if err != nil {
		return err
	}
	return s.removeUnfinished(uid, files)
}

func (s *Store) removeUnfinished(uid string, files []file) error {
	for _, f := range files {
		if f.uid != uid || !f.unfinished {
			continue
		}
		if err := s.host.RemoveUnfinished(LabelRemove, f.path); err != nil {
			return fmt.Errorf("remove an unfinished file of the CDI spec: %w", err)
		}
	}
	return nil
}

// file is a claim's file, or the target of an unfinished write.
type file struct {
	uid, name, path string
	unfinished      bool
}

// list lists the files of all claims in directories. The directory decides: a file can be missing whose number is
// lower.
func (s *Store) list(dirs ...string) (files []file, err error) {
	for _, dir := range dirs {
		names, unfinished, err := s.host.List(dir)
		if err != nil {
			return nil, fmt.Errorf("list CDI specs and the files that they mount: %w", err)
		}
		for n, entry := range slices.Concat(names, unfinished) {
			if uid, name, ours := s.parse(entry); ours {
				files = append(files, file{uid, name, filepath.Join(dir, entry), n >= len(names)})
			}
		}
	}
	return files, nil
}

// Written lists the claims with a spec, sorted.
func (s *Store) Written() ([]string, error) {
	files, err := s.list(s.dir)
	return uids(files, func(f file) bool { return f.name == specName && !f.unfinished }), err
}

// UIDs lists the claims with any file, complete or unfinished, sorted.
func (s *Store) UIDs() ([]string, error) {
	files, err := s.list(s.dir, s.mounted)
	return uids(files, func(f file) bool {
		return f.name == specName || f.name == Topology || strings.HasPrefix(f.name, metadataPrefix)
	}), err
}

func uids(files []file, wanted func(file) bool) (uids []string) {
	for _, f := range files {
		if wanted(f) {
			uids = append(uids, f.uid)
		}
	}
	slices.Sort(uids)
	return slices.Compact(uids)
}

// ErrUnlinked means that the CDI directory was deleted while this process still has the old one mounted.
var ErrUnlinked = errors.New("the CDI directory was deleted, but this container still has the old one mounted")

// Usable returns ErrUnlinked if only a new process can write specs.
func (s *Store) Usable() error {
	gone, err := s.host.Unlinked(s.dir)
	if err == nil && gone {
		err = ErrUnlinked
	}
	return err
}
