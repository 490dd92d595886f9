// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// processes starts children and reaps all orphans, which the first process of a PID namespace inherits. os/exec
// cannot be used with it, because its wait for all children takes every exit status.
type processes struct {
	mu      sync.Mutex
	waiting map[int]chan syscall.WaitStatus
	started chan struct{}
}

func newProcesses() *processes {
	p := &processes{waiting: map[int]chan syscall.WaitStatus{}, started: make(chan struct{}, 1)}
	go p.reap()
	return p
}

// start runs argv. The channel receives the exit status once and is then closed.
func (p *processes) start(argv []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
	p.mu.Lock() // holds the reaper off until the child is known
	defer p.mu.Unlock()
	pid, err := syscall.ForkExec(argv[0], argv, attr)
	if err != nil {
		return 0, nil, &os.PathError{Op: "run", Path: argv[0], Err: err}
	}
	done := make(chan syscall.WaitStatus, 1)
	p.waiting[pid] = done
	select {
	case p.started <- struct{}{}:
	default:
	}
	return pid, done, nil
}

func (p *processes) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil: // no child, and only start can add one
			<-p.started
		default:
			p.mu.Lock()
			if done, ok := p.waiting[pid]; ok {
				delete(p.waiting, pid)
				done <- status
				close(done)
			}
			p.mu.Unlock()
		}
	}
}

// killExcept kills every process of the PID namespace except this one and the spared ones, and waits for their end.
func (p *processes) killExcept(ctx context.Context, spare func(pid int) bool) error {
	return poll(ctx, func() error {
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return err
		}
		left := 0
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil || pid == 1 || spare(pid) {
				continue
			}
			if syscall.Kill(pid, syscall.SIGKILL) == nil {
				left++
			}
		}
		if left > 0 {
			return fmt.Errorf("%d processes of the node have not ended", left)
		}
		return nil
	})
}

// lookPath finds a program in a search path.
func lookPath(name, path string) string {
	if strings.Contains(name, "/") {
		return name
	}
	for dir := range strings.SplitSeq(path, ":") {
		full := filepath.Join(dir, name)
		if info, err := os.Stat(full); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return full
		}
	}
	return name
}
