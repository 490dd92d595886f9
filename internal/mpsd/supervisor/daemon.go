// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/mpsd"
)

// Directories of a daemon. Containers mount pipeDir, which has the clients' socket alone, and shmDir.
const (
	daemonDir = "daemon"
	pipeDir   = "pipe"
	shmDir    = "shm"
	logDir    = "log"
)

// controlSocket is the socket of NVIDIA's daemon for its clients.
const controlSocket = "control"

// Time limits. A daemon takes about a second to start; after a minute it counts as hanging. A command takes
// milliseconds, and seconds where processes wait for the CPU. A change of limits, with all of its commands, has
// settleLimit. The command that starts a server has serverLimit, because a claim need not wait for it.
const (
	startLimit  = 40 * time.Second
	settleLimit = 15 * time.Second
	serverLimit = 5 * time.Second
	quitLimit   = 3 * time.Second
	faultLimit  = 20 * time.Second
	firstPause  = 100 * time.Millisecond
	lastPause   = 10 * time.Second
)

// faultPoll is the interval of checks for a fault without a hint, and of the limits. faultPause is that during a fault.
const (
	faultPoll  = 30 * time.Second
	faultPause = 200 * time.Millisecond
)

// Pauses before checks for servers that the supervisor has not seen, after a change of limits. They double; the last
// one is longer than a server's start, so that a daemon with constant limits costs nothing.
const (
	firstRecheck = time.Second
	lastRecheck  = 32 * time.Second
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
	faulty     bool // its server is in the state FAULT
	status     mpsd.Status
}

func (d *daemon) wake() {
	select {
	case d.wakeup <- struct{}{}:
	default:
	}
}

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
			d.status.PID, d.faulty = 0, false
			if ended || err == nil {
				return // Another device or another mode: restart at once.
			}
			if d.status.Problem = err.Error(); !errors.Is(err, errFault) {
				d.failures++ // After a fault a caller waits for the next daemon.
			}
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
	d.s.o.Log.Printf("daemon of %s: %s", filepath.Base(d.dir), fmt.Sprintf(format, args...))
}

func (d *daemon) namespace(want mpsd.Daemon) namespace {
	return namespace{
		Root: d.s.o.Root, DevRoot: d.s.o.DevRoot, UUID: want.UUID,
		Pipe: filepath.Join(d.dir, daemonDir), Shm: filepath.Join(d.dir, shmDir), Log: filepath.Join(d.dir, logDir),
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
	l := &limiter{settle: d.s.o.settle, server: d.s.o.server, late: map[int]int{}}
	defer l.close()
	p, refused, err := d.start(want, many, l)
	if refused && many {
		// If it runs without the mode, this driver's daemon lacks the mode: users wait for each other.
		alone, _, aloneErr := d.start(want, false, l)
		switch {
		case aloneErr == nil && want.Users == "":
			p, err, many = alone, nil, false
		case aloneErr == nil:
			alone.kill()
			err = fmt.Errorf("this driver's MPS cannot serve several users at once (mpsConfig.multiUser): %w", err)
		}
	}
	if err != nil {
		return false, err
	}
	d.update(func() {
		d.applied = generation
		d.status.PID, d.status.Since, d.status.ManyUsers, d.status.Problem = p.pid(), time.Now(), many, ""
	})
	d.logf("ready, process %d", p.pid())
	if l.unreadable != "" {
		d.logf("its memory limits are set and not compared, because it prints them in an unknown form: %q",
			l.unreadable)
	}
	pause := d.s.firstRecheck
	recheck := time.After(pause)
	look := time.NewTicker(d.s.faultPoll)
	defer look.Stop()
	for {
		looks := false
		select {
		case <-p.gone:
			return true, fmt.Errorf("it ended: %s", p.cause())
		case <-d.ctx.Done():
			d.quit(p, l)
			return true, nil
		case <-p.out.faults:
			looks = true
		case <-look.C:
			looks = !d.calm(l, many)
			if !looks {
				continue
			}
		case <-recheck:
			pause, recheck = 2*pause, nil
		case <-d.wakeup:
		}
		if looks {
			if err := d.recovered(p, l); err != nil {
				d.quit(p, l)
				return true, err
			}
			clear(l.met) // Root in a container can change the limits of a server, and end it.
			if many {
				d.hold(l)
			}
		}
		is := want
		want, generation = d.desired()
		if want.UUID != is.UUID || want.Users != is.Users {
			d.quit(p, l)
			return true, nil
		}
		if !reflect.DeepEqual(want, is) {
			l.want(want)
			pause = d.s.firstRecheck
		}
		if err := l.apply(d.ctx); err != nil {
			// The next call of ensure sets the limits again.
			d.update(func() {
				d.failures++
				d.applied, d.status.Problem = min(d.applied, generation-1), err.Error()
			})
			d.logf("%v", err)
			pause, recheck = lastRecheck, time.After(lastRecheck)
			continue
		}
		if pause <= lastRecheck {
			recheck = time.After(pause)
		}
		if d.applied == generation {
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
	for _, name := range []string{daemonDir, pipeDir, shmDir, logDir} {
		if err := os.MkdirAll(filepath.Join(d.dir, name), 0o755); err != nil {
			return fmt.Errorf("make the directory of an MPS daemon: %w", err)
		}
	}
	for _, name := range []string{daemonDir, pipeDir} {
		if err := emptied(filepath.Join(d.dir, name)); err != nil {
			return err
		}
	}
	if err := mountShm(filepath.Join(d.dir, shmDir), d.s.o.Shm); err != nil {
		return err
	}
	// The daemon's sockets inherit the type of daemonDir, and containers get them by a link.
	for _, name := range []string{daemonDir, pipeDir, shmDir} {
		if err := host.ShareWithContainers(filepath.Join(d.dir, name), d.s.o.Filesystems); err != nil {
			d.logf("%v; where SELinux enforces its policy, containers do not reach the daemon", err)
		}
	}
	return nil
}

// recovered returns once no server of the daemon is in the state FAULT. A fault of one client ends the work of all, so
// it counts. A server leaves the state by itself when its last client has ended, and takes no new one before: the error
// says that this takes too long.
func (d *daemon) recovered(p *process, l *limiter) error {
	limit := time.NewTimer(d.s.faultLimit)
	defer limit.Stop()
	for {
		now, err := l.faulty(d.ctx)
		d.s.mu.Lock()
		before := d.faulty
		d.s.mu.Unlock()
		switch {
		case err == nil && !now && before:
			d.update(func() { d.faulty, d.status.Problem = false, "" })
			d.logf("its server serves again after a fault")
			return nil
		case !now && !before: // Without an answer nothing is known, and the supervisor asks again later.
			return nil
		case now && !before:
			d.update(func() {
				d.faulty, d.status.Problem = true, errFault.Error()
				d.status.Faults++
			})
			d.logf("%v", errFault)
		}
		select {
		case <-p.gone:
			return nil
		case <-d.ctx.Done():
			return nil
		case <-limit.C:
			return fmt.Errorf("%w, and they did not end within %s", errFault, d.s.faultLimit)
		case <-time.After(faultPause):
		}
	}
}

// calm reports whether nothing is to be done for a daemon, which it asks in one process.
func (d *daemon) calm(l *limiter, many bool) bool {
	d.s.mu.Lock()
	fine := !d.faulty && d.applied == d.generation
	d.s.mu.Unlock()
	return fine && (!many || len(l.listed) > 0) && l.unchanged(d.ctx)
}

// errFault is the problem of a daemon whose server is in the state FAULT.
var errFault = errors.New("its server is in the state FAULT: an error of one process, or its end while it computed, " +
	"ended the work of all processes on the device, and no process can start before all of them have ended")

// start starts the daemon and returns once it serves within its limits. refused reports that it ended as one
// that does not know an argument.
func (d *daemon) start(want mpsd.Daemon, many bool, l *limiter) (p *process, refused bool, err error) {
	args := []string{"-f"}
	if many {
		args = append(args, "-multiuser-server")
	}
	n := d.namespace(want)
	cmd, err := n.command(context.Background(), args...)
	if err != nil {
		return nil, false, err
	}
	if p, err = startProcess(cmd); err != nil {
		return nil, false, err
	}
	l.close()
	l.daemon = p.pid()
	l.want(want)
	if err = writeNote(d.dir, d.s.o.BootID, want, p.pid()); err == nil {
		err = d.awaitReady(p, n, l, many)
	}
	if err != nil {
		refused = p.refusedOption()
		p.kill()
		return nil, refused, err
	}
	return p, false, nil
}

// awaitReady waits until the daemon answers, and sets its limits. A starting daemon does not answer at first. A daemon
// for many users has a server from then on.
func (d *daemon) awaitReady(p *process, n namespace, l *limiter, many bool) error {
	limit := time.NewTimer(startLimit)
	defer limit.Stop()
	own := filepath.Join(d.dir, daemonDir)
	last := "no answer yet"
	for wait := 2 * time.Millisecond; ; wait = min(wait+wait/2, 50*time.Millisecond) {
		if _, err := os.Lstat(filepath.Join(own, controlSocket)); err == nil {
			err := l.open(n) // The daemon has entered its namespace.
			if err == nil {
				err = l.apply(d.ctx)
			}
			if err == nil && many {
				d.hold(l)
			}
			if err == nil {
				return offer(own, filepath.Join(d.dir, pipeDir))
			}
			if last != err.Error() {
				last = err.Error()
				d.update(func() { d.status.Problem = last }) // For a caller that no longer waits.
			}
		}
		select {
		case <-p.gone:
			return fmt.Errorf("it did not start: %s", p.cause())
		case <-d.ctx.Done():
			return context.Cause(d.ctx)
		case <-limit.C:
			return fmt.Errorf("it was not ready within %s (%s): %s", startLimit, last, clip(p.out.String()))
		case <-time.After(wait):
		}
	}
}

// hold starts a server of a daemon that has none. Clients start one too, so an error counts for the log alone.
func (d *daemon) hold(l *limiter) {
	if err := l.hold(d.ctx); err != nil && d.ctx.Err() == nil {
		d.logf("starting a server failed: %v; until a container does, a process that avoids the daemon can take "+
			"the device", err)
	}
}

// quit asks a serving daemon to end, and kills it after a timeout.
func (d *daemon) quit(p *process, l *limiter) {
	ctx, cancel := context.WithTimeout(context.Background(), quitLimit)
	defer cancel()
	if _, err := l.control.ask(ctx, "quit -t 1"); err == nil {
		select {
		case <-p.gone:
		case <-ctx.Done():
		}
	}
	p.kill()
	d.logf("ended")
}
