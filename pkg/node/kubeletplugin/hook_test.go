// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"gpu-dra-driver/internal/driverroot"
	"gpu-dra-driver/internal/host"
)

func TestInstallHook_SameOrOtherVersion_ReplacesOnlyTheOther(t *testing.T) {
	dir := t.TempDir()
	h := host.New(host.Options{})
	t.Cleanup(h.Close)
	source, target := filepath.Join(dir, "image"), filepath.Join(dir, HookName)
	install := func() error { return InstallHook(t.Context(), h, source, dir, HookName) }
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	inode := func() os.FileInfo {
		t.Helper()
		info, err := os.Stat(target)
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	if err := install(); err == nil || !strings.Contains(err.Error(), source) {
		t.Errorf("no hook anywhere: %v", err)
	}
	write(source, "")
	if err := install(); err == nil {
		t.Error("an empty hook was installed")
	}
	write(source, "version 1")
	if err := install(); err != nil {
		t.Fatal(err)
	}
	first := inode()
	if first.Mode().Perm() != 0o755 {
		t.Errorf("mode %v", first.Mode())
	}
	if err := install(); err != nil || !os.SameFile(first, inode()) {
		t.Errorf("the same hook was written again (%v)", err)
	}
	running, err := os.Open(target)
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	write(source, "version 2")
	if err := install(); err != nil || os.SameFile(first, inode()) {
		t.Errorf("another version was not installed beside the running one (%v)", err)
	}
	text := make([]byte, 20)
	if n, _ := running.Read(text); string(text[:n]) != "version 1" {
		t.Errorf("the hook that runs became %q", text[:n])
	}
	if err := os.Remove(source); err != nil {
		t.Fatal(err)
	}
	if err := install(); err != nil {
		t.Errorf("the one that is installed does not do without an image's: %v", err)
	}
}

func TestInstallHook_ImageWithAndWithoutHook_InstallsOrKeeps(t *testing.T) {
	dir := t.TempDir()
	h := host.New(host.Options{})
	t.Cleanup(h.Close)
	source := filepath.Join(dir, "image-hook")
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o755); err != nil {
		t.Fatal(err)
	}
	install := func() error { return InstallHook(t.Context(), h, source, data, HookName) }
	if err := install(); err == nil {
		t.Error("an image without a hook is fine")
	}
	for _, text := range []string{"one", "one", "two"} {
		if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := install(); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(data, HookName))
		if err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%v, %v", info, err)
		}
		if got, _ := os.ReadFile(filepath.Join(data, HookName)); string(got) != text {
			t.Errorf("installed %q, want %q", got, text)
		}
	}
	if err := os.Remove(source); err != nil {
		t.Fatal(err)
	}
	if err := install(); err != nil {
		t.Error("one that is installed does not stay:", err)
	}
}

func TestCheckHook_RunsOrNot_SaysWhatToDo(t *testing.T) {
	for name, test := range map[string]struct{ text, flags, file, want string }{
		"it runs":        {text: "#!/bin/sh\ntest \"$1\" = --version\n"},
		"it fails":       {text: "#!/bin/sh\necho GLIBC_2.34 not found\nexit 1\n", want: "GLIBC_2.34 not found"},
		"no ldconfig":    {text: "#!/bin/sh\n", file: "etc/passwd", want: "install ldconfig"},
		"no program":     {text: "text", want: "for its architecture"},
		"mounted noexec": {text: "#!/bin/sh\n", flags: "noexec", want: "mount it without noexec"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if test.flags != "" {
				if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOEXEC, ""); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
						t.Error(err)
					}
				})
			}
			if err := os.WriteFile(filepath.Join(dir, HookName), []byte(test.text), 0o755); err != nil {
				t.Fatal(err)
			}
			proc := t.TempDir()
			if test.file != "" {
				file := filepath.Join(proc, "1/root", test.file)
				if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			err := CheckHook(t.Context(), dir, driverroot.New(driverroot.Options{ProcRoot: proc}))
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Error(err)
			}
		})
	}
}
