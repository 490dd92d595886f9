// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"gpu-dra-driver/internal/mpsd"
)

// Directories and files of a daemon.
const (
	pipeDir = "pipe"
	shmDir  = "shm"
	logDir  = "log"
)

// Times. A daemon takes about a second to start; one that takes a minute hangs.
const (
	startLimit  = 40 * time.Second
	answerLimit = 5 * time.Second
	quitLimit   = 3 * time.Second
	firstPause  = 100 * time.Millisecond
	lastPause   = 10 * time.Second
)

var errEnded = errors.New("it is not needed any more")

// daemon is one that is wanted. What is below s.mu is guarded by the supervisor's.
type daemon struct {
	s      *Supervisor
	dir    string
	ctx    context.Context
	cancel context.CancelCauseFunc
	poke   chan struct{}
	ended  chan struct{}
	old    note // of an earlier supervisor

	// s.mu
	want     mpsd.Daemon
	wanted   int // counts what was wanted
	applied  int // the last of them that the daemon was told
	failures int
	status   mpsd.Status
}

func (d *daemon) wake() {
	select {
	case d.poke <- struct{}{}:
	default:
	}
}

// wish is what is wanted now.
func (d *daemon) wish() (mpsd.Daemon, int) {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	return d.want, d.wanted
}

func (d *daemon) update(change func()) {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	change()
	d.s.tell()
}

// run keeps the daemon running until it is not wanted any more.
func (d *daemon) run() {
	pause := firstPause
	for {
		want, wanted := d.wish()
		ready, err := d.live(want, wanted)
		if d.ctx.Err() != nil {
			d.update(func() { d.status.PID = 0 })
			return
		}
		d.update(func() {
			d.status.PID = 0
			if err == nil {
				return // Another device or another way: it is started anew at once.
			}
			d.failures++
			d.status.Problem = err.Error()
			if ready {
				d.status.Restarts++
			}
		})
		if err == nil {
			continue
		}
		d.s.Log("daemon of %s: %v", want.Name, err)
		if ready {
			pause = firstPause
		}
		select {
		case <-d.ctx.Done():
			return
		case <-d.poke: // Somebody waits for it: not longer than needed.
			d.wake()
			time.Sleep(firstPause)
		case <-time.After(pause):
		}
		pause = min(2*pause, lastPause)
	}
}

// world is what the daemon sees.
func (d *daemon) world(want mpsd.Daemon) world {
	return world{
		Root: d.s.Root, DevRoot: d.s.DevRoot, UUID: want.UUID,
		Pipe: filepath.Join(d.dir, pipeDir), Shm: filepath.Join(d.dir, shmDir), Log: filepath.Join(d.dir, logDir),
	}
}

// live runs the daemon once, from start to end. ready says that it served; nil means that it was ended on purpose.
func (d *daemon) live(want mpsd.Daemon, wanted int) (ready bool, err error) {
	if err := d.prepare(want); err != nil {
		return false, err
	}
	if _, err := find(d.s.Root); err != nil {
		return false, err
	}
	many := want.Users != "one"
	p, err := d.start(want, many)
	if err != nil {
		return false, err
	}
	err = d.await(p, want)
	if err != nil && many && want.Users == "" && p.usage() {
		// This driver's daemon has no such mode: without it users wait for each other.
		many = false
		p.end()
		if p, err = d.start(want, many); err != nil {
			return false, err
		}
		err = d.await(p, want)
	}
	if err != nil {
		p.end()
		if want.Users == "many" && p.usage() {
			err = fmt.Errorf("this driver's MPS cannot serve several users at once (mpsConfig.multiUser): %w", err)
		}
		return false, err
	}
	d.update(func() {
		d.applied = wanted
		d.status.PID, d.status.Since, d.status.ManyUsers = p.cmd.Process.Pid, time.Now(), many
		d.status.Problem = ""
	})
	d.s.Log("daemon of %s: ready, process %d", want.Name, p.cmd.Process.Pid)
	for {
		select {
		case <-p.gone:
			p.end() // Its servers are in its process group.
			return true, fmt.Errorf("it ended: %s", p.why())
		case <-d.ctx.Done():
			d.quit(want, p)
			return true, nil
		case <-d.poke:
		}
		is := want
		want, wanted = d.wish()
		if want.UUID != is.UUID || want.Users != is.Users {
			d.quit(is, p)
			return true, nil
		}
		if err := d.limit(want, true); err != nil {
			d.update(func() { d.failures++; d.status.Problem = err.Error() })
			d.s.Log("daemon of %s: %v", want.Name, err)
			continue
		}
		if err := writeNote(d.dir, d.s.BootID, want, p.cmd.Process.Pid); err != nil {
			d.s.Log("daemon of %s: %v", want.Name, err)
		}
		d.update(func() { d.applied, d.status.Problem = wanted, "" })
	}
}

// prepare makes the daemon's directories, without what an earlier one left in them.
func (d *daemon) prepare(want mpsd.Daemon) error {
	if d.old.PID != 0 {
		d.old.kill()
		d.old = note{}
	}
	for _, name := range []string{pipeDir, shmDir, logDir} {
		// The umask must not keep clients of other users out.
		dir := filepath.Join(d.dir, name)
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(d.dir, 0o755)); err != nil {
			return fmt.Errorf("make the directory of an MPS daemon: %w", err)
		}
	}
	if err := emptied(filepath.Join(d.dir, pipeDir)); err != nil {
		return err
	}
	if err := mountShm(filepath.Join(d.dir, shmDir), d.s.ShmBytes); err != nil {
		return err
	}
	return writeNote(d.dir, d.s.BootID, want, 0)
}

// process is a daemon's.
type process struct {
	cmd  *exec.Cmd
	out  *bytes.Buffer
	gone chan struct{}
	err  error
}

func (d *daemon) start(want mpsd.Daemon, many bool) (*process, error) {
	args := []string{"-f"}
	if many {
		args = append(args, "-multiuser-server")
	}
	cmd, err := d.world(want).command(context.Background(), args...)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, out: new(bytes.Buffer), gone: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = limited(p.out), limited(p.out)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.gone)
	}()
	return p, writeNote(d.dir, d.s.BootID, want, cmd.Process.Pid)
}

// why says how it ended.
func (p *process) why() string {
	text := clip(p.out.String())
	switch {
	case p.err == nil && text == "":
		return "without a word"
	case p.err == nil:
		return text
	case text == "":
		return p.err.Error()
	}
	return p.err.Error() + ": " + text
}

// usage says that it ended because it does not know an argument.
func (p *process) usage() bool {
	select {
	case <-p.gone:
	default:
		return false
	}
	text := strings.ToLower(p.out.String())
	return strings.Contains(text, "usage") || strings.Contains(text, "option") || strings.Contains(text, "argument")
}

// end kills it with all that it started.
func (p *process) end() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.gone
}

// await waits until the daemon answers, and tells it the limits.
func (d *daemon) await(p *process, want mpsd.Daemon) error {
	limit := time.NewTimer(startLimit)
	defer limit.Stop()
	socket := filepath.Join(d.dir, pipeDir, "control")
	for wait := 2 * time.Millisecond; ; wait = min(wait+wait/2, 50*time.Millisecond) {
		if _, err := os.Lstat(socket); err == nil {
			if err := d.limit(want, false); err == nil {
				return nil
			} else if !errors.Is(err, errNoAnswer) {
				return err
			}
		}
		select {
		case <-p.gone:
			return fmt.Errorf("it did not start: %s", p.why())
		case <-d.ctx.Done():
			return context.Cause(d.ctx)
		case <-limit.C:
			return fmt.Errorf("it was not ready within %s: %s", startLimit, clip(p.out.String()))
		case <-time.After(wait):
		}
	}
}

// errNoAnswer says that a daemon did not answer, which one that starts does not at first.
var errNoAnswer = errors.New("no answer")

// limit tells the daemon what each client may have at the most, for servers to come and those that run.
func (d *daemon) limit(want mpsd.Daemon, running bool) error {
	ctx, cancel := context.WithTimeout(d.ctx, answerLimit)
	defer cancel()
	w := d.world(want)
	commands := []string{"get_default_active_thread_percentage"}
	add := func(format string, args ...any) { commands = append(commands, fmt.Sprintf(format, args...)) }
	if want.MemoryLimit > 0 {
		add("set_default_device_pinned_mem_limit 0 %dM", want.MemoryLimit>>20)
	}
	if threads := want.Threads; threads > 0 || running {
		if threads == 0 {
			threads = 100
		}
		add("set_default_active_thread_percentage %d", threads)
	}
	if running {
		list, err := w.ask(ctx, "get_server_list")
		if err != nil {
			return fmt.Errorf("%w: %w", errNoAnswer, err)
		}
		for _, line := range strings.Fields(list) {
			pid, err := strconv.Atoi(line)
			if err != nil {
				continue
			}
			if want.MemoryLimit > 0 {
				add("set_device_pinned_mem_limit %d 0 %dM", pid, want.MemoryLimit>>20)
			}
			threads := want.Threads
			if threads == 0 {
				threads = 100
			}
			add("set_active_thread_percentage %d %d", pid, threads)
		}
	}
	if _, err := w.ask(ctx, commands...); err != nil {
		return fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	return nil
}

// quit ends a daemon that serves: it is asked to, and killed where it does not listen.
func (d *daemon) quit(want mpsd.Daemon, p *process) {
	ctx, cancel := context.WithTimeout(context.Background(), quitLimit)
	defer cancel()
	if _, err := d.world(want).ask(ctx, "quit -t 1"); err == nil {
		select {
		case <-p.gone:
		case <-ctx.Done():
		}
	}
	p.end()
	d.s.Log("daemon of %s: ended", want.Name)
}
