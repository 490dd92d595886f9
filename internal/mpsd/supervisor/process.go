// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"cmp"
	"fmt"
	"os/exec"
	"strings"
	"syscall"

	"gpu-dra-driver/internal/driverprogram"
)

// process is the running process of a daemon.
type process struct {
	cmd  *exec.Cmd
	out  driverprogram.Output
	gone chan struct{}
	err  error // Set before gone is closed.
}

// startProcess starts a command whose process leads its own group.
func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, gone: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.out, &p.out
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.gone)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// cause describes how an ended process ended.
func (p *process) cause() string {
	text := clip(p.out.String())
	if p.err != nil {
		text = strings.TrimSuffix(p.err.Error()+": "+text, ": ")
	}
	return cmp.Or(text, "exited with no output")
}

// refusedOption says that the process ended because it does not know one of its arguments.
func (p *process) refusedOption() bool {
	select {
	case <-p.gone:
	default:
		return false
	}
	text := strings.ToLower(p.out.String())
	return strings.Contains(text, "usage") || strings.Contains(text, "option") || strings.Contains(text, "argument")
}

// kill ends the process group and waits for the process.
func (p *process) kill() {
	_ = syscall.Kill(-p.pid(), syscall.SIGKILL)
	<-p.gone
}
