// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// A lock's file can hold notes: lines that only the holder of the lock reads and writes. Notes are not durable: they
// survive a crash of the process, not of the machine, so a durable file must hold the same information.

// Notes reads the lines.
func (k *Lock) Notes() ([]string, error) {
	data, err := io.ReadAll(io.NewSectionReader(k.file, 0, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", k.key.path, err)
	}
	return slices.Collect(strings.FieldsSeq(string(data))), nil
}

// SetNotes replaces the lines if they differ from was, which Notes returned. One system call writes the new text, padded
// to the old length, so that a killed process leaves either the old lines or the new.
func (h *Host) SetNotes(label Label, k *Lock, was, lines []string) error {
	if slices.Equal(was, lines) {
		return nil
	}
	text := strings.Join(append(slices.Clone(lines), ""), "\n")
	size := int64(len(text))
	info, err := k.file.Stat()
	if err != nil {
		return fmt.Errorf("write %s: %w", k.key.path, err)
	}
	text += strings.Repeat("\n", int(max(0, info.Size()-size)))
	err = h.do(label, CallNote, k.key.path, func() error {
		if _, err := k.file.WriteAt([]byte(text), 0); err != nil {
			return err
		}
		return k.file.Truncate(size)
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", k.key.path, err)
	}
	return nil
}
