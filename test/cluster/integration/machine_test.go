// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// ownDirs are directories of kubelet, containerd and CNI, of which a node has its own.
var ownDirs = []string{"/etc", "/etc/cdi", "/run", "/run/cdi", "/var/lib", "/var/lib/kubelet", "/var/lib/cni",
	"/var/log", "/dev/shm"}

// markScript runs in a node. It makes a file with the name of the first argument in each directory of the node's own.
// It fails if a setting that kubelets change is the machine's.
var markScript = `set -e
for d in ` + strings.Join(ownDirs, " ") + `; do mkdir -p $d; : > $d/$1; done
for s in vm/overcommit_memory kernel/panic kernel/panic_on_oops kernel/random/boot_id; do
	grep -q " /proc/sys/$s " /proc/self/mountinfo || { echo "/proc/sys/$s is the machine's"; exit 1; }
done`

// checkSeparate fails the test if a running cluster can change the machine outside of its directory and its cgroups.
// The files that it makes in the nodes must not be on the machine; assertNothingLeft looks for them.
func (c cluster) checkSeparate(identity string, nodes int) {
	c.t.Helper()
	c.removeMarks(identity)
	for node := range nodes {
		c.must("exec", "--node", fmt.Sprint(node+1), "--", "sh", "-c", markScript, "sh", identity)
	}
	// containerd would make /opt/containerd.
	if made, err := filepath.Glob(filepath.Join(c.dir, "node*", "opt", "bin")); err != nil || len(made) != nodes {
		c.t.Errorf("containerd does not use the cluster's own directory of plugins: %v %v", made, err)
	}
	found := 0
	for _, p := range c.processes(identity) {
		if !strings.Contains(p.cgroup, identity) {
			continue
		}
		for _, kind := range []string{"net", "mnt"} {
			own, err := os.Readlink(filepath.Join("/proc", p.pid, "ns", kind))
			if err != nil {
				continue // It ended.
			}
			found++
			if ours, err := os.Readlink("/proc/self/ns/" + kind); err != nil || own == ours {
				c.t.Errorf("%s has the machine's %s namespace (%v)", p, kind, err)
			}
		}
	}
	if found == 0 {
		c.t.Error("no process of the cluster was found")
	}
}

// identity reads the unique name of the cluster's cgroup.
func (c cluster) identity() string {
	c.t.Helper()
	b, err := os.ReadFile(filepath.Join(c.dir, "onenode.json"))
	if err != nil {
		c.t.Fatal(err)
	}
	var spec struct{ ID string }
	if err := json.Unmarshal(b, &spec); err != nil || spec.ID == "" {
		c.t.Fatalf("no identity in %s: %v", b, err)
	}
	return "onenode-" + spec.ID
}

// assertNothingLeft fails the test unless everything that this cluster made soon is gone: processes, cgroups, mounts
// and files with its directory or its identity. Other programs of the machine may start, end, and mount meanwhile.
func (c cluster) assertNothingLeft(identity string) {
	c.t.Helper()
	eventually(c.t, 15*time.Second, func() string {
		if left := c.processes(identity); len(left) > 0 {
			return fmt.Sprintf("processes left: %v", left)
		}
		if _, err := os.Lstat(c.dir); err == nil {
			return c.dir + " is still there"
		}
		return c.leftOutside(identity)
	})
}

// removeMarks removes the files of markScript from the machine after the test. There are none unless the test fails.
func (c cluster) removeMarks(identity string) {
	c.t.Cleanup(func() {
		for _, dir := range ownDirs {
			_ = os.Remove(filepath.Join(dir, identity))
		}
	})
}

// leftOutside describes a cgroup, a mount or a file of the cluster outside of its directory.
func (c cluster) leftOutside(identity string) string {
	for _, below := range []string{"", "*", "*/*"} {
		if dirs, err := filepath.Glob(filepath.Join("/sys/fs/cgroup", below, identity)); err != nil || len(dirs) > 0 {
			return fmt.Sprintf("cgroups left: %v %v", dirs, err)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		c.t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if c.names(line, identity) {
			return "mount left: " + line
		}
	}
	for _, dir := range append([]string{"/opt", "/etc/cni", "/var/log/pods"}, ownDirs...) {
		entries, err := os.ReadDir(dir)
		if err != nil && !os.IsNotExist(err) {
			c.t.Fatal(err)
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			if strings.Contains(e.Name(), identity) {
				return "file left: " + path
			}
			if file := c.mentioned(path, identity); file != "" {
				return "file left: " + file
			}
		}
	}
	return ""
}

// names reports whether a text names the cluster. A mount's root is a path in its file system, which may not contain
// the path of the temporary directory.
func (c cluster) names(text, identity string) bool {
	dir := strings.TrimPrefix(c.dir, filepath.Clean(os.TempDir()))
	return strings.Contains(text, identity) || strings.Contains(text, dir)
}

// mentioned returns a file at a path, or directly in it, that names the cluster.
func (c cluster) mentioned(path, identity string) string {
	paths := []string{path}
	if entries, err := os.ReadDir(path); err == nil {
		for _, e := range entries {
			paths = append(paths, filepath.Join(path, e.Name()))
		}
	}
	for _, p := range paths {
		const most = 64 << 10
		text, _ := os.Readlink(p)
		if info, err := os.Lstat(p); err == nil && info.Mode().IsRegular() && info.Size() < most {
			b, _ := os.ReadFile(p) // It was removed.
			text = string(b)
		}
		if c.names(text, identity) {
			return p
		}
	}
	return ""
}

// process is a process of a cluster.
type process struct{ pid, cmdline, cgroup string }

func (p process) String() string { return p.pid + " " + strings.ReplaceAll(p.cmdline, "\x00", " ") }

// processes lists the cluster's processes: in its cgroup, or with its directory in their arguments.
func (c cluster) processes(identity string) (found []process) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		c.t.Fatal(err)
	}
	for _, e := range entries {
		cmdline, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		cgroup, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cgroup"))
		if strings.Contains(string(cgroup), identity) || strings.Contains(string(cmdline), c.dir) {
			found = append(found, process{e.Name(), string(cmdline), string(cgroup)})
		}
	}
	return found
}
