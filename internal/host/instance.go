// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// Instance is this process's place among those that share a lock file, by age. During an upgrade two plugins live side
// by side, and what only one may do is the newest's, until it dies.
type Instance struct {
	host   *Host
	path   string
	number int64
}

// Enlist makes this process the newest. The kernel strikes it off when the process ends, however it ends.
func (h *Host) Enlist(ctx context.Context, path string) (*Instance, error) {
	lock, err := h.Lock(ctx, path, 0)
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	was, last, err := lastNumber(lock)
	if err != nil {
		return nil, err
	}
	i := &Instance{host: h, path: path, number: last + 1}
	if _, err := h.Lock(ctx, path, i.number); err != nil {
		return nil, err
	}
	return i, h.SetNotes("instance.number", lock, was, []string{strconv.FormatInt(i.number, 10)})
}

// Newest says whether no younger instance is alive.
func (i *Instance) Newest(ctx context.Context) (bool, error) {
	lock, err := i.host.Lock(ctx, i.path, 0)
	if err != nil {
		return false, err
	}
	defer lock.Release()
	_, last, err := lastNumber(lock)
	if err != nil {
		return false, err
	}
	for n := i.number + 1; n <= last; n++ {
		probe := unix.Flock_t{Type: unix.F_WRLCK, Start: n, Len: 1}
		if err := unix.FcntlFlock(lock.file.Fd(), unix.F_OFD_GETLK, &probe); err != nil {
			return false, fmt.Errorf("look for younger instances in %s: %w", i.path, err)
		}
		if probe.Type != unix.F_UNLCK {
			return false, nil
		}
	}
	return true, nil
}

func lastNumber(lock *Lock) ([]string, int64, error) {
	notes, err := lock.Notes()
	if err != nil || len(notes) == 0 {
		return notes, 0, err
	}
	last, err := strconv.ParseInt(notes[0], 10, 64)
	if err != nil || last < 0 || last > 1<<40 {
		// Nothing but this package writes the file; whatever damaged it, starting again from one is safe once no
		// older instance lives, and harmless while one does: both publish the same bytes.
		return notes, 0, nil
	}
	return notes, last, nil
}
