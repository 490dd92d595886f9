// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// program is NVIDIA's control daemon, and the command that speaks to it.
const program = "nvidia-cuda-mps-control"

// Where the daemon finds its directories in its own mount namespace.
const (
	insidePipe = "/tmp/nvidia-mps"
	insideLog  = "/tmp/nvidia-mps-log"
)

// world is what a process of MPS sees.
type world struct {
	// Root is the driver's, DevRoot holds the device nodes where they are not the root's own.
	Root    string `json:"root"`
	DevRoot string `json:"devRoot,omitempty"`
	Pipe    string `json:"pipe"`
	Shm     string `json:"shm"`
	Log     string `json:"log"`
	UUID    string `json:"uuid"`
	// Args are the program's.
	Args []string `json:"args,omitempty"`
}

// EnterVerb is the first argument with which the supervisor's binary becomes a process of MPS.
const EnterVerb = "enter"

// Enter turns this process, which has a mount namespace of its own, into one of MPS. It returns only an error.
func Enter(args []string) error {
	if len(args) != 1 {
		return errors.New("this verb is the supervisor's own")
	}
	var w world
	if err := json.Unmarshal([]byte(args[0]), &w); err != nil {
		return fmt.Errorf("read what to enter: %w", err)
	}
	path, err := find(w.Root)
	if err != nil {
		return err
	}
	steps := []struct {
		what string
		do   func() error
	}{
		{"keep mounts to itself", func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") }},
		{"make its /tmp", func() error {
			return unix.Mount("tmpfs", filepath.Join(w.Root, "tmp"), "tmpfs", 0, "size=16m,mode=1777")
		}},
		{"make its pipe directory", func() error { return os.Mkdir(filepath.Join(w.Root, insidePipe), 0o755) }},
		{"make its log directory", func() error { return os.Mkdir(filepath.Join(w.Root, insideLog), 0o755) }},
		{"mount its pipe directory", func() error { return bind(w.Pipe, filepath.Join(w.Root, insidePipe)) }},
		{"mount its log directory", func() error { return bind(w.Log, filepath.Join(w.Root, insideLog)) }},
		{"mount its device nodes", func() error {
			if w.DevRoot == "" {
				return nil
			}
			return bind(filepath.Join(w.DevRoot, "dev"), filepath.Join(w.Root, "dev"))
		}},
		{"mount its /dev/shm", func() error { return bind(w.Shm, filepath.Join(w.Root, "dev/shm")) }},
		{"enter the driver root", func() error { return unix.Chroot(w.Root) }},
		{"go to its root", func() error { return unix.Chdir("/") }},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
	}
	env := []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "CUDA_MPS_PIPE_DIRECTORY=" + insidePipe, "CUDA_MPS_LOG_DIRECTORY=" + insideLog,
		"CUDA_VISIBLE_DEVICES=" + w.UUID,
	}
	for _, name := range passed {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return fmt.Errorf("run %s: %w", path, unix.Exec(path, append([]string{program}, w.Args...), env))
}

// passed are the variables that a process of MPS takes over: those that say where libraries are, and the simulator's.
var passed = []string{"LD_LIBRARY_PATH", "GPUSIM_MPS_START"}

func bind(from, to string) error {
	return unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, "")
}

// find looks for the program in the driver root and gives its path there.
func find(root string) (string, error) {
	for _, dir := range []string{"usr/bin", "bin", "usr/local/bin", "opt/bin"} {
		path := filepath.Join(dir, program)
		if info, err := os.Stat(filepath.Join(root, path)); err == nil && info.Mode().IsRegular() {
			return "/" + path, nil
		}
	}
	return "", fmt.Errorf("%s is not in the driver root: install the driver's MPS programs (nvidia-compute-utils, cuda-mps)", program)
}

// command is a process of MPS that is yet to be started.
func (w world) command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	w.Args = args
	text, err := json.Marshal(w)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", EnterVerb, string(text))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	// What a killed process leaves running may hold its pipes open.
	cmd.WaitDelay = time.Second
	return cmd, nil
}

// ask has the running daemon carry out commands and gives what it printed.
func (w world) ask(ctx context.Context, commands ...string) (string, error) {
	cmd, err := w.command(ctx)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	cmd.Stdout, cmd.Stderr = limited(&out), limited(&out)
	err = cmd.Run()
	text := clip(out.String())
	switch {
	case ctx.Err() != nil:
		return text, fmt.Errorf("%s did not answer %q in time", program, commands[0])
	case err != nil:
		return text, fmt.Errorf("%s: %w: %s", program, err, text)
	}
	return text, nil
}

// limited keeps what a program prints from filling memory.
func limited(b *bytes.Buffer) io.Writer { return &limitedWriter{b} }

type limitedWriter struct{ b *bytes.Buffer }

func (w *limitedWriter) Write(p []byte) (int, error) {
	const most = 64 << 10
	if room := most - w.b.Len(); room > 0 {
		w.b.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}

// clip keeps a program's noise from filling an Event.
func clip(s string) string {
	const most = 300
	s = strings.ToValidUTF8(strings.TrimSpace(s), "?")
	if len(s) > most {
		s = "…" + strings.ToValidUTF8(s[len(s)-most:], "")
	}
	return s
}

// mountShm gives clients and daemon a /dev/shm of their own, as large as configured.
func mountShm(dir string, bytes uint64) error {
	if mounted(dir) {
		return nil
	}
	if err := unix.Mount("shm", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, fmt.Sprintf("size=%d,mode=1777", bytes)); err != nil {
		return fmt.Errorf("mount shared memory at %s: %w", dir, err)
	}
	return nil
}

// mounted says whether a directory is the root of a mount.
func mounted(dir string) bool {
	var here, above unix.Stat_t
	return unix.Lstat(dir, &here) == nil && unix.Lstat(filepath.Dir(dir), &above) == nil && here.Dev != above.Dev
}

// unmountShm takes it away. Containers that still have it keep it.
func unmountShm(dir string) error {
	for mounted(dir) {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount shared memory at %s: %w", dir, err)
		}
	}
	return nil
}

// emptied empties a directory. The directory itself stays: containers have it mounted.
func emptied(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("clear the pipe directory: %w", err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("clear the pipe directory: %w", err)
		}
	}
	return nil
}

// removeDir removes a daemon's directory, and nothing that is mounted in it.
func removeDir(dir string) error {
	if err := unmountShm(filepath.Join(dir, shmDir)); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the directory of an MPS daemon: %w", err)
	}
	return nil
}
