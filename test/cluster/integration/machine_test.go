// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// machine is the machine's state that a cluster could change.
type machine struct {
	mounts, links, cgroups, files []string
}

func observe(t *testing.T) machine {
	t.Helper()
	var m machine
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	m.mounts = strings.Split(string(b), "\n")
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range interfaces {
		m.links = append(m.links, i.Name)
	}
	for _, pattern := range []string{"/sys/fs/cgroup/*", "/sys/fs/cgroup/*/*"} {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		m.cgroups = append(m.cgroups, dirs...)
	}
	// Directories of kubelet, containerd and CNI on the machine; the cluster has its own.
	for _, dir := range []string{"/etc", "/etc/cdi", "/etc/cni", "/opt", "/run", "/var/lib", "/var/lib/kubelet", "/var/lib/cni", "/var/log", "/var/log/pods"} {
		entries, err := os.ReadDir(dir)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for _, e := range entries {
			m.files = append(m.files, filepath.Join(dir, e.Name()))
		}
	}
	for _, setting := range []string{"vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "kernel/random/boot_id"} {
		b, err := os.ReadFile("/proc/sys/" + setting)
		if err != nil {
			t.Fatal(err)
		}
		m.files = append(m.files, setting+"="+string(b))
	}
	return m
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

// assertNothingLeft fails the test unless the machine soon has its old state. Only this cluster's processes and
// cgroups count, because other clusters may start and stop meanwhile.
func (c cluster) assertNothingLeft(before machine, identity string) {
	c.t.Helper()
	eventually(c.t, 15*time.Second, func() string {
		if left := c.processes(identity); len(left) > 0 {
			return fmt.Sprintf("processes left: %q", left)
		}
		now := observe(c.t)
		for _, d := range now.cgroups {
			if strings.HasSuffix(d, "/"+identity) {
				return "cgroup left: " + d
			}
		}
		for _, kind := range []struct {
			name        string
			before, now []string
		}{{"mount", before.mounts, now.mounts}, {"link", before.links, now.links}, {"file or setting", before.files, now.files}} {
			for _, x := range kind.now {
				if !slices.Contains(kind.before, x) {
					return fmt.Sprintf("%s left: %s", kind.name, x)
				}
			}
		}
		if _, err := os.Lstat(c.dir); err == nil {
			return c.dir + " is still there"
		}
		return ""
	})
}

// processes lists the cluster's processes: in its cgroup, or with its directory in their arguments.
func (c cluster) processes(identity string) []string {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		c.t.Fatal(err)
	}
	var found []string
	for _, e := range entries {
		cmdline, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		cgroup, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cgroup"))
		if strings.Contains(string(cgroup), identity) || strings.Contains(string(cmdline), c.dir) {
			found = append(found, e.Name()+" "+strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
	}
	return found
}
