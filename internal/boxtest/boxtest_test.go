// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { Main(m) }

// TestMain_Killed_LeavesNothing leaves a process that is no longer the test's child, one that ignores signals, a mount and a file.
func TestMain_Killed_LeavesNothing(t *testing.T) {
	CheckKilled(t, func() {
		for _, script := range []string{"setsid sleep 600 &", "trap '' TERM HUP INT; sleep 600 & echo $!"} {
			cmd := exec.Command("sh", "-c", script)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			if err := cmd.Run(); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Mount("left", t.TempDir(), "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
	})
}

// run runs the test's binary as go test does, with a test that does the task.
func run(t *testing.T, task string, change func(*exec.Cmd), args ...string) (output string, code int) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", append([]string{"-test.run=^TestTask$", "-test.v"}, args...)...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, variable+"=") })
	cmd.Env = append(cmd.Env, "BOXTEST_TASK="+task)
	if change != nil {
		change(cmd)
	}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// TestTask does what the variable BOXTEST_TASK says, for the tests below.
func TestTask(t *testing.T) {
	switch os.Getenv("BOXTEST_TASK") {
	case "fail":
		t.Error("failed")
	case "exit":
		os.Exit(7)
	case "signal":
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		for {
			_ = unix.Pause()
		}
	case "hang":
		for {
			_ = unix.Pause()
		}
	case "orphans":
		// The shell ends before its child, which is then the first process's.
		cmd := exec.Command("sh", "-c", "cat <&3 >/dev/null 2>&1 & echo $!")
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.ExtraFiles = []*os.File{r}
		pid, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		proc := filepath.Join("/proc", strings.TrimSpace(string(pid)))
		if _, err := os.Stat(proc); err != nil {
			t.Error(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		for err == nil { // The entry of a process without a parent that waits stays.
			_, err = os.Stat(proc)
		}
	}
}

func TestMain_TestsEnd_KeepsOutputAndCode(t *testing.T) {
	for task, want := range map[string]struct {
		code int
		text string
	}{
		"": {0, "--- PASS: TestTask"}, "fail": {1, "--- FAIL: TestTask"}, "exit": {7, "TestTask"}, "signal": {137, "TestTask"},
		"orphans": {0, "--- PASS: TestTask"},
	} {
		if out, code := run(t, task, nil); code != want.code || !strings.Contains(out, want.text) {
			t.Errorf("%q: %d, want %d and %q:\n%s", task, code, want.code, want.text, out)
		}
	}
}

// TestMain_Flags_WriteTheirFiles has the files that go test reads: without the log of files and variables, it caches no result.
func TestMain_Flags_WriteTheirFiles(t *testing.T) {
	dir := t.TempDir()
	log, profile := filepath.Join(dir, "log"), filepath.Join(dir, "profile")
	if out, code := run(t, "", nil, "-test.testlogfile="+log, "-test.memprofile="+profile); code != 0 {
		t.Fatalf("%d: %s", code, out)
	}
	if text, err := os.ReadFile(log); err != nil || !strings.Contains(string(text), "getenv BOXTEST_TASK") {
		t.Errorf("%q, %v", text, err)
	}
	if info, err := os.Stat(profile); err != nil || info.Size() == 0 {
		t.Error(err)
	}
	if out, code := run(t, "hang", nil, "-test.timeout=10ms"); code != 2 || !strings.Contains(out, "test timed out after 10ms") {
		t.Errorf("%d: %s", code, out)
	}
}

func TestMain_NotRoot_SaysWhatIsNeeded(t *testing.T) {
	out, code := run(t, "", func(c *exec.Cmd) {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	})
	if code != 1 || !strings.Contains(out, "need root") {
		t.Errorf("%d: %s", code, out)
	}
}

// TestMain_Box_HasItsOwnProcessesAndFiles looks from inside.
func TestMain_Box_HasItsOwnProcessesAndFiles(t *testing.T) {
	if first, err := os.ReadFile("/proc/1/cmdline"); err != nil || !strings.HasPrefix(string(first), os.Args[0]) {
		t.Errorf("process 1 is %q, %v", first, err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(os.TempDir(), &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		t.Errorf("%s has the type %x, %v", os.TempDir(), fs.Type, err)
	}
	if text := fmt.Sprint(os.Environ()); strings.Contains(text, variable+"="+roleFirst) {
		t.Errorf("the environment is %s", text)
	}
}
