// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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

// TestOtherDriver_ConnectFails_OnlyAListenerIsAnOwner asks for the socket's owner while connections fail in each way.
func TestOtherDriver_ConnectFails_OnlyAListenerIsAnOwner(t *testing.T) {
	const driver = "gpu.nvidia.com"
	listen := func(t *testing.T, path string) *net.UnixListener {
		t.Helper()
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l.(*net.UnixListener)
	}
	for name, c := range map[string]struct {
		prepare      func(t *testing.T, socket string)
		other, known bool
	}{
		"no socket":  {func(*testing.T, string) {}, false, true},
		"a listener": {func(t *testing.T, socket string) { listen(t, socket) }, true, true},
		"a listener that ended": {func(t *testing.T, socket string) {
			l := listen(t, socket)
			l.SetUnlinkOnClose(false)
			_ = l.Close()
		}, false, true},
		"a listener whose queue is full": {func(t *testing.T, socket string) {
			fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = syscall.Close(fd) })
			if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: socket}); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Listen(fd, 0); err != nil {
				t.Fatal(err)
			}
			conn, err := net.Dial("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
		}, true, true},
		"no file descriptor": {func(t *testing.T, _ string) {
			var limit syscall.Rlimit
			if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Max: limit.Max}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) })
		}, false, false},
		"a socket of another kind": {func(t *testing.T, socket string) {
			l, err := net.ListenPacket("unixgram", socket)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
		}, false, false},
		"a loop of links": {func(t *testing.T, socket string) {
			if err := os.Symlink(socket, socket); err != nil {
				t.Fatal(err)
			}
		}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "kp") // Sockets have little room for a path.
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			c.prepare(t, filepath.Join(dir, driver+"-reg.sock"))
			socket, err := otherDriver(t.Context(), dir, driver)
			if (socket != "") != c.other || (err == nil) != c.known {
				t.Errorf("owner %q, %v; want one: %v, known: %v", socket, err, c.other, c.known)
			}
		})
	}
	t.Run("a path that is too long", func(t *testing.T) {
		if socket, err := otherDriver(t.Context(), "/"+strings.Repeat("x", 120), driver); socket != "" || err == nil {
			t.Errorf("owner %q, %v", socket, err)
		}
	})
}
