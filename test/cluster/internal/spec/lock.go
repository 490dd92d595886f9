// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// ErrUp means that a cluster runs in the directory.
var ErrUp = errors.New("a cluster is up here")

// Lock takes the lock of a cluster directory. It returns ErrUp if a process of a cluster holds the lock. The lock
// passes to child processes with the file and ends when the last of them has ended.
func Lock(dir string) (*os.File, error) {
	for {
		f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, fmt.Errorf("%s: %w (`onenode status --dir %s` shows it, `onenode down --dir %s` ends it)", dir, ErrUp, dir, dir)
			}
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		// The last holder may have removed the file between our open and its release.
		if mine, err := f.Stat(); err == nil {
			if there, err := os.Stat(f.Name()); err == nil && os.SameFile(mine, there) {
				return f, nil
			}
		}
		f.Close()
		if _, err := os.Stat(dir); err != nil {
			return nil, err
		}
	}
}

// WaitGone waits until all processes of the cluster in dir have ended. It also works if the directory is removed
// meanwhile: the lock is on the open file, not on its name.
func WaitGone(ctx context.Context, dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("processes of the cluster in %s are still there: %w", dir, ctx.Err())
		}
	}
}
