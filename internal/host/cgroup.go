// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Cgroups returns the directory of the cgroups of version 2 in a /sys, or "" if the node has none, or beside it those of
// version 1, in which containers are then.
func Cgroups(sysRoot string) string {
	dir := filepath.Join(sysRoot, "fs/cgroup")
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
		return ""
	}
	return dir
}
