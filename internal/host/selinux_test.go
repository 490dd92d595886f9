// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/host/hosttest"
)

func TestShareWithContainers_Contexts(t *testing.T) {
	const shared = "system_u:object_r:container_file_t:s0"
	with, without := hosttest.Filesystems(t, true), hosttest.Filesystems(t, false)
	for name, c := range map[string]struct{ filesystems, before, want string }{
		"a kernel with SELinux":               {with, "", shared},
		"a kernel without it":                 {without, "", ""},
		"the kernel's list cannot be read":    {t.TempDir(), "", shared},
		"the type of the kubelet's directory": {with, "system_u:object_r:container_var_lib_t:s0", shared},
		"already shared, by another user":     {with, "unconfined_u:object_r:container_file_t:s0", "unconfined_u:object_r:container_file_t:s0"},
		"of the containers of one pod":        {with, "system_u:object_r:container_file_t:s0:c1,c2", shared},
		"not shared, but there is no SELinux": {without, "system_u:object_r:var_lib_t:s0", "system_u:object_r:var_lib_t:s0"},
		"a context that is none":              {with, "container_file_t", shared},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "file")
			if err := os.WriteFile(file, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			for _, path := range []string{dir, file} {
				if err := unix.Lsetxattr(path, "security.selinux", []byte(c.before+"\x00"), 0); c.before != "" && err != nil {
					t.Fatal(err)
				}
			}
			if c.before == "" {
				_ = unix.Lremovexattr(dir, "security.selinux")
				_ = unix.Lremovexattr(file, "security.selinux")
			}
			if err := host.ShareWithContainers(dir, c.filesystems); err != nil {
				t.Fatal(err)
			}
			for _, path := range []string{dir, file} {
				if have := hosttest.SELinuxContext(path); have != c.want {
					t.Errorf("%s has the context %q, want %q", path, have, c.want)
				}
			}
		})
	}
}

// TestShareWithContainers_Refused_NamesTheFile uses a file system that has no contexts to change.
func TestShareWithContainers_Refused_NamesTheFile(t *testing.T) {
	err := host.ShareWithContainers("/proc/self/fdinfo", hosttest.Filesystems(t, true))
	if err == nil || !strings.Contains(err.Error(), "/proc/self/fdinfo") || !strings.Contains(err.Error(), "container_file_t") {
		t.Error(err)
	}
	if err := host.ShareWithContainers("/proc/self/fdinfo", hosttest.Filesystems(t, false)); err != nil {
		t.Errorf("without SELinux: %v", err)
	}
}
