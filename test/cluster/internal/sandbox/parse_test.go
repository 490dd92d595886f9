// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

const hybrid = `27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
50 27 0:38 / /mnt/with\040blank/cgroup rw - cgroup2 cgroup2 rw
`

func TestParseHierarchies_V1AndV2_Found(t *testing.T) {
	for _, tt := range []struct {
		name, mountinfo string
		want            []string
	}{
		{"hybrid: every controller and the unified one, not copies elsewhere", hybrid,
			[]string{"/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified"}},
		{"v2: the one", "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n", []string{"/sys/fs/cgroup"}},
		{"none", "27 1 254:0 / / rw - ext4 /dev/vda rw\n", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, parseHierarchies(tt.mountinfo)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestParseMountpoints_EscapedBlank_Unescaped(t *testing.T) {
	got := parseMountpoints(hybrid)
	if len(got) != 6 || got[0] != "/" || got[5] != "/mnt/with blank/cgroup" {
		t.Errorf("got %q", got)
	}
}

// TestUnmounted_MountBelow_ReturnsError mounts in a process with mounts of its own, so that a killed test leaves none.
func TestUnmounted_MountBelow_ReturnsError(t *testing.T) {
	const inside = "SANDBOX_TEST_MOUNTS"
	if os.Getenv(inside) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	dir, other := t.TempDir(), t.TempDir()
	at := filepath.Join(dir, "node")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Unmounted(dir); err != nil {
		t.Error(err)
	}
	if err := unix.Mount(other, at, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	if err := Unmounted(dir); err == nil || !strings.Contains(err.Error(), at) {
		t.Errorf("%v, want %s in it", err, at)
	}
	if err := Unmounted(other); err != nil {
		t.Error(err)
	}
}

func FuzzMountinfo(f *testing.F) {
	f.Add(hybrid)
	f.Add("1 2 3 4 5 - cgroup")
	f.Fuzz(func(t *testing.T, mountinfo string) {
		parseHierarchies(mountinfo)
		parseMountpoints(mountinfo)
	})
}

func TestMakeCgroup_V1_InheritsCPUSets(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "child")
	for name, value := range map[string]string{"cpuset.cpus": "0-1\n", "cpuset.mems": "0\n"} {
		if err := os.WriteFile(filepath.Join(parent, name), []byte(value), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// The kernel makes these files in a new directory.
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := makeCgroup(parent, dir); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "cpuset.cpus")); err != nil || string(b) != "0-1\n" {
		t.Errorf("cpuset.cpus = %q, %v", b, err)
	}
}

func TestParseInCgroup_NameAndChildren_Found(t *testing.T) {
	for cgroups, want := range map[string]bool{
		"4:memory:/onenode-1/node-2\n":                        true,
		"0::/onenode-1/node-2/kubepods/besteffort\n":          true,
		"9:pids:/\n0::/outer/onenode-1/node-2/system\n":       true,
		"0::/onenode-1/node-20\n4:memory:/onenode-1/system\n": false,
	} {
		if got := parseInCgroup(cgroups, "onenode-1/node-2"); got != want {
			t.Errorf("%q: %v, want %v", cgroups, got, want)
		}
	}
}

func TestMakeCgroup_V2_DelegatesControllers(t *testing.T) {
	parent := t.TempDir()
	if err := os.WriteFile(filepath.Join(parent, "cgroup.controllers"), []byte("cpu memory pids\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := makeCgroup(parent, filepath.Join(parent, "child")); err != nil {
		t.Fatal(err)
	}
	// A plain file keeps the last write; the kernel adds each.
	if b, err := os.ReadFile(filepath.Join(parent, "cgroup.subtree_control")); err != nil || string(b) != "+pids" {
		t.Errorf("subtree_control = %q, %v", b, err)
	}
}

func TestEmpty_MountPoints_KeptWithTheirParents(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"cdi/specs", "keep/mounted/inner", "keep/other"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := empty(dir, []string{filepath.Join(dir, "keep/mounted")}); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{"cdi": false, "keep/other": false, "keep/mounted/inner": true} {
		if _, err := os.Stat(filepath.Join(dir, path)); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", path, err == nil, want)
		}
	}
}
