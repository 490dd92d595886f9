// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package store keeps CDI specs on disk, one file a claim, named by the claim's UID.
//
// The CDI library's own writer does not flush, so the host border writes. The directory is shared with other drivers
// and usually on tmpfs: after a reboot it is empty, and nothing may be concluded from a file's absence but absence.
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

// Store is one driver's specs in a CDI directory.
type Store struct {
	host   *host.Host
	dir    string
	prefix string
}

const (
	suffix = ".json"
	// topologySuffix is of the file for NCCL that a claim's spec mounts; the runtime takes it for no spec.
	topologySuffix = ".nccl.xml"
)

// New names a store; the directory is made with the first spec.
func New(h *host.Host, dir, driver string) *Store {
	return &Store{host: h, dir: dir, prefix: cdi.Vendor(driver) + "-" + cdi.Class + "_"}
}

func (s *Store) path(uid string) string { return filepath.Join(s.dir, s.prefix+uid+suffix) }

// Write makes the claim's spec what data says. A spec that says it already is not written.
func (s *Store) Write(uid string, data []byte) error {
	return s.write("write the CDI spec", s.path(uid), data)
}

// TopologyPath is where the claim's file for NCCL is.
func (s *Store) TopologyPath(uid string) string {
	return filepath.Join(s.dir, s.prefix+uid+topologySuffix)
}

// WriteTopology makes the claim's file for NCCL what data says. It goes with the spec.
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
			return fmt.Errorf("%s: make the CDI directory: %w", attempt, err)
		}
		err = s.host.WriteDurable(LabelWrite, path, data, 0o644)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", attempt, err)
	}
	return nil
}

// Read gives the claim's spec. A missing one is fs.ErrNotExist.
func (s *Store) Read(uid string) ([]byte, error) { return s.host.ReadFile(s.path(uid)) }

// ReadTopology gives the claim's file for NCCL. A missing one is fs.ErrNotExist.
func (s *Store) ReadTopology(uid string) ([]byte, error) { return s.host.ReadFile(s.TopologyPath(uid)) }

// Remove removes the claim's spec, then the file that it mounts, and what an interrupted write left. None there is a
// success.
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

// RemoveUnfinished removes what an interrupted write of the claim's spec left.
func (s *Store) RemoveUnfinished(uid string) error {
	for _, path := range []string{s.path(uid), s.TopologyPath(uid)} {
		if err := s.host.RemoveUnfinished(LabelRemove, path); err != nil {
			return fmt.Errorf("remove an unfinished file of the CDI spec: %w", err)
		}
	}
	return nil
}

// UIDs lists the claims that have a spec, whole or unfinished, in order.
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

// ErrUnlinked says that the CDI directory was deleted and this process is left with its corpse, through a mount.
var ErrUnlinked = errors.New("the CDI directory was deleted and the container's mount of it leads nowhere")

// Usable is ErrUnlinked where no spec can ever be written again by this process.
func (s *Store) Usable() error {
	gone, err := s.host.Unlinked(s.dir)
	if err == nil && gone {
		err = ErrUnlinked
	}
	return err
}
