// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"fmt"
	"io"
	"slices"
)

// A lock's file can hold notes: lines that whoever holds the lock reads and writes. They are not durable, and survive
// the death of a process but not that of the machine: what they say must be found elsewhere too.

// Notes reads the lines.
func (k *Lock) Notes() ([]string, error) {
	data, err := io.ReadAll(io.NewSectionReader(k.file, 0, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", k.key.path, err)
	}
	var lines []string
	for line := range bytes.FieldsSeq(data) {
		lines = append(lines, string(line))
	}
	return lines, nil
}

// SetNotes replaces the lines if they differ from was, which Notes returned. The new text goes out in one system call, padded over the old, so that a killed
// process leaves either the old lines or the new.
func (h *Host) SetNotes(label Label, k *Lock, was, lines []string) error {
	if slices.Equal(was, lines) {
		return nil
	}
	var text bytes.Buffer
	for _, line := range lines {
		text.WriteString(line)
		text.WriteByte('\n')
	}
	size := int64(text.Len())
	info, err := k.file.Stat()
	if err != nil {
		return fmt.Errorf("write %s: %w", k.key.path, err)
	}
	for int64(text.Len()) < info.Size() {
		text.WriteByte('\n')
	}
	err = h.do(Effect{label, OpNote, k.key.path}, func() error {
		if _, err := k.file.WriteAt(text.Bytes(), 0); err != nil {
			return err
		}
		return k.file.Truncate(size)
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", k.key.path, err)
	}
	return nil
}
