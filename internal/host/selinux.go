// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// selinuxAttribute is the extended attribute with a file's SELinux context: user:role:type:level.
const selinuxAttribute = "security.selinux"

// The type and the level of files that the containers of every pod use. The policy container-selinux names the type.
// Pods have categories, such as s0:c1,c2; a file without them is open to all.
const containerType, containerLevel = "container_file_t", "s0"

// ShareWithContainers gives a directory and its files the SELinux context of files that containers use, and makes the
// directory if it is missing. Later files inherit the type. It does nothing on a kernel without SELinux. In permissive
// mode it does the same as in enforcing mode, so that a switch between them denies nothing. filesystems is the kernel's
// list; empty: that of /proc.
func ShareWithContainers(dir, filesystems string) error {
	// The kernel lists this file system exactly if it has SELinux. A container need not have it mounted.
	list, err := os.ReadFile(cmp.Or(filesystems, "/proc/filesystems"))
	if err == nil && !bytes.Contains(list, []byte("\tselinuxfs\n")) {
		return nil
	}
	// After an error the attribute harms nothing.
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make a directory for containers: %w", err)
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = shareFile(path)
		}
		if errors.Is(err, fs.ErrNotExist) && path != dir {
			return nil // It was removed meanwhile.
		}
		if err != nil {
			err = fmt.Errorf("give %s the SELinux type %s: %w", path, containerType, err)
		}
		return err
	})
}

func shareFile(path string) error {
	var now [4096]byte
	// An absent or unreadable context is replaced.
	if n, err := unix.Lgetxattr(path, selinuxAttribute, now[:]); err == nil {
		if parts := strings.SplitN(string(bytes.TrimRight(now[:n], "\x00")), ":", 4); len(parts) == 4 &&
			parts[2] == containerType && parts[3] == containerLevel {
			return nil // Policies deny more changes than reads.
		}
	}
	return unix.Lsetxattr(path, selinuxAttribute,
		[]byte("system_u:object_r:"+containerType+":"+containerLevel+"\x00"), 0)
}
