// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// clientVariable makes this test's binary a CUDA program, as its JSON says.
const clientVariable = "GPU_DRA_HARDWARE_CLIENT"

// client is a CUDA program: a process of its own, because a process has limits and faults.
type client struct {
	// Mounts are made in a mount namespace of the process, before it takes the user.
	Mounts []mount `json:"mounts,omitempty"`
	UID    int     `json:"uid,omitempty"`
	// MiB is the most memory that it takes.
	MiB int64 `json:"mib,omitempty"`
	// Seconds is the time for which it runs Kernel (without one, add) again and again, without lines of its input.
	Seconds int    `json:"seconds,omitempty"`
	Kernel  string `json:"kernel,omitempty"`
	// Program runs in place of CUDA, with the client's mounts and user.
	Program []string `json:"program,omitempty"`
}

type mount struct {
	From     string `json:"from"` // Empty for an empty tmpfs.
	To       string `json:"to"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// answer is a client's, after its start and after each kernel.
type answer struct {
	Multiprocessors int    `json:"multiprocessors,omitempty"`
	FreeMiB         uint64 `json:"freeMiB,omitempty"`
	TotalMiB        uint64 `json:"totalMiB,omitempty"`
	MiB             int64  `json:"mib,omitempty"`
	Millis          int64  `json:"millis,omitempty"`
	// Kernels and LongestMillis are of a client that computes for some seconds.
	Kernels       int    `json:"kernels,omitempty"`
	LongestMillis int64  `json:"longestMillis,omitempty"`
	Error         string `json:"error,omitempty"`
}

func (a answer) err() error {
	if a.Error == "" {
		return nil
	}
	return errors.New(a.Error)
}

// serveClient is the client's process.
func serveClient(text string) error {
	var c client
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	if len(c.Mounts) > 0 || c.UID != 0 {
		return c.enter()
	}
	if len(c.Program) > 0 {
		path, err := exec.LookPath(c.Program[0])
		if err != nil {
			return err
		}
		return unix.Exec(path, c.Program, os.Environ())
	}
	runtime.LockOSThread() // A CUDA context belongs to a thread.
	out := json.NewEncoder(os.Stdout)
	began := time.Now()
	var a answer
	sms, free, total, err := cudaBegin()
	if err == nil {
		a = answer{Multiprocessors: sms, FreeMiB: free >> 20, TotalMiB: total >> 20, MiB: cudaAllocate(c.MiB)}
		_, err = cudaRun("add", 7)
	}
	a.Millis = time.Since(began).Milliseconds()
	if c.Seconds > 0 {
		err = c.compute(&a, err)
	}
	for lines := bufio.NewScanner(os.Stdin); ; {
		if err != nil {
			a.Error = err.Error()
		}
		if err := out.Encode(a); err != nil {
			return err
		}
		if !lines.Scan() {
			return lines.Err()
		}
		var kernel string
		var number uint64
		if _, err := fmt.Sscan(lines.Text(), &kernel, &number); err != nil {
			return err
		}
		began, a = time.Now(), answer{}
		_, err = cudaRun(kernel, number)
		a.Millis = time.Since(began).Milliseconds()
	}
}

// compute runs the kernel for the client's seconds, also after an error, and returns the first error. Without a context,
// which is an error before, it waits for as long.
func (c client) compute(a *answer, first error) error {
	context := first == nil
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for end := time.Now().Add(time.Duration(c.Seconds) * time.Second); time.Now().Before(end); <-pause.C {
		if !context {
			continue
		}
		began := time.Now()
		if _, err := cudaRun(cmp.Or(c.Kernel, "add"), 7); err != nil {
			if first == nil {
				first = fmt.Errorf("kernel %d: %w", a.Kernels+1, err)
			}
			continue
		}
		a.Kernels++
		a.LongestMillis = max(a.LongestMillis, time.Since(began).Milliseconds())
	}
	return first
}

// enter makes the mounts, takes the user, and becomes the client.
func (c client) enter() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	for _, m := range c.Mounts {
		kind, flags := "", uintptr(unix.MS_BIND)
		if m.From == "" {
			kind, flags = "tmpfs", 0
		}
		err := unix.Mount(m.From, m.To, kind, flags, "")
		if err == nil && m.ReadOnly {
			err = unix.Mount("", m.To, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "")
		}
		if err != nil {
			return fmt.Errorf("mount %s: %w", m.To, err)
		}
	}
	if c.UID != 0 {
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(c.UID), syscall.Setuid(c.UID)); err != nil {
			return err
		}
	}
	c.Mounts, c.UID = nil, 0
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, clientVariable+"=") }) // The first of two would count.
	return unix.Exec("/proc/self/exe", os.Args, append(env, c.variable()))
}

func (c client) variable() string {
	text, _ := json.Marshal(c) // Strings and numbers can be encoded.
	return clientVariable + "=" + string(text)
}

func (c client) command(env ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(append(os.Environ(), env...), c.variable())
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if len(c.Mounts) > 0 {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS
	}
	return cmd
}

// running is a client that runs until its test ends.
type running struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers chan answer
	stderr  bytes.Buffer
}

// start starts a client and returns its first answer.
func (c client) start(t *testing.T, env ...string) (*running, answer) {
	t.Helper()
	return c.startWithin(t, 12*time.Second, env...)
}

func (c client) startWithin(t *testing.T, limit time.Duration, env ...string) (*running, answer) {
	t.Helper()
	r := &running{cmd: c.command(env...), answers: make(chan answer)}
	var err error
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.cmd.Stderr = &r.stderr
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(read)
		defer close(r.answers)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var a answer
			if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
				a.Error = "it said " + lines.Text()
			}
			select {
			case r.answers <- a:
			case <-done:
				return
			}
		}
	}()
	atEnd(func() { _ = r.cmd.Process.Kill() })
	t.Cleanup(func() {
		close(done)
		_ = r.in.Close()
		_ = r.cmd.Process.Kill()
		<-read
		_ = r.cmd.Wait()
	})
	return r, r.next(limit)
}

// run runs one kernel in the client.
func (r *running) run(kernel string, number uint64, limit time.Duration) answer {
	r.send(kernel, number)
	return r.next(limit)
}

func (r *running) send(kernel string, number uint64) { fmt.Fprintf(r.in, "%s %d\n", kernel, number) }

func (r *running) next(limit time.Duration) answer {
	select {
	case a, ok := <-r.answers:
		if !ok {
			return answer{Error: "it ended: " + strings.TrimSpace(r.stderr.String())}
		}
		return a
	case <-time.After(limit):
		return answer{Error: "no answer within " + limit.String()}
	}
}

// program runs a program with a client's mounts and user, and returns what it printed.
func (c client) program(stdin string, program []string, env ...string) (string, error) {
	c.Program = program
	cmd := c.command(env...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := output(cmd, 20*time.Second)
	return out, err
}

// output runs a command within a limit.
func output(cmd *exec.Cmd, limit time.Duration) (string, error) {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return "", err
	}
	late := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	if !late.Stop() {
		err = fmt.Errorf("no end within %s", limit)
	}
	return strings.TrimSpace(out.String()), err
}

// hasCUDA reports whether a process here can load `libcuda`. The simulator has none.
func hasCUDA() bool {
	if strings.Contains(os.Getenv("LD_LIBRARY_PATH"), "/") {
		for dir := range strings.SplitSeq(os.Getenv("LD_LIBRARY_PATH"), ":") {
			if _, err := os.Stat(filepath.Join(dir, "libcuda.so.1")); err == nil {
				return true
			}
		}
	}
	out, err := exec.Command("ldconfig", "-p").Output()
	return err == nil && bytes.Contains(out, []byte("libcuda.so.1 "))
}
