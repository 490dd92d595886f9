// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNotes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l")
	s := &script{}
	h, other := New(Options{Tap: s}), New(Options{})
	var was []string
	for _, lines := range [][]string{{"a"}, {"a", "bb", strings.Repeat("c", 5000)}, {"bb"}, {"bb"}, nil, {"d"}} {
		l := mustLock(t, h, path, 0)
		if err := h.SetNotes("l", l, was, lines); err != nil {
			t.Fatal(err)
		}
		l.Release()
		l = mustLock(t, other, path, 0)
		got, err := l.Notes()
		l.Release()
		if d := cmp.Diff(lines, got); d != "" || err != nil {
			t.Fatal(d, err)
		}
		was = got
	}
	if len(s.before) != 5 {
		t.Errorf("notes that say so already were written: %v", s.before)
	}
	l := mustLock(t, h, path, 0)
	s.fail = "l/note"
	if err := h.SetNotes("l", l, was, []string{"e"}); !errors.Is(err, errScript) {
		t.Error(err)
	}
	h.Close()
	if _, err := l.Notes(); err == nil {
		t.Error("read through a closed host")
	}
	if err := h.SetNotes("l", l, was, []string{"e"}); err == nil {
		t.Error("written through a closed host")
	}
}

// TestNotesOfAKilledProcess stops where a kill can: between the system calls of a change.
func TestNotesOfAKilledProcess(t *testing.T) {
	h := New(Options{})
	l := mustLock(t, h, filepath.Join(t.TempDir(), "l"), 0)
	long := []string{strings.Repeat("a", 36), strings.Repeat("b", 36), strings.Repeat("c", 36)}
	if err := h.SetNotes("l", l, nil, long); err != nil {
		t.Fatal(err)
	}
	// The new lines padded over the old, and no truncation any more.
	padded := "x\n" + strings.Repeat("\n", 3*37-2)
	if _, err := l.file.WriteAt([]byte(padded), 0); err != nil {
		t.Fatal(err)
	}
	got, err := l.Notes()
	if d := cmp.Diff([]string{"x"}, got); d != "" || err != nil {
		t.Error(d, err)
	}
}
