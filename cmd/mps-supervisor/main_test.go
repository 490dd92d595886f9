// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpu-dra-driver/internal/boxtest"
	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/internal/mpsd/supervisor"
	"gpu-dra-driver/sim/simtest"
)

func TestRun_InvalidCommandLine_ExitsWith2(t *testing.T) {
	for _, args := range [][]string{{"--odd"}, {"word"}, {"--mps-dir=relative"}, {"--mps-shm-size=64M"}, {"--mps-shm-size=0%"}, {"--mps-shm-size=100%"}, {"--mps-shm-size=1Ki"}, {"--mps-shm-size=-1Mi"}} {
		var out, errOut bytes.Buffer
		if code := run(t.Context(), args, nil, &out, &errOut); code != 2 || errOut.Len() == 0 {
			t.Errorf("%v: %d, %s", args, code, &errOut)
		}
	}
	for _, args := range [][]string{{"--help"}, {"--version"}} {
		var out, errOut bytes.Buffer
		if code := run(t.Context(), args, nil, &out, &errOut); code != 0 {
			t.Errorf("%v: %d", args, code)
		}
	}
	var out, errOut bytes.Buffer
	if code := run(t.Context(), []string{"enter", "{"}, nil, &out, &errOut); code != 1 || !strings.Contains(errOut.String(), "read what to enter") {
		t.Errorf("%d, %s", code, &errOut)
	}
}

// TestMain lets the test's binary run as an MPS process, as the program's binary does.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == supervisor.EnterVerb {
		os.Exit(run(context.Background(), os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
	}
	boxtest.Main(m)
}

// TestRun_EachOption_HasItsEffect runs the program over a simulated machine, with a daemon, until it is ended. The driver root has no
// device nodes.
func TestRun_EachOption_HasItsEffect(t *testing.T) {
	t.Setenv("TMPDIR", "/var/tmp") // An MPS daemon has a /tmp of its own.
	machine := simtest.Root(t, "hgx-h100", nil)
	dir, err := os.MkdirTemp("", "mps") // A socket's path must be short.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	environ := []string{
		"MPS_DIR=" + filepath.Join(dir, "mps"), "DRIVER_ROOT=" + filepath.Join(machine.Path, "usr"), "DEV_ROOT=" + machine.Path,
		"BOOT_ID_FILE=" + machine.BootIDFile, "MPS_SHM_SIZE=8Mi",
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	var out, errOut bytes.Buffer
	go func() { ended <- run(ctx, nil, environ, &out, &errOut) }()
	socket := filepath.Join(dir, "mps", mpsd.SocketName)
	for {
		if conn, err := net.Dial("unix", socket); err == nil {
			_ = conn.Close()
			break
		}
		select {
		case code := <-ended:
			t.Fatalf("it ended with %d: %s", code, &errOut)
		case <-time.After(time.Millisecond):
		}
	}
	checked := func() int {
		var out, errOut bytes.Buffer
		return run(t.Context(), []string{"check"}, environ, &out, &errOut)
	}
	if code := checked(); code != 0 {
		t.Errorf("it answers, and the check says %d", code)
	}
	client := mpsd.NewClient(socket)
	list, err := client.List(t.Context(), "")
	if err != nil || len(list.Daemons) != 0 || list.Version == "" {
		t.Errorf("%+v, %v", list, err)
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v, %v", info.Mode(), err)
	}
	state, err := machine.State()
	if err != nil {
		t.Fatal(err)
	}
	const device = "gpu-0000-1b-00-0"
	status, err := client.Ensure(t.Context(), mpsd.Daemon{Name: device, UUID: state.GPUs[0].UUID})
	if err != nil || status.PID == 0 {
		t.Fatalf("the daemon of the driver root: %+v, %v", status, err)
	}
	t.Cleanup(func() { _ = unix.Kill(-status.PID, unix.SIGKILL) }) // For a program that does not end it.
	if _, err := os.Lstat(fmt.Sprintf("/proc/%d/root/dev/nvidia0", status.PID)); err != nil {
		t.Errorf("the daemon has no device nodes: %v", err)
	}
	var shm unix.Statfs_t
	if err := unix.Statfs(filepath.Join(dir, "mps", device, "shm"), &shm); err != nil || shm.Blocks*uint64(shm.Bsize) != 8<<20 {
		t.Errorf("the shared memory has %d bytes: %v", shm.Blocks*uint64(shm.Bsize), err)
	}
	boot, err := os.ReadFile(machine.BootIDFile)
	if err != nil {
		t.Fatal(err)
	}
	if note, err := os.ReadFile(filepath.Join(dir, "mps", device, "daemon.json")); err != nil || !strings.Contains(string(note), `"bootID":"`+strings.TrimSpace(string(boot))+`"`) {
		t.Errorf("the note for the next supervisor is %s, %v", note, err)
	}
	if percent := debug.SetGCPercent(100); percent != 20 {
		t.Errorf("garbage is collected at %d %%", percent)
	}
	cancel()
	if code := <-ended; code != 0 {
		t.Errorf("it ended with %d: %s", code, &errOut)
	}
	if err := unix.Kill(status.PID, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("the daemon outlives the program: %v", err)
	}
	if err := unix.Unmount(filepath.Join(dir, "mps", device, "shm"), 0); err != nil { // It stays for the next supervisor.
		t.Error(err)
	}
	if text := errOut.String(); !strings.Contains(text, "daemons in "+filepath.Join(dir, "mps")) || !strings.Contains(text, "daemon of "+device) {
		t.Errorf("the log is %s", text)
	}
	if code := checked(); code != 1 {
		t.Errorf("without a supervisor, the check returns %d", code)
	}
}
