// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// system is the cgroup of everything that is not a pod, a sibling of the kubelet's. On cgroup v2 a cgroup that
// delegates controllers to its children may not hold processes itself.
const system = "system"

// Hierarchies lists the mount points of cgroup hierarchies: one on v2, several on v1 and on a hybrid.
func Hierarchies() ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	roots := parseHierarchies(string(b))
	if len(roots) == 0 {
		return nil, errors.New("no cgroup hierarchy is mounted: mount cgroup2 on /sys/fs/cgroup")
	}
	return roots, nil
}

func parseHierarchies(mountinfo string) []string {
	var roots []string
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		if !ok {
			continue
		}
		if kind, _, _ := strings.Cut(after, " "); kind != "cgroup" && kind != "cgroup2" {
			continue
		}
		if fields := strings.Fields(before); len(fields) > 4 && strings.HasPrefix(fields[4], "/sys/fs/cgroup") {
			roots = append(roots, fields[4])
		}
	}
	return roots
}

// JoinCgroup creates the cgroup name in every hierarchy, under the root or in an existing cgroup. It moves the
// calling process to the child cgroup for processes outside of pods.
func JoinCgroup(name string) error {
	roots, err := Hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		dir := filepath.Join(root, name)
		if err := makeCgroup(filepath.Dir(dir), dir); err != nil {
			return fmt.Errorf("make cgroup %s: %w", dir, err)
		}
		child := filepath.Join(dir, system)
		if err := makeCgroup(dir, child); err != nil {
			return fmt.Errorf("make cgroup %s: %w", child, err)
		}
		if err := os.WriteFile(filepath.Join(child, "cgroup.procs"), []byte("0"), 0); err != nil {
			return fmt.Errorf("enter cgroup %s: %w", child, err)
		}
	}
	return nil
}

func makeCgroup(parent, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if controllers, err := os.ReadFile(filepath.Join(parent, "cgroup.controllers")); err == nil && len(bytes.TrimSpace(controllers)) > 0 {
		return delegate(parent, dir, strings.Fields(string(controllers)))
	}
	// v1: a cpuset without CPUs and memory nodes accepts no process.
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		if value, err := os.ReadFile(filepath.Join(parent, file)); err == nil {
			if err := os.WriteFile(filepath.Join(dir, file), value, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// delegate delegates the parent's v2 controllers to its children. The leaf for processes has them as well and
// delegates none.
func delegate(parent, dir string, controllers []string) error {
	for _, c := range controllers {
		err := os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+"+c), 0)
		if err != nil && (c == "cpu" || c == "memory" || c == "pids") {
			return fmt.Errorf("hand the %s controller to children of %s (a cgroup with processes of its own cannot: run where it has none): %w", c, parent, err)
		}
	}
	return nil
}

// InCgroup reports whether a process is in the cgroup name or below it.
func InCgroup(pid int, name string) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && parseInCgroup(string(b), name)
}

// parseInCgroup looks for the name anywhere in the paths: if the mounted root is a container's, they begin with the
// levels above it.
func parseInCgroup(cgroups, name string) bool {
	for line := range strings.Lines(cgroups) {
		if strings.Contains(strings.TrimSpace(line)+"/", "/"+name+"/") {
			return true
		}
	}
	return false
}

// RemoveCgroup removes the cgroup name and its children, once its processes are gone; it kills the remaining ones. It
// is for use after the cluster's processes have been signalled.
func RemoveCgroup(ctx context.Context, name string) error {
	roots, err := Hierarchies()
	if err != nil {
		return err
	}
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		var left error
		for _, root := range roots {
			left = errors.Join(left, removeTree(filepath.Join(root, name)))
		}
		if left == nil {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return left
		}
	}
}

// ClearPods kills the processes in the pods' cgroups under name and removes the cgroups.
func ClearPods(ctx context.Context, name string) error {
	return RemoveCgroup(ctx, filepath.Join(name, "kubepods"))
}

// removeTree removes a cgroup depth first, and kills its processes.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.IsDir() {
			errs = append(errs, removeTree(filepath.Join(dir, e.Name())))
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs")); err == nil {
		for pid := range strings.FieldsSeq(string(b)) {
			if n, err := strconv.Atoi(pid); err == nil && n > 1 {
				unix.Kill(n, unix.SIGKILL)
			}
		}
	}
	// os.Remove would try unlink first; either way only an empty cgroup is removed.
	if err := unix.Rmdir(dir); err != nil && err != unix.ENOENT {
		errs = append(errs, fmt.Errorf("remove cgroup %s: %w", dir, err))
	}
	return errors.Join(errs...)
}
