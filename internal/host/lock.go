// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Lock is a held lock. Release it once.
type Lock struct {
	owner *locker
	key   lockKey
	file  *os.File
}

// lockKey is one byte of one file. The kernel locks byte ranges, so one file holds a lock for every claim, and no
// claim needs a lock file of its own.
type lockKey struct {
	path string
	at   int64
}

// locker grants locks that hold across processes, because two plugins run at the same time during an upgrade. Within
// the process waiters queue first come, first served, and only the first waiter calls the kernel for the lock.
type locker struct {
	host *Host

	mu     sync.Mutex
	closed bool
	files  map[string]*os.File
	queues map[lockKey]*lockQueue
}

type lockQueue struct {
	waiters []chan error // closed or sent to when granted
	busy    bool         // held, or being acquired
}

// Lock locks byte at of the file, and creates the file if needed. It returns the context's error when the caller stops
// waiting. Locks are not re-entrant.
func (h *Host) Lock(ctx context.Context, path string, at int64) (*Lock, error) {
	l, err := h.locks.lock(ctx, lockKey{path, at})
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return l, nil
}

func (l *locker) lock(ctx context.Context, key lockKey) (*Lock, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	l.mu.Lock()
	file, err := l.open(key.path)
	if err != nil {
		l.mu.Unlock()
		return nil, err
	}
	queue := l.queues[key]
	if queue == nil {
		queue = &lockQueue{}
		l.queues[key] = queue
	}
	turn := make(chan error, 1)
	queue.waiters = append(queue.waiters, turn)
	l.advance(key, file, queue)
	l.mu.Unlock()

	select {
	case err := <-turn:
		if err != nil {
			return nil, err
		}
		return &Lock{l, key, file}, nil
	case <-ctx.Done():
	}
	if !l.leave(key, turn) && <-turn == nil { // The lock was granted at the same moment.
		(&Lock{l, key, file}).Release()
	}
	return nil, context.Cause(ctx)
}

// open returns this Host's only descriptor of a lock file: locks belong to the descriptor. A file that was deleted is
// created again, because another process would create it too. The caller holds l.mu.
func (l *locker) open(path string) (*os.File, error) {
	if l.closed {
		return nil, os.ErrClosed
	}
	if f := l.files[path]; f != nil {
		if !deleted(f) || l.used(path) {
			return f, nil
		}
		_ = f.Close() // It holds no lock.
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	l.files[path] = f
	return f, nil
}

func deleted(f *os.File) bool {
	info, err := f.Stat()
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Nlink == 0
}

// used reports whether a lock of the file is held or awaited. The caller holds l.mu.
func (l *locker) used(path string) bool {
	for key := range l.queues {
		if key.path == path {
			return true
		}
	}
	return false
}

// advance acquires the file's lock for the first waiter, unless that is in progress. The caller holds l.mu.
func (l *locker) advance(key lockKey, file *os.File, queue *lockQueue) {
	if queue.busy {
		return
	}
	if len(queue.waiters) == 0 {
		delete(l.queues, key)
		return
	}
	queue.busy = true
	if err := setLock(file, unix.F_OFD_SETLK, unix.F_WRLCK, key.at); err == nil {
		l.grant(key, file, queue, nil)
		return
	}
	go func() {
		// Another process holds the lock. The kernel queues this thread, without polling.
		err := setLock(file, unix.F_OFD_SETLKW, unix.F_WRLCK, key.at)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.grant(key, file, queue, err)
	}()
}

// grant gives an acquired lock to the first waiter, or back to the kernel without waiters. The caller holds l.mu.
func (l *locker) grant(key lockKey, file *os.File, queue *lockQueue, err error) {
	if len(queue.waiters) > 0 {
		head := queue.waiters[0]
		queue.waiters = queue.waiters[1:]
		head <- err
		if err == nil {
			return
		}
	} else if err == nil {
		_ = setLock(file, unix.F_OFD_SETLK, unix.F_UNLCK, key.at)
	}
	queue.busy = false
	l.advance(key, file, queue)
}

// leave removes a waiter from its queue and reports whether it was still in the queue.
func (l *locker) leave(key lockKey, turn chan error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	queue := l.queues[key]
	if queue == nil {
		return false
	}
	i := slices.Index(queue.waiters, turn)
	if i < 0 {
		return false
	}
	queue.waiters = slices.Delete(queue.waiters, i, i+1)
	return true
}

// Release gives the lock to the next waiter.
func (k *Lock) Release() {
	k.owner.mu.Lock()
	defer k.owner.mu.Unlock()
	// Unlocking a held range fails only on a closed descriptor, and these stay open until Close.
	_ = setLock(k.file, unix.F_OFD_SETLK, unix.F_UNLCK, k.key.at)
	queue := k.owner.queues[k.key]
	queue.busy = false
	k.owner.advance(k.key, k.file, queue)
}

func setLock(file *os.File, cmd int, kind int16, at int64) error {
	return control(file, cmd, &unix.Flock_t{Type: kind, Start: at, Len: 1})
}

// control calls `fcntl` on a lock file. Close may close the file at the same time.
func control(file *os.File, cmd int, lock *unix.Flock_t) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	outer := raw.Control(func(fd uintptr) {
		for err = unix.EINTR; errors.Is(err, unix.EINTR); {
			err = unix.FcntlFlock(fd, cmd, lock)
		}
	})
	return errors.Join(outer, err)
}

// A lock's file can hold notes: lines that only the holder of the lock reads and writes. Notes survive a crash of the
// process, not of the machine, so a durable file must hold the same information.

func (k *Lock) Notes() ([]string, error) {
	data, err := again(func() ([]byte, error) {
		if read := k.owner.host.o.ReadFile; read != nil {
			return read(k.key.path)
		}
		return io.ReadAll(io.NewSectionReader(k.file, 0, 1<<20))
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", k.key.path, err)
	}
	return slices.Collect(strings.FieldsSeq(string(data))), nil
}

// SetNotes replaces the lines if they differ from was, which Notes returned. One system call writes the new text,
// padded to the old length, so that a killed process leaves either the old lines or the new. After an error there are
// none.
func (h *Host) SetNotes(label Label, k *Lock, was, lines []string) error {
	if slices.Equal(was, lines) {
		return nil
	}
	text := strings.Join(append(slices.Clone(lines), ""), "\n")
	size := int64(len(text))
	info, err := k.file.Stat()
	if err != nil {
		return fmt.Errorf("write %s: %w", k.key.path, err)
	}
	text += strings.Repeat("\n", int(max(0, info.Size()-size)))
	err = h.do(label, CallNote, k.key.path, func() error {
		if _, err := k.file.WriteAt([]byte(text), 0); err != nil {
			return errors.Join(err, k.file.Truncate(0)) // A full disk can take a part of the lines.
		}
		return k.file.Truncate(size)
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", k.key.path, err)
	}
	return nil
}

// Instance is this process's rank by age among the processes that share a lock file. During an upgrade two plugins
// run at the same time. Only the newest performs tasks for a single plugin, until it ends.
type Instance struct {
	// lock is on the byte of the instance's number, which is its position.
	lock *Lock
}

// Enlist makes this process the newest. The kernel removes it from the list when the process ends, for any reason.
func (h *Host) Enlist(ctx context.Context, path string) (*Instance, error) {
	lock, err := h.Lock(ctx, path, 0)
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	// Each instance locks the byte of its number, so that the kernel knows the numbers of the live instances.
	number := int64(1)
	for {
		living, err := lock.above(number)
		if err != nil {
			return nil, err
		}
		if living == 0 {
			break
		}
		number = living + 1
	}
	own, err := h.Lock(ctx, path, number)
	if err != nil {
		return nil, err
	}
	return &Instance{own}, nil
}

// Newest reports whether no younger instance is alive. It is one system call and does not wait.
func (i *Instance) Newest() (bool, error) {
	living, err := i.lock.above(i.lock.key.at + 1)
	return living == 0, err
}

// above returns the first byte, from first on, that another process has locked; 0 if there is none.
func (k *Lock) above(first int64) (int64, error) {
	probe := unix.Flock_t{Type: unix.F_WRLCK, Start: first} // to the end of all bytes
	if err := control(k.file, unix.F_OFD_GETLK, &probe); err != nil {
		return 0, fmt.Errorf("look for other instances in %s: %w", k.key.path, err)
	}
	if probe.Type == unix.F_UNLCK {
		return 0, nil
	}
	return probe.Start, nil
}
