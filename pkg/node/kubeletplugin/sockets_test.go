// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestRemoveStale_Sockets_RemovesThoseOfKilledInstances(t *testing.T) {
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
		socket(filepath.Join(data, "dra-future.sock"), false, -time.Hour),
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
