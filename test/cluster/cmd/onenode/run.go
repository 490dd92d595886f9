// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// commandGrace is the time between a signal and the kill of run's command.
const commandGrace = 10 * time.Second

func runWith(ctx context.Context, args []string, std streams) error {
	var o upOptions
	f := newFlags("run", std).withUp(&o)
	command, err := f.parse(args)
	if err != nil {
		return err
	}
	if len(command) == 0 {
		return errors.New("run needs a command: onenode run --dir DIR -- CMD")
	}
	s, err := bringUp(ctx, f.dir, o, true, std)
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return errors.Join(err, takeDown(s))
	}
	kubectl, err := s.Program("kubectl")
	if err != nil {
		return errors.Join(err, takeDown(s))
	}
	path := filepath.Dir(kubectl) + ":" + os.Getenv("PATH")
	// The command itself may be kubectl, which the caller's PATH lacks.
	os.Setenv("PATH", path)
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = std.in, std.out, std.err
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig(), "ONENODE_DIR="+s.Dir, "ONENODE="+program)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = commandGrace
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code := exit.ExitCode()
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			code = 128 + int(status.Signal())
		}
		err = exitCode(code)
	} else if err != nil {
		err = fmt.Errorf("run %s: %w", command[0], err)
	}
	return errors.Join(takeDown(s), err)
}
