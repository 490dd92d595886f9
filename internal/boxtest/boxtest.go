// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package boxtest runs the tests of a package in a box: in PID and mount namespaces of their own, with temporary files
// in memory. A signal that ends the test ends every process that it started, and its mounts and temporary files vanish.
//
// A package whose tests start processes, mount or make device nodes has a TestMain that calls Main, and a test that
// calls CheckKilled. The binary that go test starts waits outside. It starts itself as the box's first process, and
// that one starts itself as the tests. The kernel ends all processes of a PID namespace with the first one.
//
// Traps: TMPDIR is a tmpfs, where a sync to disk does nothing. NVML and MPS of real GPUs name processes by their
// numbers outside of the box. Cgroups outlive it.
package boxtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// variable has the role of a process that this package started. Processes of the tests inherit the last one.
const (
	variable  = "BOXTEST"
	roleFirst = "first"
	roleTests = "tests"
)

// aliveFD is the end of a pipe that the first process reads. The process outside holds the other end.
const aliveFD = 3

// Main runs the tests in a box and exits with their code. A signal's code is 128 and its number, as of a shell.
func Main(m *testing.M) {
	Enter()
	os.Exit(m.Run())
}

// Enter returns in the box. Outside, it runs this process again in a box and exits with the code of that one. It needs
// the main goroutine, whose thread stays.
func Enter() {
	var code int
	var err error
	switch os.Getenv(variable) {
	case roleTests:
		return
	case roleFirst:
		code, err = first()
	default:
		code, err = outside()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "run the tests in a box:", err)
		code = 1
	}
	os.Exit(code)
}

// again returns a command that runs this process again, in a role.
func again(role string) *exec.Cmd {
	cmd := exec.CommandContext(context.Background(), "/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), variable+"="+role)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd
}

// start starts a command that gets the signals of this process.
func start(cmd *exec.Cmd) error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM)
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s) // It may have ended.
		}
	}()
	return nil
}

// outside starts the box and waits for its end.
func outside() (int, error) {
	alive, held, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	cmd := again(roleFirst)
	cmd.ExtraFiles = []*os.File{alive}
	// The kernel sends the signal at the end of this thread. The pipe is for an end before the new process asked for
	// that.
	runtime.LockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	if err := start(cmd); errors.Is(err, unix.EPERM) {
		return 0, fmt.Errorf("namespaces of processes and mounts need root, and in a container the capability "+
			"SYS_ADMIN: %w", err)
	} else if err != nil {
		return 0, err
	}
	err = cmd.Wait()
	runtime.KeepAlive(held)
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		return 0, err
	}
	return code(cmd.ProcessState.Sys().(syscall.WaitStatus)), nil
}

// first is the first process of the box: it makes the box's mounts, starts the tests, and waits for every process that
// loses its parent.
func first() (int, error) {
	unix.CloseOnExec(aliveFD)
	go func() {
		_, _ = os.NewFile(aliveFD, "alive").Read(make([]byte, 1))
		os.Exit(1)
	}()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return 0, fmt.Errorf("keep mounts in the box: %w", err)
	}
	dir, err := directory()
	if err != nil {
		return 0, err
	}
	cmd := again(roleTests)
	cmd.Env = append(cmd.Env, "TMPDIR="+dir)
	if err := unix.Mount("boxtest", dir, "tmpfs", 0, "mode=1777"); err != nil {
		return 0, fmt.Errorf("mount a directory for temporary files: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return 0, fmt.Errorf("mount /proc: %w", err)
	}
	if err := start(cmd); err != nil {
		return 0, err
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, err
		case pid == cmd.Process.Pid:
			return code(status), nil
		}
	}
}

// directory returns a directory for temporary files. It is on every machine, and hides nothing that the test uses: not
// its binary, its working directory, or a path in an argument or a variable. It is not /tmp, because an MPS daemon has
// a /tmp of its own, and not longer if possible, because the path of a socket is short.
func directory() (string, error) {
	work, err := os.Getwd()
	if err != nil {
		return "", err
	}
	program, err := os.Executable()
	if err != nil {
		return "", err
	}
	used := strings.Join(slices.Concat([]string{work, program}, os.Args, os.Environ()), "\n")
	candidates := []string{"/srv", "/mnt", "/media", "/var/tmp"}
	for _, dir := range candidates {
		if info, err := os.Lstat(dir); err == nil && info.IsDir() && !strings.Contains(used, dir) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("the test needs one of the directories %v that has none of its files", candidates)
}

func code(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}
