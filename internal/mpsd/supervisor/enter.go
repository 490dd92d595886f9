// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gpu-dra-driver/internal/driverprogram"
)

// program is NVIDIA's control daemon. It also sends commands to a running one.
const program = "nvidia-cuda-mps-control"

// Directories of the daemon in its own mount namespace.
const (
	insidePipe = "/tmp/nvidia-mps"
	insideLog  = "/tmp/nvidia-mps-log"
)

// The environment of a daemon and its servers.
const (
	pipeVariable   = "CUDA_MPS_PIPE_DIRECTORY=" + insidePipe
	deviceVariable = "CUDA_VISIBLE_DEVICES="
)

// namespace describes the mount namespace of a daemon, and the daemon in it.
type namespace struct {
	// Root is the driver's, and the process's own if it is a root file system. DevRoot holds the device nodes; empty:
	// it is found.
	Root    string   `json:"root"`
	DevRoot string   `json:"devRoot,omitempty"`
	Pipe    string   `json:"pipe"`
	Shm     string   `json:"shm"`
	Log     string   `json:"log"`
	UUID    string   `json:"uuid"`
	Args    []string `json:"args,omitempty"`
}

// EnterVerb is the first argument of the supervisor's binary when it runs as an MPS process.
const EnterVerb = "enter"

// Enter turns this process, which has a mount namespace of its own, into an MPS process. It returns only an error.
func Enter(args []string) error {
	if len(args) != 1 {
		return errors.New("this verb is the supervisor's own")
	}
	var n namespace
	if err := json.Unmarshal([]byte(args[0]), &n); err != nil {
		return fmt.Errorf("read what to enter: %w", err)
	}
	p, err := findProgram(n.Root)
	if err != nil {
		return err
	}
	root := cmp.Or(p.Root, "/")
	inRoot := func(path string) string { return filepath.Join(root, path) }
	devRoot := cmp.Or(n.DevRoot, driverprogram.DevRoot(n.Root))
	steps := []struct {
		what string
		do   func() error
	}{
		{"keep mounts to itself", func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") }},
		{"make its /tmp", func() error {
			return unix.Mount("tmpfs", inRoot("tmp"), "tmpfs", 0, "size=16m,mode=1777")
		}},
		{"make its pipe directory", func() error { return os.Mkdir(inRoot(insidePipe), 0o755) }},
		{"make its log directory", func() error { return os.Mkdir(inRoot(insideLog), 0o755) }},
		{"mount its pipe directory", func() error { return bind(n.Pipe, inRoot(insidePipe)) }},
		{"mount its log directory", func() error { return bind(n.Log, inRoot(insideLog)) }},
		{"mount its device nodes", func() error {
			if filepath.Clean(devRoot) == filepath.Clean(root) {
				return nil
			}
			return bind(filepath.Join(devRoot, "dev"), inRoot("dev"))
		}},
		{"mount its /dev/shm", func() error { return bind(n.Shm, inRoot("dev/shm")) }},
		{"enter the driver root", func() error { return unix.Chroot(root) }},
		{"go to its root", func() error { return unix.Chdir("/") }},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
	}
	return fmt.Errorf("run %s: %w", p.Path, unix.Exec(p.Path, append([]string{program}, n.Args...), n.environ(p)))
}

// environ returns the environment of MPS processes of the program p.
func (n namespace) environ(p driverprogram.Program) []string {
	env := append(p.Environ(), pipeVariable, "CUDA_MPS_LOG_DIRECTORY="+insideLog, deviceVariable+n.UUID)
	if v, ok := os.LookupEnv("LD_LIBRARY_PATH"); ok && p.LibraryPath == "" {
		env = append(env, "LD_LIBRARY_PATH="+v)
	}
	return env
}

func bind(from, to string) error {
	return unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, "")
}

func findProgram(root string) (driverprogram.Program, error) {
	return driverprogram.Find(root, program, "install the driver's MPS programs (nvidia-compute-utils, cuda-mps)")
}

// command returns a daemon that is not started yet.
func (n namespace) command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	n.Args = args
	text, err := json.Marshal(n)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", EnterVerb, string(text))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Setpgid: true}
	// Children of a killed process may hold its pipes open.
	cmd.WaitDelay = time.Second
	return cmd, nil
}

// control sends commands to a running daemon. Its processes have the daemon's root directory, and so its mounts: a
// mount namespace for each command takes many times longer, because the kernel changes all namespaces under one lock.
type control struct {
	root    *os.File // Open, because the PID of a daemon that has ended can become that of another process.
	program string
	environ []string
}

// control returns the control of a daemon that has entered the namespace, by its PID.
func (n namespace) control(pid int) (*control, error) {
	p, err := findProgram(n.Root)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenFile(fmt.Sprintf("/proc/%d/root", pid), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("open the daemon's root directory: %w", err)
	}
	return &control{root: root, program: p.Path, environ: n.environ(p)}, nil
}

// ask sends commands to the daemon and returns their output.
func (c *control) ask(ctx context.Context, commands ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.program)
	cmd.Args[0], cmd.Env, cmd.Dir = program, c.environ, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: fmt.Sprintf("/proc/self/fd/%d", c.root.Fd()), Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var out driverprogram.Output
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	text := clip(out.String())
	switch {
	case ctx.Err() != nil:
		return text, fmt.Errorf("%s did not answer %q in time", program, commands[0])
	case err != nil:
		return text, fmt.Errorf("%s: %w: %s", program, err, text)
	}
	return text, nil
}

// clip shortens a program's output, so that it does not fill an Event.
func clip(s string) string {
	const maxOutput = 300
	s = strings.ToValidUTF8(strings.TrimSpace(s), "?")
	if len(s) > maxOutput {
		s = "…" + strings.ToValidUTF8(s[len(s)-maxOutput:], "")
	}
	return s
}

type process struct {
	cmd  *exec.Cmd
	out  *output
	gone chan struct{}
	err  error // Set before gone is closed.
}

// startProcess starts a command whose process leads its own group.
func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, out: newOutput(), gone: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.out, p.out
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	go func() {
		// Its servers are in its process group. The number of the group is certainly its own until Wait.
		for unix.Waitid(unix.P_PID, p.pid(), nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
		}
		_ = syscall.Kill(-p.pid(), syscall.SIGKILL)
		p.err = cmd.Wait()
		close(p.gone)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) cause() string {
	text := clip(p.out.String())
	if p.err != nil {
		text = strings.TrimSuffix(p.err.Error()+": "+text, ": ")
	}
	return cmp.Or(text, "exited with no output")
}

// refusedOption reports that the process ended as one that does not know an argument. Driver 580.159.04 prints its
// usage and succeeds. Another driver may print its usage and fail. A daemon that was killed knows its arguments.
func (p *process) refusedOption() bool {
	select {
	case <-p.gone:
	default:
		return false
	}
	text := strings.ToLower(p.out.String())
	return p.err == nil || strings.Contains(text, "usage") || strings.Contains(text, "option") ||
		strings.Contains(text, "argument")
}

// kill ends the process and its group, and waits for the process.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.gone
}
