// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"gpu-dra-driver/sim/engine"
)

// Program is the program's name for which this package runs.
const Program = "nvidia-cuda-mps-control"

// startLimit is the time limit of a daemon's start.
const startLimit = time.Minute

const usage = `usage: nvidia-cuda-mps-control [-d | -f] [-multiuser-server]
`

// Run is nvidia-cuda-mps-control; root is the simulated machine's directory.
func Run(args, environ []string, root string, in io.Reader, out, errOut io.Writer) int {
	background, foreground, anyUser := false, false, false
	for _, a := range args {
		switch a {
		case "-d":
			background = true
		case "-f":
			foreground = true
		case "-multiuser-server", "-M":
			anyUser = true
		default:
			fmt.Fprintf(errOut, "Unrecognized option \x00\n%s", usage)
			return 0
		}
	}
	env := environment(environ)
	switch {
	case background:
		return detach(args, environ, env, errOut)
	case foreground:
		err := run(env, root, anyUser, errOut)
		if errors.Is(err, errOption) {
			fmt.Fprintf(errOut, "Unrecognized option \x00\n%s", usage)
			return 0
		}
		if err != nil {
			fmt.Fprintln(errOut, err)
			return 1
		}
		return 0
	}
	return control(env, in, out, errOut)
}

// fault reads the first MPS fault of a device from the file mps-fault in the simulator's state directory. A line has a
// fault, a device or "all", and for "slow" the time of a start: "fail", "hang", "old" (no multi-user mode), "slow all 1s".
// With "quiet" the daemon prints no line of a client's fault. hook describes the other faults.
func fault(root, device string) (word string, rest []string) {
	data, err := os.ReadFile(filepath.Join(root, engine.Dir, "mps-fault"))
	if err != nil {
		return "", nil
	}
	for line := range strings.Lines(string(data)) {
		words := strings.Fields(line)
		if len(words) > 0 && (len(words) == 1 || words[1] == device || words[1] == "all") {
			return words[0], words[min(2, len(words)):]
		}
	}
	return "", nil
}

// errOption is an option that the daemon does not know. It prints its usage, and succeeds.
var errOption = errors.New("unrecognized option")

// run is the daemon.
func run(env map[string]string, root string, anyUser bool, errOut io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	device := env[envDevices]
	if device == "" {
		device = "0"
	}
	switch word, rest := fault(root, device); {
	case word == "fail":
		return errors.New("cannot start: injected fault")
	case word == "old" && anyUser:
		return errOption
	case word == "hang":
		<-ctx.Done()
		return nil
	case word == "slow":
		wait, err := time.ParseDuration(last(rest))
		if err != nil {
			return fmt.Errorf("mps-fault: %w", err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
	pipe := env[envPipe]
	if err := os.MkdirAll(pipe, 0o755); err != nil {
		return err
	}
	l := log.New(errOut, fmt.Sprintf("[Control %5d] ", os.Getpid()), log.LstdFlags)
	unlock, err := lock(pipe)
	if err != nil {
		return err
	}
	defer unlock()
	socket := filepath.Join(pipe, ControlSocket)
	l.Printf("Starting control daemon using socket %s", socket)
	d := newDaemon(engine.Open(root, nil), root, device, shmOf(env), anyUser, l)
	d.program = ownProgram()
	if err := d.forget(); err != nil {
		return err
	}
	pidFile := filepath.Join(pipe, Program+".pid")
	sweep(pidFile, d.shm)
	if err := os.WriteFile(pidFile, fmt.Appendln(nil, os.Getpid()), 0o644); err != nil {
		return err
	}
	// Before the socket, because clients write to it once they can connect.
	fifo, err := openFIFO(filepath.Join(pipe, logFIFO))
	if err != nil {
		return err
	}
	defer fifo.Close()
	go copyLines(fifo, l)
	privileged, err := listen(filepath.Join(pipe, privilegedSocket), 0o755)
	if err != nil {
		return err
	}
	listener, err := listen(socket, 0o666)
	if err != nil {
		return errors.Join(err, privileged.Close())
	}
	// A command is answered only when clients can connect too.
	go d.accept(privileged, true)
	go d.accept(listener, false)
	select {
	case <-ctx.Done():
	case <-d.quit:
	}
	d.stop()
	d.mu.Lock()
	d.endServer()
	d.mu.Unlock()
	// Time for the answer to the command that ended the daemon.
	time.Sleep(20 * time.Millisecond)
	err = errors.Join(listener.Close(), privileged.Close(), d.forget())
	sweep(pidFile, d.shm)
	return errors.Join(err, os.Remove(pidFile))
}

func listen(path string, mode os.FileMode) (*net.UnixListener, error) {
	_ = os.Remove(path)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	return listener, os.Chmod(path, mode)
}

// accept serves connections to a socket until it is closed.
func (d *daemon) accept(listener *net.UnixListener, privileged bool) {
	for {
		conn, err := listener.AcceptUnix()
		if err != nil {
			return
		}
		go d.serve(conn, privileged)
	}
}

// openFIFO makes a FIFO for all users, and opens it so that it never ends.
func openFIFO(path string) (*os.File, error) {
	_ = os.Remove(path)
	if err := syscall.Mkfifo(path, 0o666); err != nil {
		return nil, fmt.Errorf("make the FIFO of the log: %w", err)
	}
	if err := os.Chmod(path, 0o666); err != nil { // regardless of the umask
		return nil, err
	}
	return os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
}

func copyLines(from io.Reader, to *log.Logger) {
	for lines := bufio.NewScanner(from); lines.Scan(); {
		to.Print(lines.Text())
	}
}

// lock is the lock of a pipe directory; its daemon holds it until it ends.
func lock(pipe string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(pipe, "control_lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the pipe directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, errors.New("an instance of this daemon is already running")
	}
	return func() { _ = f.Close() }, nil
}

// sweep removes the shared memory of the daemon with the PID in a file.
func sweep(pidFile, shm string) {
	data, err := os.ReadFile(pidFile)
	if err != nil {
		return
	}
	pid := number(strings.TrimSpace(string(data)))
	if pid <= 0 {
		return
	}
	names, err := filepath.Glob(filepath.Join(shm, fmt.Sprintf("cuda.shm.*.%x.*", pid)))
	if err != nil {
		return
	}
	for _, name := range names {
		_ = os.Remove(name)
	}
}

// serves reports whether a daemon listens there.
func serves(socket string) bool {
	conn, err := new(net.Dialer).DialContext(context.Background(), "unix", socket)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// shmOf returns /dev/shm, or a test's own directory.
func shmOf(env map[string]string) string {
	if dir := env["GPUSIM_SHM"]; dir != "" {
		return dir
	}
	return "/dev/shm"
}

// detach starts the daemon in the background and returns once it serves.
func detach(args, environ []string, env map[string]string, errOut io.Writer) int {
	own := []string{"-f"}
	for _, a := range args {
		if a != "-d" {
			own = append(own, a)
		}
	}
	cmd := exec.CommandContext(context.Background(), "/proc/self/exe", own...)
	cmd.Args[0], cmd.Env = Program, environ
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(errOut, err)
		return 1
	}
	gone := make(chan error, 1)
	go func() { gone <- cmd.Wait() }()
	tick, limit := time.NewTicker(10*time.Millisecond), time.After(startLimit)
	defer tick.Stop()
	for {
		select {
		case err := <-gone:
			fmt.Fprintf(errOut, "the daemon did not start (%v): run it with -f to see why\n", err)
			return 1
		case <-limit:
			_ = cmd.Process.Kill()
			fmt.Fprintf(errOut, "the daemon was not ready within %s: run it with -f to see why\n", startLimit)
			return 1
		case <-tick.C:
			// This one may have ended because another one serves there.
			pid, err := os.ReadFile(filepath.Join(env[envPipe], Program+".pid"))
			if err == nil && number(strings.TrimSpace(string(pid))) == cmd.Process.Pid && serves(filepath.Join(env[envPipe], ControlSocket)) {
				return 0
			}
		}
	}
}

// control sends the commands of in to the daemon.
func control(env map[string]string, in io.Reader, out, errOut io.Writer) int {
	// Another user may not open the privileged socket.
	conn, err := new(net.Dialer).DialContext(context.Background(), "unix", filepath.Join(env[envPipe], privilegedSocket))
	if err != nil {
		conn, err = new(net.Dialer).DialContext(context.Background(), "unix", filepath.Join(env[envPipe], ControlSocket))
	}
	if err != nil {
		fmt.Fprintln(errOut, "Cannot find MPS control daemon process")
		return 1
	}
	defer func() { _ = conn.Close() }()
	read, lines := bufio.NewReader(conn), bufio.NewScanner(in)
	status := 0
	for lines.Scan() {
		r, err := exchange(conn, read, request{Command: lines.Text()})
		if err != nil {
			fmt.Fprintln(out, err)
			status = 1
		}
		fmt.Fprint(out, r.Output)
	}
	return status
}
