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
	"strings"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/pkg/cdi"
)

const (
	LabelMkdir  host.Label = "spec.mkdir"
	LabelWrite  host.Label = "spec.write"
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
)

// New returns a store. The first write creates the directory.
func New(h *host.Host, dir, driver string) *Store {
	return &Store{host: h, dir: dir, prefix: cdi.Vendor(driver) + "-" + cdi.Class + "_"}
}

func (s *Store) path(uid string) string { return filepath.Join(s.dir, s.prefix+uid+suffix) }

// Write writes the claim's spec, unless it already has this content.
func (s *Store) Write(uid string, data []byte) error {
	return s.write("write the CDI spec", s.path(uid), data)
}

// TopologyPath returns the path of the claim's file for NCCL.
func (s *Store) TopologyPath(uid string) string {
	return filepath.Join(s.dir, s.prefix+uid+topologySuffix)
}

// WriteTopology writes the claim's file for NCCL, unless it already has this content. Remove removes it too.
func (s *Store) WriteTopology(uid string, data []byte) error {
	return s.write("write the topology file for NCCL", s.TopologyPath(uid), data)
}

func (s *Store) write(attempt, path string, data []byte) error {
	if old, err := s.host.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	err := s.host.WriteDurable(LabelWrite, path, data, 0o644)
	if errors.Is(err, fs.ErrNotExist) {
		if err := s.host.MkdirAll(LabelMkdir, 0o755, s.dir); err != nil {
			return fmt.Errorf("%s: create the CDI directory: %w", attempt, err)
		}
		err = s.host.WriteDurable(LabelWrite, path, data, 0o644)
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

// Remove removes the claim's spec, then its file for NCCL, and unfinished writes. Missing files are no error.
func (s *Store) Remove(uid string) error {
	if err := s.host.Remove(LabelRemove, s.path(uid)); err != nil {
		return fmt.Errorf("remove the CDI spec: %w", err)
	}
	if _, err := s.ReadTopology(uid); !errors.Is(err, fs.ErrNotExist) {
		if err := s.host.Remove(LabelRemove, s.TopologyPath(uid)); err != nil {
			return fmt.Errorf("remove the topology file for NCCL: %w", err)
		}
	}
	return s.RemoveUnfinished(uid)
}

// RemoveUnfinished removes unfinished writes of the claim's spec.
func (s *Store) RemoveUnfinished(uid string) error {
	for _, path := range []string{s.path(uid), s.TopologyPath(uid)} {
		if err := s.host.RemoveUnfinished(LabelRemove, path); err != nil {
			return fmt.Errorf("remove an unfinished file of the CDI spec: %w", err)
		}
	}
	return nil
}

// UIDs lists the claims with a complete or unfinished spec, sorted.
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
