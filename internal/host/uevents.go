// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Uevents calls changed after the kernel loaded or removed a module, or bound a driver to a PCI device or unbound it,
// until the context ends. Messages can be lost: then it calls changed too. A container has them from the node's kernel
// unless it has a user namespace of its own, where there are none.
func Uevents(ctx context.Context, changed func()) error {
	const kernel = 1 // the group of the kernel's own messages
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
		unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return fmt.Errorf("open a socket for the kernel's events: %w", err)
	}
	socket := os.NewFile(uintptr(fd), "uevents")
	defer context.AfterFunc(ctx, func() { _ = socket.Close() })()
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernel}); err != nil {
		_ = socket.Close()
		return fmt.Errorf("listen for the kernel's events: %w", err)
	}
	message := make([]byte, 16<<10) // The kernel's are at most 2 KiB and a path.
	for {
		n, err := socket.Read(message)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, unix.ENOBUFS):
			changed()
		case err != nil:
			return fmt.Errorf("read the kernel's events: %w", err)
		case rebinds(message[:n]):
			changed()
		}
	}
}

// rebinds reports whether a message is of a module or a PCI device: after its header it has variables.
func rebinds(message []byte) bool {
	return slices.ContainsFunc(bytes.Split(message, []byte{0}), func(variable []byte) bool {
		return string(variable) == "SUBSYSTEM=module" || string(variable) == "SUBSYSTEM=pci"
	})
}
