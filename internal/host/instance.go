// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"
)

// Instance is this process's place, by age, among those that share a lock file. During an upgrade two plugins run side
// by side; tasks for one plugin only belong to the newest until it ends.
type Instance struct {
	host   *Host
	path   string
	number int64
}

// Enlist makes this process the newest. The kernel removes it from the list when the process ends, for any reason.
func (h *Host) Enlist(ctx context.Context, path string) (*Instance, error) {
	lock, err := h.Lock(ctx, path, 0)
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	// Each instance locks the byte of its number, so that the kernel knows the numbers of the live instances.
	i := &Instance{host: h, path: path, number: 1}
	for {
		living, err := lock.above(i.number)
		if err != nil {
			return nil, err
		}
		if living == 0 {
			break
		}
		i.number = living + 1
	}
	if _, err := h.Lock(ctx, path, i.number); err != nil {
		return nil, err
	}
	return i, nil
}

// Newest says whether no younger instance is alive.
func (i *Instance) Newest(ctx context.Context) (bool, error) {
	lock, err := i.host.Lock(ctx, i.path, 0)
	if err != nil {
		return false, err
	}
	defer lock.Release()
	living, err := lock.above(i.number + 1)
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
