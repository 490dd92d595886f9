// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Lock is a held lock. Release it once.
type Lock struct {
	owner *locker
	key   lockKey
	file  *os.File
}

// lockKey is one byte of one file: the kernel locks byte ranges, so that one file can hold a lock for every claim that
// will ever be, and no lock file need ever be made or unlinked for one.
type lockKey struct {
	path string
	at   int64
}

// locker gives out locks that hold across processes, since two plugins run side by side in an upgrade. Within the
// process waiters queue first come, first served, and only for the head is the file asked.
type locker struct {
	mu     sync.Mutex
	closed bool
	files  map[string]*os.File
	queues map[lockKey]*lockQueue
}

type lockQueue struct {
	waiters []chan error // closed or sent to when granted
	busy    bool         // held, or being acquired
}

// Lock takes the lock on byte at of the file, which is made if absent. It returns early with the context's error when
// the caller stops waiting. Locks are not re-entrant.
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
		if l.queues == nil {
			l.queues = map[lockKey]*lockQueue{}
		}
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
	if !l.leave(key, turn) {
		// The grant came in the same moment.
		if err := <-turn; err == nil {
			(&Lock{l, key, file}).Release()
		}
	}
	return nil, context.Cause(ctx)
}

// open gives the process's one descriptor for a lock file: locks belong to it, not to the process.
func (l *locker) open(path string) (*os.File, error) {
	if l.closed {
		return nil, os.ErrClosed
	}
	if f := l.files[path]; f != nil {
		return f, nil
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if l.files == nil {
		l.files = map[string]*os.File{}
	}
	l.files[path] = f
	return f, nil
}

// advance gets the file's lock for the head of the queue unless that is under way. l.mu is held.
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
		// Another process holds it. The kernel queues this thread; no polling.
		err := setLock(file, unix.F_OFD_SETLKW, unix.F_WRLCK, key.at)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.grant(key, file, queue, err)
	}()
}

// grant hands what was acquired to the head, or back when everyone has left. l.mu is held.
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

// leave takes a waiter out of its queue and says whether it was still there.
func (l *locker) leave(key lockKey, turn chan error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	queue := l.queues[key]
	if queue == nil {
		return false
	}
	for i, w := range queue.waiters {
		if w == turn {
			queue.waiters = append(queue.waiters[:i], queue.waiters[i+1:]...)
			return true
		}
	}
	return false
}

// Release gives the lock to the next in line.
func (k *Lock) Release() {
	k.owner.mu.Lock()
	defer k.owner.mu.Unlock()
	// Unlocking a range one holds cannot fail but for a closed descriptor, and these stay open.
	_ = setLock(k.file, unix.F_OFD_SETLK, unix.F_UNLCK, k.key.at)
	queue := k.owner.queues[k.key]
	queue.busy = false
	k.owner.advance(k.key, k.file, queue)
}

func setLock(file *os.File, cmd int, kind int16, at int64) error {
	return control(file, cmd, &unix.Flock_t{Type: kind, Start: at, Len: 1})
}

// control asks the kernel about locks of a file that may be closed meanwhile.
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
