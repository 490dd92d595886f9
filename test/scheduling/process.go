// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// process is a program with its log in a file. The kernel kills it if this program is killed.
type process struct {
	name, log string
	cmd       *exec.Cmd
	stopping  atomic.Bool
	ended     chan struct{}
}

// startProcess starts a program. An end before stop cancels the run, with the end of its log as the cause.
func startProcess(cancel context.CancelCauseFunc, dir, program string, args ...string) (*process, error) {
	p := &process{name: filepath.Base(program), cmd: exec.Command(program, args...), ended: make(chan struct{})}
	p.log = filepath.Join(dir, p.name+".log")
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // The child has its own.
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true} // Ctrl-C reaches this program only.
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	go func() {
		_ = p.cmd.Wait() // The state has the cause.
		close(p.ended)
		if !p.stopping.Load() {
			cancel(fmt.Errorf("%s ended: %v\n%s", p.name, p.cmd.ProcessState, p.tail()))
		}
	}()
	return p, nil
}

// tail returns the end of the log.
func (p *process) tail() string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-2000):])
}

// stop ends the process and waits for its end.
func (p *process) stop() {
	if p == nil {
		return
	}
	p.stopping.Store(true)
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // It may have ended.
	select {
	case <-p.ended:
	case <-time.After(5 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

func (p *process) read(file string) (string, error) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), file))
	return string(data), err
}

// cpu returns the CPU time of the process. The kernel counts it in hundredths of a second.
func (p *process) cpu() (time.Duration, error) {
	stat, err := p.read("stat")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(stat, ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("the line stat of %s is too short", p.name)
	}
	user, err := strconv.Atoi(fields[11])
	if err != nil {
		return 0, err
	}
	system, err := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond, err
}

// megabytes returns the resident memory of the process.
func (p *process) megabytes() (int, error) {
	status, err := p.read("status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
			return kib * 1024 / 1e6, err
		}
	}
	return 0, fmt.Errorf("the status of %s has no VmRSS", p.name)
}
