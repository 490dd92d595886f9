// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"gpu-dra-driver/internal/mpsd"
)

// Directories and files of a daemon.
const (
	pipeDir = "pipe"
	shmDir  = "shm"
	logDir  = "log"
)

// Time limits. A daemon takes about a second to start; after a minute it counts as hanging.
const (
	startLimit  = 40 * time.Second
	answerLimit = 5 * time.Second
	quitLimit   = 3 * time.Second
	firstPause  = 100 * time.Millisecond
	lastPause   = 10 * time.Second
)

// daemon is one desired daemon. The supervisor's mutex guards the fields below s.mu.
type daemon struct {
	s      *Supervisor
	dir    string
	ctx    context.Context
	cancel context.CancelCauseFunc
	wakeup chan struct{}
	ended  chan struct{}
	old    note // of an earlier supervisor

	// s.mu
	want       mpsd.Daemon
	generation int // counts the changes of want
	applied    int // generation of the running daemon
	failures   int
	status     mpsd.Status
}

func (d *daemon) wake() {
	select {
	case d.wakeup <- struct{}{}:
	default:
	}
}

// desired returns the desired state and its generation.
func (d *daemon) desired() (mpsd.Daemon, int) {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	return d.want, d.generation
}

func (d *daemon) update(change func()) {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	change()
	d.s.notify()
}

// run keeps the daemon running until it is stopped.
func (d *daemon) run() {
	pause := firstPause
	for {
		want, generation := d.desired()
		ready, err := d.runOnce(want, generation)
		ended := d.ctx.Err() != nil
		d.update(func() {
			d.status.PID = 0
			if ended || err == nil {
				return // Another device or another mode: restart at once.
			}
			d.failures++
			d.status.Problem = err.Error()
			if ready {
				d.status.Restarts++
			}
		})
		switch {
		case ended:
			return
		case err == nil:
			continue
		case ready:
			pause = firstPause
		}
		d.logf("%v", err)
		select {
		case <-d.ctx.Done():
			return
		case <-d.wakeup: // A caller waits for it: restart at once.
			time.Sleep(firstPause)
		case <-time.After(pause):
		}
		pause = min(2*pause, lastPause)
	}
}

func (d *daemon) logf(format string, args ...any) {
	d.s.o.Log("daemon of %s: %s", filepath.Base(d.dir), fmt.Sprintf(format, args...))
}

func (d *daemon) namespace(want mpsd.Daemon) namespace {
	return namespace{
		Root: d.s.o.Root, DevRoot: d.s.o.DevRoot, UUID: want.UUID,
		Pipe: filepath.Join(d.dir, pipeDir), Shm: filepath.Join(d.dir, shmDir), Log: filepath.Join(d.dir, logDir),
	}
}

// runOnce runs the daemon from start to end. ready reports that it served; a nil error means that the supervisor
// ended it.
func (d *daemon) runOnce(want mpsd.Daemon, generation int) (ready bool, err error) {
	if err := d.prepare(want); err != nil {
		return false, err
	}
	if _, err := findProgram(d.s.o.Root); err != nil {
		return false, err
	}
	many := want.Users != "one"
	p, refused, err := d.start(want, many)
	if refused && want.Users == "" {
		// This driver's daemon lacks the mode: users wait for each other.
		many = false
		p, _, err = d.start(want, many)
	}
	if refused && want.Users == "many" {
		err = fmt.Errorf("this driver's MPS cannot serve several users at once (mpsConfig.multiUser): %w", err)
	}
	if err != nil {
		return false, err
	}
	d.update(func() {
		d.applied = generation
		d.status.PID, d.status.Since, d.status.ManyUsers, d.status.Problem = p.pid(), time.Now(), many, ""
	})
	d.logf("ready, process %d", p.pid())
	for {
		select {
		case <-p.gone:
			return true, fmt.Errorf("it ended: %s", p.cause())
		case <-d.ctx.Done():
			d.quit(want, p)
			return true, nil
		case <-d.wakeup:
		}
		is := want
		want, generation = d.desired()
		if want.UUID != is.UUID || want.Users != is.Users {
			d.quit(is, p)
			return true, nil
		}
		if err := d.limit(want, true); err != nil {
			d.update(func() { d.failures++; d.status.Problem = err.Error() })
			d.logf("%v", err)
			continue
		}
		if err := writeNote(d.dir, d.s.o.BootID, want, p.pid()); err != nil {
			d.logf("%v", err)
		}
		d.update(func() { d.applied, d.status.Problem = generation, "" })
	}
}

// prepare makes the daemon's directories and removes the files of an earlier daemon.
func (d *daemon) prepare(want mpsd.Daemon) error {
	if d.old.PID != 0 {
		d.old.kill()
		d.old = note{}
	}
	// The umask must not lock out clients of other users.
	if err := errors.Join(os.MkdirAll(d.dir, 0o755), os.Chmod(d.dir, 0o755)); err != nil {
		return fmt.Errorf("make the directory of an MPS daemon: %w", err)
	}
	// The note comes first: a directory without one is not the supervisor's.
	if err := writeNote(d.dir, d.s.o.BootID, want, 0); err != nil {
		return err
	}
	for _, name := range []string{pipeDir, shmDir, logDir} {
		if err := os.MkdirAll(filepath.Join(d.dir, name), 0o755); err != nil {
			return fmt.Errorf("make the directory of an MPS daemon: %w", err)
		}
	}
	if err := emptied(filepath.Join(d.dir, pipeDir)); err != nil {
		return err
	}
	return mountShm(filepath.Join(d.dir, shmDir), d.s.o.ShmBytes)
}

// start starts the daemon and returns once it serves within its limits. refused reports that it does not know an
// argument.
func (d *daemon) start(want mpsd.Daemon, many bool) (p *process, refused bool, err error) {
	args := []string{"-f"}
	if many {
		args = append(args, "-multiuser-server")
	}
	cmd, err := d.namespace(want).command(context.Background(), args...)
	if err != nil {
		return nil, false, err
	}
	if p, err = startProcess(cmd); err != nil {
		return nil, false, err
	}
	if err = writeNote(d.dir, d.s.o.BootID, want, p.pid()); err == nil {
		err = d.awaitReady(p, want)
	}
	if err != nil {
		refused = many && p.refusedOption()
		p.kill()
		return nil, refused, err
	}
	return p, false, nil
}

// awaitReady waits until the daemon answers, and sets its limits.
func (d *daemon) awaitReady(p *process, want mpsd.Daemon) error {
	limit := time.NewTimer(startLimit)
	defer limit.Stop()
	socket := filepath.Join(d.dir, pipeDir, "control")
	for wait := 2 * time.Millisecond; ; wait = min(wait+wait/2, 50*time.Millisecond) {
		if _, err := os.Lstat(socket); err == nil {
			if err := d.limit(want, false); err == nil {
				return nil
			}
		}
		select {
		case <-p.gone:
			return fmt.Errorf("it did not start: %s", p.cause())
		case <-d.ctx.Done():
			return context.Cause(d.ctx)
		case <-limit.C:
			return fmt.Errorf("it was not ready within %s: %s", startLimit, clip(p.out.String()))
		case <-time.After(wait):
		}
	}
}

// limit sets the limits of each client, for future and for running servers. An error means that the daemon did not
// answer; a starting daemon does not answer at first.
func (d *daemon) limit(want mpsd.Daemon, running bool) error {
	ctx, cancel := context.WithTimeout(d.ctx, answerLimit)
	defer cancel()
	n := d.namespace(want)
	threads := cmp.Or(want.Threads, 100)
	commands := []string{"get_default_active_thread_percentage"}
	add := func(format string, args ...any) { commands = append(commands, fmt.Sprintf(format, args...)) }
	if want.MemoryLimit != nil {
		add("set_default_device_pinned_mem_limit 0 %dM", *want.MemoryLimit>>20)
	}
	if want.Threads > 0 || running {
		add("set_default_active_thread_percentage %d", threads)
	}
	if running {
		list, err := n.ask(ctx, "get_server_list")
		if err != nil {
			return fmt.Errorf("no answer: %w", err)
		}
		for word := range strings.FieldsSeq(list) {
			pid, err := strconv.Atoi(word)
			if err != nil {
				continue
			}
			if want.MemoryLimit != nil {
				add("set_device_pinned_mem_limit %d 0 %dM", pid, *want.MemoryLimit>>20)
			}
			add("set_active_thread_percentage %d %d", pid, threads)
		}
	}
	if _, err := n.ask(ctx, commands...); err != nil {
		return fmt.Errorf("no answer: %w", err)
	}
	return nil
}

// quit asks a serving daemon to end, and kills it after a timeout.
func (d *daemon) quit(want mpsd.Daemon, p *process) {
	ctx, cancel := context.WithTimeout(context.Background(), quitLimit)
	defer cancel()
	if _, err := d.namespace(want).ask(ctx, "quit -t 1"); err == nil {
		select {
		case <-p.gone:
		case <-ctx.Done():
		}
	}
	p.kill()
	d.logf("ended")
}
