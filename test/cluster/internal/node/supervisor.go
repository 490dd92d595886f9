// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"gpu-dra-driver/test/cluster/internal/control"
	"gpu-dra-driver/test/cluster/internal/manifest"
	"gpu-dra-driver/test/cluster/internal/spec"
)

// stopGrace is the time between SIGTERM and SIGKILL for a component. The API server would wait a minute for its
// watchers.
const stopGrace = 5 * time.Second

// supervisor starts and stops components. A component that exits stays down, with that status, for tests that check
// it.
type supervisor struct {
	spec  spec.Spec
	procs *processes
	probe *prober

	mu    sync.Mutex // protects state
	state map[string]*component
	order []string
}

type component struct {
	manifest.Component
	turn sync.Mutex // one start or stop at a time

	// Under supervisor.mu:
	pid   int
	since time.Time
	ended string
	done  chan struct{} // closed when the running process has been reaped
}

func newSupervisor(s spec.Spec, procs *processes, probe *prober) *supervisor {
	v := &supervisor{spec: s, procs: procs, probe: probe, state: map[string]*component{}}
	for _, m := range manifest.Components(s) {
		v.state[m.Name] = &component{Component: m, ended: "not started"}
		v.order = append(v.order, m.Name)
	}
	return v
}

func (v *supervisor) find(name string) (*component, error) {
	if c, ok := v.state[name]; ok {
		return c, nil
	}
	return nil, fmt.Errorf("no component %q: there are %s", name, strings.Join(v.order, ", "))
}

// start runs a component and waits until it is healthy. It does not restart a running one.
func (v *supervisor) start(ctx context.Context, name string) error {
	c, err := v.find(name)
	if err != nil {
		return err
	}
	c.turn.Lock()
	defer c.turn.Unlock()
	if v.running(c) == nil {
		if err := v.launch(c); err != nil {
			return err
		}
	}
	return v.healthy(ctx, c)
}

func (v *supervisor) launch(c *component) error {
	program, err := v.spec.Program(c.Name)
	if err != nil {
		return err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	log, err := os.OpenFile(v.spec.Log(c.Name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	pid, exited, err := v.procs.start(append([]string{program}, c.Args...), &syscall.ProcAttr{
		Dir:   "/",
		Env:   environment(v.spec),
		Files: []uintptr{null.Fd(), log.Fd(), log.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return err
	}
	done := make(chan struct{})
	v.mu.Lock()
	c.pid, c.since, c.done, c.ended = pid, time.Now(), done, ""
	v.mu.Unlock()
	go func() {
		status := <-exited
		v.mu.Lock()
		c.pid, c.since, c.done, c.ended = 0, time.Now(), nil, describe(status)
		v.mu.Unlock()
		close(done)
	}()
	return nil
}

// stop ends a component and waits until its process is gone.
func (v *supervisor) stop(ctx context.Context, name string) error {
	c, err := v.find(name)
	if err != nil {
		return err
	}
	c.turn.Lock()
	defer c.turn.Unlock()
	v.mu.Lock()
	pid, done := c.pid, c.done
	v.mu.Unlock()
	if done == nil {
		return nil
	}
	syscall.Kill(pid, syscall.SIGTERM)
	select {
	case <-done:
	case <-time.After(stopGrace):
		syscall.Kill(pid, syscall.SIGKILL)
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("stop %s: process %d did not end: %w", name, pid, ctx.Err())
		}
	}
	v.mu.Lock()
	c.ended = "stopped"
	v.mu.Unlock()
	return nil
}

// running returns the channel that closes when the component's process ends; nil when it does not run.
func (v *supervisor) running(c *component) <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	return c.done
}

// healthy waits until the component answers. If the component exits, the error has the end of its log.
func (v *supervisor) healthy(ctx context.Context, c *component) error {
	done := v.running(c)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	died := make(chan struct{})
	go func() {
		if done != nil {
			select {
			case <-done:
			case <-ctx.Done():
				return
			}
		}
		close(died)
		cancel()
	}()
	err := v.probe.wait(ctx, c.Component)
	select {
	case <-died:
		err = errors.New(v.status(c).State)
	default:
	}
	if err != nil {
		return fmt.Errorf("%s is not healthy: %w\n%s", c.Name, err, tail(v.spec.Log(c.Name), 15))
	}
	return nil
}

func (v *supervisor) status(c *component) control.Status {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := control.Status{Component: c.Name, PID: c.pid, Since: c.since, State: c.ended}
	if c.done != nil {
		s.State = "running"
	}
	return s
}

func (v *supervisor) statuses() []control.Status {
	var all []control.Status
	for _, name := range v.order {
		all = append(all, v.status(v.state[name]))
	}
	return all
}

// pids returns the PIDs of the running components.
func (v *supervisor) pids() []int {
	var pids []int
	for _, s := range v.statuses() {
		if s.PID != 0 {
			pids = append(pids, s.PID)
		}
	}
	return pids
}

// environment returns the variables of components and programs in the node, in addition to the caller's.
func environment(s spec.Spec) []string {
	return []string{
		"PATH=" + s.PATH(),
		"KUBECONFIG=" + s.Kubeconfig(),
		"HOME=/root",
		"TMPDIR=" + s.Node("tmp"),
		"CONTAINERD_ADDRESS=" + spec.ContainerdSocket,
	}
}

func describe(status syscall.WaitStatus) string {
	if status.Signaled() {
		return "killed by signal " + status.Signal().String()
	}
	return fmt.Sprintf("exited with code %d", status.ExitStatus())
}

// tail returns the last lines of a log.
func tail(path string, lines int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return fmt.Sprintf("end of %s:\n  %s", path, strings.Join(all[max(0, len(all)-lines):], "\n  "))
}
