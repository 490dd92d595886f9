// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// ServerProgram is the name of a server's process.
const ServerProgram = "nvidia-cuda-mps-server"

// Serve is a server's process: it is ready at once, and ends with its daemon.
func Serve(in io.Reader, out io.Writer) int {
	if _, err := fmt.Fprintln(out, "ready"); err != nil {
		return 1
	}
	_, _ = io.Copy(io.Discard, in)
	return 0
}

// ownProgram returns the file of this process if it runs as the control program. The process of a test calls Run, and
// its file is not a server. There, a server has no process of its own, and the PID of the test.
func ownProgram() string {
	if filepath.Base(os.Args[0]) != Program {
		return ""
	}
	path, err := os.Executable()
	if err != nil { // A driver root need not have a /proc.
		path, _ = exec.LookPath(os.Args[0])
	}
	return path
}

// limits are the limits of a server's clients.
type limits struct {
	mib     uint64
	threads int
}

// server is a server from its start on.
type server struct {
	pid  int
	user uint32
	// closing means that it takes no new clients.
	closing bool
	// fault means that a client's error ended the work of all clients.
	fault bool
	// limits are the defaults of the moment of its start, until a command changes them.
	limits
	// ready is closed when it serves or has ended. Before that, it is in start, and not listed.
	ready chan struct{}
	// end ends its process.
	end func()
}

func (s *server) inStart() bool {
	select {
	case <-s.ready:
		return false
	default:
		return true
	}
}

// defaults returns the limits of a server that starts now. The caller holds d.mu.
func (d *daemon) defaults() limits { return limits{d.defaultMiB, d.defaultThreads} }

// listed reports whether get_server_list lists the server. The caller holds d.mu.
func (d *daemon) listed() bool { return d.server != nil && !d.server.inStart() }

// start starts the server. The caller holds d.mu.
func (d *daemon) start(user uint32) error {
	hold := make(chan struct{})
	close(hold)
	return d.startHeld(user, d.defaults(), hold)
}

// startHeld starts the server, which serves once its process is ready and hold is closed. The caller holds d.mu.
func (d *daemon) startHeld(user uint32, l limits, hold <-chan struct{}) error {
	if d.anyUser {
		user = 0
	}
	s := &server{pid: os.Getpid(), user: user, limits: l, ready: make(chan struct{}), end: func() {}}
	started := make(chan struct{})
	if d.program == "" {
		close(started)
	} else if err := d.fork(s, started); err != nil {
		return fmt.Errorf("start the MPS server: %w", err)
	}
	d.log.Printf("Starting new server %d for user %d", s.pid, user)
	d.server = s
	go func() {
		<-started
		<-hold
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.server == s && s.inStart() {
			close(s.ready)
			d.log.Printf("NEW SERVER %d: Ready", s.pid)
		}
	}()
	return nil
}

// fork starts a server's process. started is closed once it can serve. If it ends, so do the contexts of its clients.
func (d *daemon) fork(s *server, started chan<- struct{}) error {
	cmd := exec.CommandContext(context.Background(), d.program) // It ends with its input.
	cmd.Args[0], cmd.Stderr = ServerProgram, os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.pid, s.end = cmd.Process.Pid, func() { _ = in.Close() }
	go func() {
		read := bufio.NewReader(out)
		_, err := read.ReadString('\n')
		close(started)
		if err == nil {
			_, _ = io.Copy(io.Discard, read) // Until it has ended.
		}
		_ = cmd.Wait()
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.server == s {
			d.log.Printf("Server %d exited", s.pid)
			d.shut(true)
		}
	}()
	return nil
}

// endServer ends the server, if there is one. The caller holds d.mu.
func (d *daemon) endServer() {
	s := d.server
	if s == nil {
		return
	}
	d.server = nil
	if s.inStart() {
		close(s.ready)
	}
	s.end()
}

// awaitStart waits until no server is in start. The caller holds d.mu; waiting releases it.
func (d *daemon) awaitStart() {
	for d.server != nil && d.server.inStart() {
		ready := d.server.ready
		d.mu.Unlock()
		select {
		case <-ready:
		case <-d.quit:
			d.mu.Lock()
			return
		}
		d.mu.Lock()
	}
}

// hook is a fault that acts on commands. It lets a test start and end a server between any two commands:
//
//	server DEVICE START READY [END]  a server starts before the command START, serves from the command READY on, and
//	                                 ends before the command END; the first command with this line is 1
//	late DEVICE START READY          as server, but its process only exists from READY on
//	answer DEVICE COMMAND TEXT       the command has no effect, and answers TEXT
//	silent DEVICE COMMAND            the command never answers
type hook struct {
	line     string
	commands int
	limits   limits
	release  chan struct{}
}

// beforeCommand does what the daemon's fault says of a command. It returns true if answer replaces the command. The
// caller holds d.mu; waiting releases it.
func (d *daemon) beforeCommand(name string) (answer string, replaced bool, err error) {
	word, rest := fault(d.root, d.device)
	if line := strings.Join(append([]string{word}, rest...), " "); line != d.hook.line {
		if d.hook.release != nil {
			close(d.hook.release)
		}
		d.hook = hook{line: line}
	}
	d.hook.commands++
	at := func(i int) bool { return i < len(rest) && number(rest[i]) == d.hook.commands }
	begin := func(l limits) error {
		d.hook.release = make(chan struct{})
		return d.startHeld(0, l, d.hook.release)
	}
	serve := func() {
		if d.hook.release != nil {
			close(d.hook.release)
			d.hook.release = nil
			d.awaitStart()
		}
	}
	switch word {
	case "server":
		if at(0) && d.server == nil {
			err = begin(d.defaults())
		}
		if at(1) {
			serve()
		}
		if at(2) {
			d.shut(true)
		}
	case "late":
		if at(0) {
			d.hook.limits = d.defaults()
		}
		if at(1) && d.server == nil {
			err = begin(d.hook.limits)
			serve()
		}
	case "answer":
		if len(rest) > 0 && rest[0] == name {
			return strings.Join(rest[1:], " ") + "\n", true, nil
		}
	case "silent":
		if len(rest) > 0 && rest[0] == name {
			d.mu.Unlock()
			<-d.quit
			d.mu.Lock()
			return "", true, nil
		}
	}
	return "", false, err
}
