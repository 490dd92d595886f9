// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/host/hosttest"
)

// calls lists the operations that a Faults has counted, as text.
func calls(f *hosttest.Faults) (out []string) {
	for _, o := range f.Seen() {
		out = append(out, o.String())
	}
	return out
}

// failing makes the operations with a text such as "label/write" fail.
func failing(operation string) *hosttest.Faults {
	return hosttest.FailAll(func(o host.Operation) bool { return o.String() == operation }, nil)
}

func TestWriteDurable_NewAndOldFile_WritesSyncsRenamesSyncsDirectory(t *testing.T) {
	dir := t.TempDir()
	f := hosttest.Trace()
	h := host.New(host.Options{FaultHook: f.Do})
	path := filepath.Join(dir, "f")
	for _, text := range []string{"one", "two, longer", "3"} {
		f.Arm()
		if err := h.WriteDurable("l", path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		want := []string{"l/write", "l/sync", "l/rename", "l/sync-dir"}
		if d := cmp.Diff(want, calls(f)); d != "" {
			t.Error(d)
		}
		if got, err := h.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("%q, %v", got, err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o640 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestWriteDurable_OperationFails_KeepsOldFileAndNoOther(t *testing.T) {
	for _, at := range []string{"l/write", "l/sync", "l/rename"} {
		t.Run(at, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "f")
			f := failing(at)
			h := host.New(host.Options{FaultHook: f.Do})
			if err := h.WriteDurable("l", path, []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			f.Arm()
			if err := h.WriteDurable("l", path, []byte("new"), 0o600); !errors.Is(err, hosttest.ErrInjected) {
				t.Fatal(err)
			}
			if got, _ := h.ReadFile(path); string(got) != "old" {
				t.Errorf("%q", got)
			}
			if _, un, err := h.List(dir); len(un) > 0 || err != nil {
				t.Errorf("unfinished %v, %v", un, err)
			}
		})
	}
	f := failing("l/sync-dir")
	f.Arm()
	h := host.New(host.Options{FaultHook: f.Do})
	if err := h.WriteDurable("l", filepath.Join(t.TempDir(), "f"), nil, 0o600); !errors.Is(err, hosttest.ErrInjected) {
		t.Error("a name that may not be on disk was called durable:", err)
	}
}

func TestWriteAtomic_OperationFails_KeepsOldFileAndNoOther(t *testing.T) {
	for _, at := range []string{"l/write", "l/rename"} {
		dir := t.TempDir()
		path := filepath.Join(dir, "f")
		f := failing(at)
		h := host.New(host.Options{FaultHook: f.Do})
		if err := h.WriteAtomic("l", path, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		f.Arm()
		if err := h.WriteAtomic("l", path, []byte("new"), 0o600); !errors.Is(err, hosttest.ErrInjected) {
			t.Fatal(err)
		}
		if got, _ := h.ReadFile(path); string(got) != "old" {
			t.Errorf("%s: %q", at, got)
		}
		if _, un, err := h.List(dir); len(un) > 0 || err != nil {
			t.Errorf("%s: unfinished %v, %v", at, un, err)
		}
	}
}

func TestUnfinished_TemporaryFileOfCrash_ListedReusedAndRemoved(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f.json")
	h := host.New(host.Options{})
	if err := os.WriteFile(filepath.Join(dir, ".f.json.tmp"), []byte("a longer rest of a crash"), 0o600); err != nil {
		t.Fatal(err)
	}
	list := func() (whole, unfinished []string) {
		whole, _, err := h.List(dir)
		_, unfinished, err2 := h.List(dir)
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		return whole, unfinished
	}
	if whole, un := list(); len(whole) > 0 || len(un) != 1 || un[0] != "f.json" {
		t.Errorf("%v, %v", whole, un)
	}
	if err := h.WriteDurable("l", path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, _ := h.ReadFile(path); string(got) != "x" {
		t.Errorf("%q", got)
	}
	if whole, un := list(); len(whole) != 1 || len(un) > 0 {
		t.Errorf("%v, %v", whole, un)
	}
	if err := os.WriteFile(filepath.Join(dir, ".f.json.tmp"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := h.RemoveUnfinished("l", path); err != nil {
		t.Fatal(err)
	}
	if whole, un := list(); len(whole) != 1 || len(un) > 0 {
		t.Errorf("%v, %v", whole, un)
	}
	if names, _, err := h.List(filepath.Join(dir, "none")); names != nil || err != nil {
		t.Errorf("%v, %v", names, err)
	}
	if _, _, err := h.List(path); err == nil {
		t.Error("a file was listed")
	}
}

func TestRemove_Twice_SucceedsAndSyncsDirectory(t *testing.T) {
	f := hosttest.Trace()
	h := host.New(host.Options{FaultHook: f.Do})
	path := filepath.Join(t.TempDir(), "f")
	if err := h.WriteDurable("w", path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f.Arm()
	for range 2 {
		if err := h.Remove("l", path); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff([]string{"l/remove", "l/sync-dir", "l/remove"}, calls(f)); d != "" {
		t.Error(d)
	}
	if err := h.Remove("l", "/proc/self/stat"); err == nil {
		t.Error("removed from /proc")
	}
}

func TestMkdirAll_NewAndExisting_SyncsEveryParent(t *testing.T) {
	dir := t.TempDir()
	var synced []string
	h := host.New(host.Options{FaultHook: func(o host.Operation, do func() error) error {
		if rel, err := filepath.Rel(dir, o.Path); o.Call == host.CallSyncDir && err == nil && !strings.HasPrefix(rel, "..") {
			synced = append(synced, rel)
		}
		return do()
	}})
	for i, want := range [][]string{{"a/b", "a", "."}, {"a/b", "a", "."}} {
		synced = nil
		if err := h.MkdirAll("l", 0o700, filepath.Join(dir, "a/b/c")); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, synced); d != "" {
			t.Errorf("call %d: %s", i, d)
		}
	}
	for _, op := range []string{"l/mkdir", "l/sync-dir"} {
		f := failing(op)
		f.Arm()
		h := host.New(host.Options{FaultHook: f.Do})
		if err := h.MkdirAll("l", 0o700, filepath.Join(dir, "x")); !errors.Is(err, hosttest.ErrInjected) {
			t.Error(op, err)
		}
	}
}

// TestRead_OneReadFails_ReadsAgain checks that one bad read is not a bad sector, for files and for notes.
func TestRead_OneReadFails_ReadsAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l")
	reads := 0
	h := host.New(host.Options{ReadFile: func(path string) ([]byte, error) {
		if reads++; reads%2 == 1 {
			return nil, &os.PathError{Op: "read", Path: path, Err: syscall.EIO}
		}
		return os.ReadFile(path)
	}})
	l := lock(t, h, path)
	defer l.Release()
	if err := h.SetNotes("l", l, nil, []string{"a"}); err != nil {
		t.Fatal(err)
	}
	if data, err := h.ReadFile(path); string(data) != "a\n" || err != nil {
		t.Errorf("file %q, %v", data, err)
	}
	if notes, err := l.Notes(); len(notes) != 1 || err != nil {
		t.Errorf("notes %q, %v", notes, err)
	}
	h = host.New(host.Options{ReadFile: func(string) ([]byte, error) { reads++; return nil, syscall.EACCES }})
	reads = 0
	if _, err := h.ReadFile(path); !errors.Is(err, syscall.EACCES) || reads != 1 {
		t.Errorf("%d reads, %v", reads, err)
	}
}

func TestLink_UnreadableFile_Succeeds(t *testing.T) {
	dir := t.TempDir()
	h := host.New(host.Options{ReadFile: func(string) ([]byte, error) { return nil, hosttest.ErrInjected }})
	from, to := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	if err := h.Link("l", from, to); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := os.WriteFile(from, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := h.Link("l", from, to); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(to); err != nil || string(got) != "x" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestUnlinked_RemovedDirectoryStillOpen_True opens the removed directory through /proc/self/fd, as a container's
// mount does.
func TestUnlinked_RemovedDirectoryStillOpen_True(t *testing.T) {
	h := host.New(host.Options{})
	dir := filepath.Join(t.TempDir(), "cdi")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	seen := fmt.Sprintf("/proc/self/fd/%d/.", f.Fd())
	if gone, err := h.Unlinked(seen); gone || err != nil {
		t.Errorf("Unlinked of a directory that is there: %v, %v", gone, err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if gone, err := h.Unlinked(seen); !gone || err != nil {
		t.Errorf("Unlinked of a deleted directory: %v, %v", gone, err)
	}
	if gone, err := h.Unlinked(dir); gone || err != nil {
		t.Errorf("Unlinked of a name that is free: %v, %v; the directory can be made again", gone, err)
	}
}
