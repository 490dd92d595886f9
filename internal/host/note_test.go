// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/host/hosttest"
)

func lock(t *testing.T, h *host.Host, path string) *host.Lock {
	t.Helper()
	l, err := h.Lock(context.Background(), path, 0)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestSetNotes_Lines_ReadByOtherProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l")
	f := hosttest.Trace()
	f.Arm()
	h, other := host.New(host.Options{FaultHook: f.Do}), host.New(host.Options{})
	var was []string
	for _, lines := range [][]string{{"a"}, {"a", "bb", strings.Repeat("c", 5000)}, {"bb"}, {"bb"}, nil, {"d"}} {
		l := lock(t, h, path)
		if err := h.SetNotes("l", l, was, lines); err != nil {
			t.Fatal(err)
		}
		l.Release()
		l = lock(t, other, path)
		got, err := l.Notes()
		l.Release()
		if d := cmp.Diff(lines, got); d != "" || err != nil {
			t.Fatal(d, err)
		}
		was = got
	}
	if got := calls(f); len(got) != 5 {
		t.Errorf("SetNotes wrote unchanged notes: %v", got)
	}
	f = failing("l/note")
	f.Arm()
	h = host.New(host.Options{FaultHook: f.Do})
	l := lock(t, h, path)
	if err := h.SetNotes("l", l, was, []string{"e"}); !errors.Is(err, hosttest.ErrInjected) {
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

// TestSetNotes_KilledBeforeTruncate_ReadsNewLines stops where a kill can: between the system calls of a change.
func TestSetNotes_KilledBeforeTruncate_ReadsNewLines(t *testing.T) {
	h := host.New(host.Options{})
	path := filepath.Join(t.TempDir(), "l")
	l := lock(t, h, path)
	long := []string{strings.Repeat("a", 36), strings.Repeat("b", 36), strings.Repeat("c", 36)}
	if err := h.SetNotes("l", l, nil, long); err != nil {
		t.Fatal(err)
	}
	// The new lines are padded to the old length; the truncation is missing.
	padded := "x\n" + strings.Repeat("\n", 3*37-2)
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt([]byte(padded), 0); err != nil {
		t.Fatal(err)
	}
	got, err := l.Notes()
	if d := cmp.Diff([]string{"x"}, got); d != "" || err != nil {
		t.Error(d, err)
	}
}

// TestSetNotes_DiskTakesPart_LeavesNone: some of the lines could pass for all of them.
func TestSetNotes_DiskTakesPart_LeavesNone(t *testing.T) {
	at := t.TempDir()
	var disk *os.File // It keeps the file system, which is mounted nowhere once the thread has ended.
	err := inMounts(func() error {
		err := unix.Mount("notes", at, "tmpfs", 0, "size=4k") // It needs root, as the driver does.
		if err == nil {
			disk, err = os.Open(at)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	h := host.New(host.Options{})
	t.Cleanup(h.Close)
	l := lock(t, h, fmt.Sprintf("/proc/self/fd/%d/l", disk.Fd()))
	lines := []string{"boot"}
	for n := range 100 {
		lines = append(lines, fmt.Sprintf("%036d", n))
	}
	if err := h.SetNotes("l", l, nil, lines); err != nil {
		t.Fatal(err)
	}
	more := slices.Clone(lines)
	for n := range 20 {
		more = append(more, fmt.Sprintf("%036d", 100+n))
	}
	if err := h.SetNotes("l", l, lines, more); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if got, err := l.Notes(); len(got) > 0 || err != nil {
		t.Errorf("%d lines are left, %v", len(got), err)
	}
}
