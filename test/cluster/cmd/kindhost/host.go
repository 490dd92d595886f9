// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gpu-dra-driver/test/cluster/internal/nodeimage"
	"gpu-dra-driver/test/cluster/internal/owner"
	"gpu-dra-driver/test/cluster/internal/recipe"
	"gpu-dra-driver/test/cluster/internal/sandbox"
	"gpu-dra-driver/test/cluster/internal/spec"
)

// host is the first process of the namespaces: dockerd, the image, then the command. All other processes end with it.
func host(dir string, command []string) error {
	syscall.CloseOnExec(3) // the watcher's pipe
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s, err := spec.Load(dir)
	if err != nil {
		return err
	}
	if err := isolate(s); err != nil {
		return err
	}
	began := time.Now()
	if err := startDocker(ctx, s); err != nil {
		return err
	}
	step(began, "dockerd")
	if err := importImage(ctx, s, os.Getenv("KIND_NODE_IMAGE")); err != nil {
		return err
	}
	step(began, "node image")
	program, err := lookPath(s, command[0])
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = grace
	return code(cmd.Run())
}

// lookPath finds a program in the directory's bin first: this process's PATH names it.
func lookPath(s spec.Spec, name string) (string, error) {
	if path, err := exec.LookPath(s.Path("bin", name)); err == nil {
		return path, nil
	}
	return exec.LookPath(name)
}

// isolate sets the namespaces up. A mount from here on is in the own namespace only.
func isolate(s spec.Spec) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	for _, m := range []struct{ kind, dir string }{
		{"proc", "/proc"},
		{"tmpfs", "/run"},        // The machine's has sockets of its containerd and dockerd.
		{"tmpfs", "/etc/docker"}, // The settings of the machine's dockerd.
	} {
		if _, err := os.Stat(m.dir); errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := unix.Mount(m.kind, m.dir, m.kind, unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	if err := dataInMemory(s); err != nil {
		return err
	}
	if err := sandbox.Loopback(); err != nil {
		return err
	}
	return sandbox.JoinCgroup(s.Cgroup())
}

// memoryForData is the available memory, in bytes, from which Docker's files are in memory. They need 2.2 GB.
const memoryForData = 8 << 30

// dataInMemory mounts a tmpfs for Docker's files if there is memory for them. It is faster, and works where the file
// system of the directory is an overlay, as in a container.
func dataInMemory(s spec.Spec) error {
	if err := os.Mkdir(s.Path("data"), 0o711); err != nil {
		return err
	}
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return err
	}
	if available(string(b)) < memoryForData {
		return nil
	}
	if err := unix.Mount("tmpfs", s.Path("data"), "tmpfs", 0, "mode=711,size=6g"); err != nil {
		return fmt.Errorf("mount a tmpfs for Docker's files: %w", err)
	}
	return nil
}

// available reads the available memory, in bytes, from a /proc/meminfo.
func available(meminfo string) uint64 {
	for line := range strings.Lines(meminfo) {
		if value, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			var kib uint64
			if _, err := fmt.Sscanf(value, "%d kB", &kib); err == nil {
				return kib << 10
			}
		}
	}
	return 0
}

// limit is the time in which dockerd must answer, on a busy machine.
const limit = time.Minute

func startDocker(ctx context.Context, s spec.Spec) error {
	log, err := os.Create(s.Path("dockerd.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{
		"--data-root", s.Path("data"), "--exec-root", s.Path("exec"), "--pidfile", s.Path("docker.pid"),
		"-H", "unix://" + s.Path("docker.sock"), "--storage-driver", "overlay2",
		"--cgroup-parent", "/" + s.Cgroup() + "/docker", "--exec-opt", "native.cgroupdriver=cgroupfs",
	}
	if !nodeimage.SysResource() {
		args = append(args, "--add-runtime", recipe.RunCap+"="+s.Path("bin", recipe.RunCap), "--default-runtime", recipe.RunCap)
	}
	cmd := exec.Command("dockerd", args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		out, err := docker(ctx, s, nil, "version")
		if err == nil {
			return nil
		}
		select {
		case <-ticker.C:
			continue
		case err = <-ended:
		case <-ctx.Done():
			err = errors.Join(ctx.Err(), err)
		}
		text, _ := os.ReadFile(log.Name())
		return fmt.Errorf("start dockerd: %w\n%s%s", err, out, text)
	}
}

func importImage(ctx context.Context, s spec.Spec, reference string) error {
	root, err := nodeimage.Open(s.Path("bin", archive))
	if err != nil {
		return err
	}
	defer root.Close()
	if out, err := docker(ctx, s, root, "import", "-", nodeimage.RootReference); err != nil {
		return fmt.Errorf("import the node's root file system: %w\n%s", err, out)
	}
	// BuildKit would look for the base image in a registry.
	if err := os.Setenv("DOCKER_BUILDKIT", "0"); err != nil {
		return err
	}
	defer os.Unsetenv("DOCKER_BUILDKIT")
	if out, err := docker(ctx, s, strings.NewReader(nodeimage.Dockerfile), "build", "--quiet", "--tag", reference, "-"); err != nil {
		return fmt.Errorf("make the node image: %w\n%s", err, out)
	}
	return nil
}

func docker(ctx context.Context, s spec.Spec, in io.Reader, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, s.Path("bin", "docker"), args...)
	cmd.Stdin = in
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// watch waits for the end of standard input, which ends with the last process of the run, and cleans up.
func watch(dir string) error {
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	s, err := spec.Load(dir)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	err = restoreTunables(dir)
	return errors.Join(err, owner.Clean(s))
}
