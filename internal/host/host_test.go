// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// script is a tap that lists effects and makes one fail.
type script struct {
	before, after []string
	fail          string
}

var errScript = errors.New("as the script says")

func (s *script) Before(e Effect) error {
	s.before = append(s.before, e.String())
	if e.String() == s.fail {
		return errScript
	}
	return nil
}

func (s *script) After(e Effect) { s.after = append(s.after, e.String()) }

func TestDurableWriteIsWriteSyncRenameSyncDirectory(t *testing.T) {
	dir := t.TempDir()
	s := &script{}
	h := New(Options{Tap: s})
	path := filepath.Join(dir, "f")
	for _, text := range []string{"one", "two, longer", "3"} {
		s.before, s.after = nil, nil
		if err := h.WriteDurable("l", path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		want := []string{"l/write", "l/sync", "l/rename", "l/sync-dir"}
		if d := cmp.Diff(want, s.before) + cmp.Diff(want, s.after); d != "" {
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

func TestFailedWriteLeavesTheOldFileAndNoOther(t *testing.T) {
	for _, at := range []string{"l/write", "l/sync", "l/rename"} {
		t.Run(at, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "f")
			s := &script{}
			h := New(Options{Tap: s})
			if err := h.WriteDurable("l", path, []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			s.fail = at
			if err := h.WriteDurable("l", path, []byte("new"), 0o600); !errors.Is(err, errScript) {
				t.Fatal(err)
			}
			if got, _ := h.ReadFile(path); string(got) != "old" {
				t.Errorf("%q", got)
			}
			if un, err := h.Unfinished(dir); len(un) > 0 || err != nil {
				t.Errorf("unfinished %v, %v", un, err)
			}
		})
	}
	h := New(Options{Tap: &script{fail: "l/sync-dir"}})
	if err := h.WriteDurable("l", filepath.Join(t.TempDir(), "f"), nil, 0o600); !errors.Is(err, errScript) {
		t.Error("a name that may not be on disk was called durable:", err)
	}
}

func TestUnfinishedFilesAreListedTakenOverAndRemoved(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f.json")
	h := New(Options{})
	if err := os.WriteFile(filepath.Join(dir, ".f.json.tmp"), []byte("a longer rest of a crash"), 0o600); err != nil {
		t.Fatal(err)
	}
	list := func() (whole, unfinished []string) {
		whole, err := h.Names(dir)
		unfinished, err2 := h.Unfinished(dir)
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
	if names, err := h.Names(filepath.Join(dir, "none")); names != nil || err != nil {
		t.Errorf("%v, %v", names, err)
	}
	if _, err := h.Names(path); err == nil {
		t.Error("a file was listed")
	}
}

func TestRemoveIsDurableAndRepeatable(t *testing.T) {
	s := &script{}
	h := New(Options{Tap: s})
	path := filepath.Join(t.TempDir(), "f")
	if err := h.WriteDurable("w", path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.before = nil
	for range 2 {
		if err := h.Remove("l", path); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff([]string{"l/remove", "l/sync-dir", "l/remove"}, s.before); d != "" {
		t.Error(d)
	}
	if err := h.Remove("l", "/proc/self/stat"); err == nil {
		t.Error("removed from /proc")
	}
}

func TestDirectoriesAreSyncedIntoTheirParents(t *testing.T) {
	dir := t.TempDir()
	var synced []string
	h := New(Options{Tap: tapFunc(func(e Effect) {
		if rel, err := filepath.Rel(dir, e.Path); e.Op == OpSyncDir && err == nil && !strings.HasPrefix(rel, "..") {
			synced = append(synced, rel)
		}
	})})
	for i, want := range [][]string{{"a/b", "a", "."}, {"a/b", "a", "."}} {
		synced = nil
		if err := h.MkdirAll("l", filepath.Join(dir, "a/b/c"), 0o700); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, synced); d != "" {
			t.Errorf("call %d: %s", i, d)
		}
	}
	for _, op := range []string{"l/mkdir", "l/sync-dir"} {
		if err := New(Options{Tap: &script{fail: op}}).MkdirAll("l", filepath.Join(dir, "x"), 0o700); !errors.Is(err, errScript) {
			t.Error(op, err)
		}
	}
}

type tapFunc func(Effect)

func (tapFunc) Before(Effect) error { return nil }
func (f tapFunc) After(e Effect)    { f(e) }

func TestLinkNeedsNoReading(t *testing.T) {
	dir := t.TempDir()
	h := New(Options{Read: func(string) ([]byte, error) { return nil, errScript }})
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

func TestBootID(t *testing.T) {
	file := filepath.Join(t.TempDir(), "boot_id")
	h := New(Options{BootIDFile: file})
	if _, err := h.BootID(); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	for text, want := range map[string]string{"": "", " \n": "", "abc\n": "abc"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := h.BootID(); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	if id, err := New(Options{}).BootID(); err != nil || len(id) != 36 {
		t.Errorf("this machine's: %q, %v", id, err)
	}
}

func TestNow(t *testing.T) {
	if got := New(Options{}).Now(); time.Since(got) > time.Minute {
		t.Error(got)
	}
	want := time.Unix(7, 0)
	if got := New(Options{Now: func() time.Time { return want }}).Now(); got != want {
		t.Error(got)
	}
}
