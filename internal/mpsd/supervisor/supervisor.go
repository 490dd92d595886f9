// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package supervisor runs MPS control daemons: at most one for a device, on demand. It restarts them after an exit,
// and ends them on request.
//
// Each daemon runs in a mount namespace of its own, at the root of the driver, with the device's own /dev/shm and
// pipe directory. The supervisor does not use Kubernetes and holds no token. The desired daemons arrive over a
// socket, and a file for each of them lets a restarted supervisor start them again.
//
// Traps. A daemon's clients lose their computations when it ends, so no daemon ends because of a restart of the
// plugin. A hanging daemon must not delay another: each has its own goroutine, and each query of a daemon has a
// timeout.
package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/mpsd"
)

// Options configures a Supervisor; all fields but DevRoot and Filesystems are required.
type Options struct {
	// Dir holds a directory for each daemon. The container runtime must see it, with its mounts, at the same path.
	Dir string
	// Root is the driver root as this process sees it. DevRoot holds dev/; empty: driverprogram.DevRoot finds it.
	Root, DevRoot string
	// Shm is the size of the shared memory of a device, in the form of tmpfs: bytes, or a percentage of the machine's
	// memory.
	Shm string
	// Filesystems is the kernel's list, which says whether it has SELinux; empty: that of /proc.
	Filesystems string
	// BootID identifies this boot: processes of another boot do not run any more.
	BootID string
	Log    *log.Logger

	settle, server time.Duration // Tests change them; 0: settleLimit and serverLimit.
}

const lockFile = "supervisor.lock"

// Supervisor runs daemons. Its methods are safe for concurrent use.
type Supervisor struct {
	o      Options
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	machine *host.Host // holds the directory's lock

	// Tests shorten the time limits.
	firstRecheck, faultPoll, faultLimit time.Duration

	mu      sync.Mutex
	daemons map[string]*daemon
	version uint64
	changed chan struct{} // closed with each change of a status
}

var errStopping = errors.New("the supervisor is stopping")

// New takes over the daemons of an earlier supervisor of this boot, and removes the remains of another boot. It waits
// until no other supervisor uses the directory: two would empty each other's pipe directories.
func New(ctx context.Context, o Options) (*Supervisor, error) {
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of MPS daemons: %w", err)
	}
	o.Log.Printf("waiting until no other supervisor uses %s", o.Dir)
	machine := host.New(host.Options{})
	if _, err := machine.Lock(ctx, filepath.Join(o.Dir, lockFile), 0); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(o.Dir)
	if err != nil {
		machine.Close()
		return nil, fmt.Errorf("list the MPS daemons: %w", err)
	}
	s := &Supervisor{
		o: o, machine: machine, firstRecheck: firstRecheck, faultPoll: faultPoll, faultLimit: faultLimit,
		daemons: map[string]*daemon{}, changed: make(chan struct{}),
	}
	s.o.settle, s.o.server = cmp.Or(o.settle, settleLimit), cmp.Or(o.server, serverLimit)
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	for _, e := range entries {
		if !e.IsDir() || !mpsd.IsDeviceName(e.Name()) {
			continue
		}
		note, err := readNote(filepath.Join(o.Dir, e.Name()))
		if err == nil && note.BootID == o.BootID && note.Daemon.Name == e.Name() && note.Daemon.Validate() == nil {
			o.Log.Printf("daemon of %s: taken over", e.Name())
			s.begin(note.Daemon, note)
			continue
		}
		o.Log.Printf("daemon of %s: not taken over; its files are removed if it has a note (%v)", e.Name(), err)
		if err := removeLeftover(filepath.Join(o.Dir, e.Name())); err != nil {
			o.Log.Printf("daemon of %s: %v", e.Name(), err)
		}
	}
	return s, nil
}

// Close ends all daemons. Their notes stay for the next supervisor.
func (s *Supervisor) Close() {
	s.cancel(errStopping)
	s.wg.Wait()
	s.machine.Close()
}

// begin starts to run a daemon. The caller holds s.mu, or s is not shared yet.
func (s *Supervisor) begin(want mpsd.Daemon, old note) *daemon {
	d := &daemon{
		s: s, dir: filepath.Join(s.o.Dir, want.Name), wakeup: make(chan struct{}, 1), ended: make(chan struct{}),
		old: old, want: want, generation: 1,
	}
	d.ctx, d.cancel = context.WithCancelCause(s.ctx)
	s.daemons[want.Name] = d
	s.wg.Go(func() {
		defer close(d.ended)
		d.run()
	})
	return d
}

// ensure makes a daemon run as described. It returns once the daemon serves, or the reason why it does not. It does
// nothing if the context has ended, because claims may have come and gone since.
func (s *Supervisor) ensure(ctx context.Context, want mpsd.Daemon) (mpsd.Status, error) {
	if err := want.Validate(); err != nil {
		return mpsd.Status{}, err
	}
	d, generation, failures, err := s.request(ctx, want)
	for errors.Is(err, errEnding) { // A stop whose caller did not wait for the end.
		if err = s.end(ctx, d); err == nil {
			d, generation, failures, err = s.request(ctx, want)
		}
	}
	if err != nil {
		return mpsd.Status{}, err
	}
	for {
		s.mu.Lock()
		status, changed := d.status, s.changed
		ready, failed := d.applied >= generation && status.PID != 0 && !d.faulty, d.failures > failures
		s.mu.Unlock()
		switch {
		case ready:
			return status, nil
		case failed:
			return status, fmt.Errorf("the MPS daemon of %s is not ready: %s", want.Name, status.Problem)
		}
		select {
		case <-changed:
		case <-d.ended:
			return mpsd.Status{}, fmt.Errorf("the daemon of %s was ended", want.Name)
		case <-ctx.Done():
			return mpsd.Status{}, fmt.Errorf("the MPS daemon of %s is not ready in time: %s", want.Name,
				cmp.Or(status.Problem, "it is starting"))
		}
	}
}

var errEnding = errors.New("the daemon is being ended")

// request sets the desired daemon. It returns its generation, and the number of failures before this call.
func (s *Supervisor) request(ctx context.Context, want mpsd.Daemon) (d *daemon, generation, failures int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := cmp.Or(context.Cause(ctx), context.Cause(s.ctx)); err != nil {
		return nil, 0, 0, err
	}
	d, ok := s.daemons[want.Name]
	switch {
	case !ok:
		d = s.begin(want, note{})
	case d.ctx.Err() != nil:
		return d, 0, 0, errEnding
	case !reflect.DeepEqual(d.want, want):
		d.want = want
		d.generation++
		d.wake()
	case d.status.PID == 0, d.applied < d.generation: // It ended, or it did not take its limits.
		d.wake()
	}
	return d, d.generation, d.failures, nil
}

// stop ends a daemon and removes its directory. It does nothing if the context has ended.
func (s *Supervisor) stop(ctx context.Context, name string) error {
	if err := (mpsd.Daemon{Name: name, UUID: "GPU-0"}).Validate(); err != nil {
		return err
	}
	s.mu.Lock()
	d, ok := s.daemons[name]
	s.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !ok {
		return removeLeftover(filepath.Join(s.o.Dir, name))
	}
	d.cancel(errors.New("it is not needed any more"))
	return s.end(ctx, d)
}

// end waits for the end of a daemon, and removes it.
func (s *Supervisor) end(ctx context.Context, d *daemon) error {
	name := filepath.Base(d.dir)
	select {
	case <-d.ended:
	case <-ctx.Done():
		return fmt.Errorf("the MPS daemon of %s is still being ended", name)
	}
	if s.ctx.Err() != nil {
		return errStopping
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.daemons[name] != d {
		return nil // Another call removed it, and the directory can be the next one's.
	}
	err := removeDir(d.dir)
	if err == nil {
		delete(s.daemons, name)
		s.notify()
	}
	return err
}

// list returns the status of all daemons, once its version differs from after or the context ends.
func (s *Supervisor) list(ctx context.Context, after string) mpsd.List {
	s.mu.Lock()
	for after == s.versionText() && ctx.Err() == nil {
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	l := mpsd.List{Version: s.versionText()}
	for _, name := range slices.Sorted(maps.Keys(s.daemons)) {
		d := s.daemons[name]
		status := d.status
		status.Daemon = d.want
		l.Daemons = append(l.Daemons, status)
	}
	return l
}

// versionText starts with an ID of this process, so that a restarted supervisor's versions differ. The caller holds
// s.mu.
func (s *Supervisor) versionText() string {
	return strconv.Itoa(os.Getpid()) + "-" + strconv.FormatUint(s.version, 10)
}

// notify wakes callers that wait for a change. The caller holds s.mu.
func (s *Supervisor) notify() {
	s.version++
	close(s.changed)
	s.changed = make(chan struct{})
}
