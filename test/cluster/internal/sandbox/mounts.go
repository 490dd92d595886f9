// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package sandbox makes the environment of a node: its file system, its addresses and its cgroups. It changes no file
// outside of the cluster's directory, and leaves none behind.
//
// The node sees the machine's own file system, so that host paths work and new files outside appear inside at once.
// The exceptions are the directories that Kubernetes and its plugins write: /run, /etc, /var/lib, /var/log and
// /dev/shm are the node's own. The default paths of kubelet, CDI and every chart therefore work unmodified, even on a
// machine with a kubelet or a container runtime.
//
// A further node of a cluster has copies of all this, and a simulated driver root of its own at the first node's
// path.
//
// Traps: this code runs in a mount namespace of its own. It is private at first and shared within itself at the end,
// because the kubelet requires that. /etc is an overlay and does not show later changes of the machine's /etc. A
// directory under /run, /etc, /var/lib or /var/log of the machine must be kept explicitly to be visible inside
// (keep).
package sandbox

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"gpu-dra-driver/test/cluster/internal/spec"
)

// tunables are the kernel settings that a kubelet changes for the whole machine unless they have these values; the
// node sees files in their place.
var tunables = map[string]string{
	"vm/overcommit_memory":      "1\n",
	"vm/panic_on_oom":           "0\n",
	"kernel/panic":              "10\n",
	"kernel/panic_on_oops":      "1\n",
	"kernel/keys/root_maxkeys":  "1000000\n",
	"kernel/keys/root_maxbytes": "25000000\n",
}

// BootIDFile is the file from which the kubelet and others read the boot ID.
const BootIDFile = "/proc/sys/" + bootID

const bootID = "kernel/random/boot_id"

// Mounts makes the node's file system. It must run in a fresh mount and PID namespace, by its first process. The
// directories of keep stay visible anywhere.
func Mounts(s spec.Spec, keep ...string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the node's mounts private: %w", err)
	}
	kept, err := open(keep)
	if err != nil {
		return err
	}
	defer kept.close()
	for _, dir := range []string{"kubelet", "containerd", "etcd", "var-log", "cni", "tmp", "opt", "volume-plugins", "etc", "var-lib", "proc"} {
		if err := os.MkdirAll(s.Node(dir), 0o755); err != nil {
			return err
		}
	}
	steps := []func() error{
		func() error {
			return mount(s.Source(), "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
		},
		func() error { return replica("/var/lib", s.Node("var-lib"), "kubelet", "cni", "containerd") },
		func() error { return bind(s.Node("kubelet"), "/var/lib/kubelet") },
		func() error { return bind(s.Node("cni"), "/var/lib/cni") },
		func() error { return overlayEtc(s.Node("etc")) },
		func() error { return os.MkdirAll("/etc/cdi", 0o755) },
		func() error { return bind(s.Node("var-log"), "/var/log") },
		func() error { return volatile(s) },
		kept.restore,
		func() error { return ownDriver(s) },
		func() error { return maskTunables(s) },
		func() error { return NewBootID(s) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("build the node's file system: %w", err)
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share mounts within the node: %w", err)
	}
	return nil
}

// ownDriver mounts a further node's own driver root at the path of the first node's, below the cluster's directory,
// so that the same hostPath leads to each node's GPUs. The mount vanishes if the directory beneath is removed from
// outside: it must stay as long as the cluster does.
func ownDriver(s spec.Spec) error {
	if s.First() {
		return nil
	}
	own, common := s.Node("driver"), s.Path("driver")
	if err := errors.Join(os.MkdirAll(own, 0o755), os.MkdirAll(common, 0o755)); err != nil {
		return err
	}
	return bind(own, common)
}

// volatile mounts the directories that are empty after a boot.
func volatile(s spec.Spec) error {
	if err := mount(s.Source(), "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return err
	}
	if err := os.Mkdir("/run/lock", 0o777|os.ModeSticky); err != nil {
		return err
	}
	// /var/run is a link to /run nearly everywhere.
	if info, err := os.Lstat("/var/run"); err == nil && info.IsDir() {
		if err := bind("/run", "/var/run"); err != nil {
			return err
		}
	}
	return mount(s.Source(), "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")
}

// overlayEtc lets the node write to /etc without changing the machine's.
func overlayEtc(dir string) error {
	if err := mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	upper, work := filepath.Join(dir, "upper"), filepath.Join(dir, "work")
	if err := errors.Join(os.Mkdir(upper, 0o755), os.Mkdir(work, 0o755)); err != nil {
		return err
	}
	// Containers have resolv.conf and hosts mounted into /etc; an overlay shows the files beneath these mounts.
	var files []string
	mountpoints, err := mountpoints()
	if err != nil {
		return err
	}
	for _, m := range mountpoints {
		if strings.HasPrefix(m, "/etc/") {
			files = append(files, m)
		}
	}
	kept, err := open(files)
	if err != nil {
		return err
	}
	defer kept.close()
	options := "lowerdir=/etc,upperdir=" + upper + ",workdir=" + work
	if err := mount("overlay", "/etc", "overlay", 0, options); err != nil {
		return err
	}
	return kept.restore()
}

// replica mounts a copy of a directory over it. It has every entry by bind mount, with exceptions, and new mount
// points can be created in it.
func replica(dir, staging string, except ...string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if err := mount("tmpfs", staging, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for _, name := range except {
		if err := os.Mkdir(filepath.Join(staging, name), 0o755); err != nil {
			return err
		}
	}
	for _, e := range entries {
		if slices.Contains(except, e.Name()) {
			continue
		}
		from, to := filepath.Join(dir, e.Name()), filepath.Join(staging, e.Name())
		switch {
		case e.IsDir():
			err = os.Mkdir(to, 0o755)
		case e.Type()&os.ModeSymlink != 0:
			var target string
			if target, err = os.Readlink(from); err == nil {
				err = os.Symlink(target, to)
			}
			if err != nil {
				return err
			}
			continue
		case e.Type().IsRegular():
			err = os.WriteFile(to, nil, 0o600)
		default:
			continue // a socket or a pipe belongs to a daemon of the machine
		}
		if err != nil {
			return err
		}
		if err := bind(from, to); err != nil {
			return err
		}
	}
	return mount(staging, dir, "", unix.MS_MOVE, "")
}

func maskTunables(s spec.Spec) error {
	for name, value := range tunables {
		if err := maskProcSys(s, name, value); err != nil {
			return err
		}
	}
	return nil
}

// NewBootID gives the node a boot ID of its own, a new one with each call.
func NewBootID(s spec.Spec) error {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return err
	}
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return maskProcSys(s, bootID, fmt.Sprintf("%x-%x-%x-%x-%x\n", b[:4], b[4:6], b[6:8], b[8:10], b[10:]))
}

// maskProcSys makes a file of /proc/sys read as the value, if the kernel has the file.
func maskProcSys(s spec.Spec, name, value string) error {
	target := filepath.Join("/proc/sys", name)
	if _, err := os.Stat(target); err != nil {
		return nil
	}
	file := s.Node("proc", strings.ReplaceAll(name, "/", "."))
	_, statErr := os.Stat(file)
	if err := os.WriteFile(file, []byte(value), 0o644); err != nil || statErr == nil {
		return err // mounted before: it shows the new value
	}
	return bind(file, target)
}

func bind(from, to string) error { return mount(from, to, "", unix.MS_BIND|unix.MS_REC, "") }

func mount(from, to, kind string, flags uintptr, data string) error {
	if err := unix.Mount(from, to, kind, flags, data); err != nil {
		return fmt.Errorf("mount %s on %s: %w", from, to, err)
	}
	return nil
}

// CanOverlay reports whether a directory's file system can be the upper layer of an overlay; another
// overlay, as the root of a container is, cannot.
func CanOverlay(dir string) bool {
	probe, err := os.MkdirTemp(dir, ".overlay-")
	if err != nil {
		return false
	}
	defer os.RemoveAll(probe)
	parts := map[string]string{}
	for _, p := range []string{"lower", "upper", "work", "merged"} {
		parts[p] = filepath.Join(probe, p)
		if os.Mkdir(parts[p], 0o755) != nil {
			return false
		}
	}
	options := "lowerdir=" + parts["lower"] + ",upperdir=" + parts["upper"] + ",workdir=" + parts["work"]
	if unix.Mount("overlay", parts["merged"], "overlay", 0, options) != nil {
		return false
	}
	return unix.Unmount(parts["merged"], 0) == nil
}
