// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Filesystems returns the path of a kernel's list of file systems, with or without that of SELinux.
func Filesystems(t testing.TB, selinux bool) string {
	path, list := filepath.Join(t.TempDir(), "filesystems"), "nodev\tsysfs\nnodev\ttmpfs\n\text4\n"
	if selinux {
		list += "nodev\tselinuxfs\n"
	}
	if err := os.WriteFile(path, []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// SELinuxContext returns the SELinux context of a file, or nothing without one.
func SELinuxContext(path string) string {
	var context [256]byte
	n, err := unix.Lgetxattr(path, "security.selinux", context[:])
	if err != nil {
		return ""
	}
	return string(bytes.TrimRight(context[:n], "\x00"))
}
