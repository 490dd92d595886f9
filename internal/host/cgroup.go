// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Cgroups returns the directory of the cgroups of version 2 in a /sys. It is "" if the node has none. It is also ""
// beside cgroups of version 1, because containers are in these then.
func Cgroups(sysRoot string) string {
	dir := filepath.Join(sysRoot, "fs/cgroup")
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
		return ""
	}
	return dir
}
