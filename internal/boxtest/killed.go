// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// victim marks the process that CheckKilled kills. made is the line that it prints.
const (
	victim = "BOXTEST_VICTIM"
	made   = "everything is made"
)

// endLimit is the time in which the processes of a killed test end.
const endLimit = 30 * time.Second

// CheckKilled runs the calling test again in a box of its own, as go test starts it. There, it calls leave, which
// starts processes, mounts or makes files, as the package's tests do. CheckKilled then kills that test with SIGTERM
// and SIGKILL, and checks that nothing is left. No other test of the package may run meanwhile: the calling test is
// not parallel.
func CheckKilled(t *testing.T, leave func()) {
	t.Helper()
	if os.Getenv(victim) != "" {
		leave()
		_, _ = os.Stdout.WriteString("\n" + made + "\n")
		for { // Go takes other waits for a deadlock.
			_ = unix.Pause()
		}
	}
	name := t.Name()
	for _, s := range []syscall.Signal{unix.SIGTERM, unix.SIGKILL} {
		t.Run(unix.SignalName(s), func(t *testing.T) { checkKilled(t, name, s) })
	}
}

func checkKilled(t *testing.T, name string, s syscall.Signal) {
	dir := t.TempDir()
	mounts, before := mountinfo(t), processes(t, nil)
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+regexp.QuoteMeta(name)+"$")
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, variable+"=") })
	cmd.Env = append(cmd.Env, victim+"=1", "TMPDIR="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	text := ""
	for lines := bufio.NewScanner(out); !strings.HasSuffix(text, made+"\n"); text += lines.Text() + "\n" {
		if !lines.Scan() {
			t.Fatalf("the test ended before its kill (%v):\n%s", cmd.Wait(), text)
		}
	}
	ends := map[int]*os.File{}
	for pid := range processes(t, before) {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil { // With an error, it has ended.
			ends[pid] = os.NewFile(uintptr(fd), strconv.Itoa(pid))
		}
	}
	if err := cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }() // A process that is left may hold it open.
	state, err := cmd.Process.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if got := code(state.Sys().(syscall.WaitStatus)); got != 128+int(s) {
		t.Errorf("its exit code is %d", got)
	}
	limit := time.Now().Add(endLimit)
	for _, end := range ends {
		// A process's descriptor becomes readable at its end.
		for {
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(end.Fd()), Events: unix.POLLIN}},
				max(0, int(time.Until(limit).Milliseconds())))
			if err != unix.EINTR {
				break
			}
		}
		_ = end.Close()
	}
	for pid, command := range processes(t, before) {
		t.Errorf("process %d is left: %s", pid, command)
	}
	for mount := range strings.Lines(mountinfo(t)) {
		if !strings.Contains(mounts, mount) {
			t.Errorf("a mount is left: %s", mount)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
}

func mountinfo(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// processes returns the commands of the box's processes that run and that are not in a map.
func processes(t *testing.T, but map[int]string) map[int]string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	out := map[int]string{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || but[pid] != "" {
			continue
		}
		// One that has ended and waits for its parent has none.
		if command, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline")); err == nil && len(command) > 0 {
			out[pid] = strings.ReplaceAll(string(command), "\x00", " ")
		}
	}
	return out
}
