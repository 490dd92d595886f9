// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package store keeps CDI specs on disk, one file a claim, named by the claim's UID.
//
// The host package writes the files, because the CDI library's writer does not sync. Other drivers use the same
// directory. It is usually on tmpfs and empty after a reboot, so a missing file proves nothing about the claim.
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

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/pkg/cdi"
)

const (
	LabelMkdir host.Label = "spec.mkdir"
	LabelWrite host.Label = "spec.write"
	// LabelExtra marks writes of files that a spec mounts.
	LabelExtra  host.Label = "spec.extra"
	LabelRemove host.Label = "spec.remove"
)

// Store holds one driver's specs in a CDI directory.
type Store struct {
	host   *host.Host
	dir    string
	prefix string
}

const (
	suffix = ".json"
	// topologySuffix ends the name of a claim's file for NCCL; the runtime does not read it as a spec.
	topologySuffix = ".nccl.xml"
	// metadataSuffix and a number end the names of a claim's metadata files. Each has the number after the previous one's,
	// so that Remove finds them without listing the directory.
	metadataSuffix = ".metadata-"
)

// New returns a store. The first write creates the directory.
func New(h *host.Host, dir, driver string) *Store {
	return &Store{host: h, dir: dir, prefix: cdi.Vendor(driver) + "-" + cdi.Class + "_"}
}

func (s *Store) path(uid string) string { return filepath.Join(s.dir, s.prefix+uid+suffix) }

// Write writes the claim's spec, unless it already has this content.
func (s *Store) Write(uid string, data []byte) error {
	return s.write(LabelWrite, "write the CDI spec", s.path(uid), data)
}

// TopologyPath returns the path of the claim's file for NCCL.
func (s *Store) TopologyPath(uid string) string {
	return filepath.Join(s.dir, s.prefix+uid+topologySuffix)
}

// WriteTopology writes the claim's file for NCCL, unless it already has this content. Remove removes it too.
func (s *Store) WriteTopology(uid string, data []byte) error {
	return s.write(LabelExtra, "write the topology file for NCCL", s.TopologyPath(uid), data)
}

// MetadataPath returns the path of the claim's i-th metadata file.
func (s *Store) MetadataPath(uid string, i int) string {
	return filepath.Join(s.dir, s.prefix+uid+metadataSuffix+strconv.Itoa(i))
}

// WriteMetadata writes the claim's i-th metadata file, unless it already has this content. Files are written in order.
// Remove removes them too.
func (s *Store) WriteMetadata(uid string, i int, data []byte) error {
	return s.write(LabelExtra, "write the metadata of the claim's devices", s.MetadataPath(uid, i), data)
}

// ReadMetadata returns the claim's i-th metadata file. A missing one is fs.ErrNotExist.
func (s *Store) ReadMetadata(uid string, i int) ([]byte, error) {
	return s.host.ReadFile(s.MetadataPath(uid, i))
}

// metadataFiles returns the number of metadata files.
func (s *Store) metadataFiles(uid string) (n int) {
	for {
		if _, err := s.ReadMetadata(uid, n); errors.Is(err, fs.ErrNotExist) || n == resourceapi.DeviceRequestsMaxSize {
			return n
		}
		n++
	}
}

func (s *Store) write(label host.Label, attempt, path string, data []byte) error {
	if old, err := s.host.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	err := s.host.WriteDurable(label, path, data, 0o644)
	if errors.Is(err, fs.ErrNotExist) {
		if err := s.host.MkdirAll(LabelMkdir, 0o755, s.dir); err != nil {
			return fmt.Errorf("%s: create the CDI directory: %w", attempt, err)
		}
		err = s.host.WriteDurable(label, path, data, 0o644)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", attempt, err)
	}
	return nil
}

// Read returns the claim's spec. A missing one is fs.ErrNotExist.
func (s *Store) Read(uid string) ([]byte, error) { return s.host.ReadFile(s.path(uid)) }

// ReadTopology returns the claim's file for NCCL. A missing one is fs.ErrNotExist.
func (s *Store) ReadTopology(uid string) ([]byte, error) { return s.host.ReadFile(s.TopologyPath(uid)) }

// Remove removes the claim's spec, then its other files, the last metadata file first, and unfinished writes. Missing
// files are no error.
func (s *Store) Remove(uid string) error {
	if err := s.host.Remove(LabelRemove, s.path(uid)); err != nil {
		return fmt.Errorf("remove the CDI spec: %w", err)
	}
	if _, err := s.ReadTopology(uid); !errors.Is(err, fs.ErrNotExist) {
		if err := s.host.Remove(LabelRemove, s.TopologyPath(uid)); err != nil {
			return fmt.Errorf("remove the topology file for NCCL: %w", err)
		}
	}
	metadata := s.metadataFiles(uid)
	for i := metadata - 1; i >= 0; i-- {
		if err := s.removeMetadata(uid, i); err != nil {
			return err
		}
	}
	return s.removeUnfinished(uid, metadata)
}

func (s *Store) removeMetadata(uid string, i int) error {
	if err := s.host.Remove(LabelRemove, s.MetadataPath(uid, i)); err != nil {
		return fmt.Errorf("remove the metadata of the claim's devices: %w", err)
	}
	return nil
}

// RemoveAll is Remove, and finds metadata files after a missing one too.
func (s *Store) RemoveAll(uid string) error {
	if err := s.Remove(uid); err != nil {
		return err
	}
	names, unfinished, err := s.host.List(s.dir)
	if err != nil {
		return fmt.Errorf("list CDI specs: %w", err)
	}
	for _, name := range slices.Concat(names, unfinished) {
		number, ok := strings.CutPrefix(name, s.prefix+uid+metadataSuffix)
		i, err := strconv.Atoi(number)
		if !ok || err != nil {
			continue
		}
		if err := errors.Join(s.removeMetadata(uid, i), s.host.RemoveUnfinished(LabelRemove, s.MetadataPath(uid, i))); err != nil {
			return err
		}
	}
	return nil
}

// RemoveUnfinished removes unfinished writes of the claim's files.
func (s *Store) RemoveUnfinished(uid string) error {
	return s.removeUnfinished(uid, s.metadataFiles(uid))
}

// removeUnfinished expects no unfinished metadata file after the first one that was never written.
func (s *Store) removeUnfinished(uid string, metadata int) error {
	paths := []string{s.path(uid), s.TopologyPath(uid)}
	for i := range metadata + 1 {
		paths = append(paths, s.MetadataPath(uid, i))
	}
	for _, path := range paths {
		if err := s.host.RemoveUnfinished(LabelRemove, path); err != nil {
			return fmt.Errorf("remove an unfinished file of the CDI spec: %w", err)
		}
	}
	return nil
}

// Written lists the claims with a spec, sorted.
func (s *Store) Written() ([]string, error) {
	names, _, err := s.host.List(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list CDI specs: %w", err)
	}
	var uids []string
	for _, name := range names {
		if file, ours := strings.CutPrefix(name, s.prefix); ours && strings.HasSuffix(file, suffix) {
			uids = append(uids, strings.TrimSuffix(file, suffix))
		}
	}
	slices.Sort(uids)
	return uids, nil
}

// UIDs lists the claims with any file, complete or unfinished, sorted.
func (s *Store) UIDs() ([]string, error) {
	names, unfinished, err := s.host.List(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list CDI specs: %w", err)
	}
	var uids []string
	for _, name := range slices.Concat(names, unfinished) {
		file, ours := strings.CutPrefix(name, s.prefix)
		uid, isSpec := strings.CutSuffix(file, suffix)
		if !isSpec {
			uid, isSpec = strings.CutSuffix(file, topologySuffix)
		}
		if !isSpec {
			uid, _, isSpec = strings.Cut(file, metadataSuffix)
		}
		if ours && isSpec {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	return slices.Compact(uids), nil
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
