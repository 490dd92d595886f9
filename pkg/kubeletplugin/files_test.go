// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpu-dra-driver/internal/host"
)

func TestTheHookIsInstalledWholeAndOnlyWhenItDiffers(t *testing.T) {
	dir := t.TempDir()
	h := host.New(host.Options{})
	t.Cleanup(h.Close)
	source, target := filepath.Join(dir, "image"), filepath.Join(dir, HookName)
	install := func() error { return InstallHook(t.Context(), h, source, dir) }
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

func TestOnlySocketsOfKilledInstancesAreRemoved(t *testing.T) {
	dir, err := os.MkdirTemp("", "kp") // Sockets have little room for a path.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	data, registrar := filepath.Join(dir, "d"), filepath.Join(dir, "r")
	for _, d := range []string{data, registrar} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	socket := func(path string, alive bool, age time.Duration) string {
		t.Helper()
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		if !alive {
			_ = l.Close()
		} else {
			t.Cleanup(func() { _ = l.Close() })
		}
		then := time.Now().Add(-age)
		if err := os.Chtimes(path, then, then); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file := filepath.Join(data, "dra-file.sock")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	old := 2 * staleAge
	stays := []string{
		socket(filepath.Join(data, "dra-alive.sock"), true, old),
		socket(filepath.Join(data, "dra-young.sock"), false, 0),
		socket(filepath.Join(registrar, "gpu.nvidia.com-alive-reg.sock"), true, old),
		socket(filepath.Join(registrar, "nic.example.com-dead-reg.sock"), false, old),
		socket(filepath.Join(registrar, "nic.example.com-reg.sock"), false, old),
		file,
	}
	goes := []string{
		socket(filepath.Join(data, "dra-dead.sock"), false, old),
		socket(filepath.Join(registrar, "gpu.nvidia.com-dead-reg.sock"), false, old),
	}
	removeStale(t.Context(), data, registrar, "gpu.nvidia.com")
	for _, path := range stays {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("%s should stay: %v", path, err)
		}
	}
	for _, path := range goes {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s should be gone", path)
		}
	}
}
