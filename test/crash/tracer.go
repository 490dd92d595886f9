// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package crash kills the shipped plugin at single system calls, on a real API server and the simulated library, and
// checks the state after a restart. It does not use the plugin's operation labels: it counts the calls that change a
// file.
package crash

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Process is a traced program.
type Process struct {
	pid   int
	ended chan struct{}

	mu sync.Mutex
	// A changing call of one of these files, or below one of these directories, counts while armed.
	paths []string
	armed bool
	// left is the number of such calls that may still happen; the next one kills the process.
	left   int
	seen   []string
	killed bool
}

// Start starts a program under trace, unarmed.
func Start(cmd *exec.Cmd, paths ...string) (*Process, error) {
	p := &Process{ended: make(chan struct{}), paths: paths}
	started := make(chan error)
	go p.trace(cmd, started)
	return p, <-started
}

// Arm lets n changing calls pass and kills the process at the entry of the next.
func (p *Process) Arm(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed, p.left, p.seen, p.killed = true, n, nil, false
	// Threads run freely until now. The Go runtime takes a SIGURG that it did not send for nothing.
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.pid))
	for _, task := range tasks {
		if tid, err := strconv.Atoi(task.Name()); err == nil {
			_ = unix.Tgkill(p.pid, tid, unix.SIGURG)
		}
	}
}

// Disarm lets all calls pass, and reports whether one has killed the process.
func (p *Process) Disarm() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = false
	return p.killed
}

func (p *Process) isArmed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.armed
}

// Seen lists the changing calls since Arm.
func (p *Process) Seen() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}

// Kill ends the process at once, and Wait waits for that.
func (p *Process) Kill() { _ = syscall.Kill(p.pid, syscall.SIGKILL) }

// Wait waits for the end of the process.
func (p *Process) Wait() { <-p.ended }

// trace runs on one thread, since the kernel takes ptrace requests only from the thread that attached.
func (p *Process) trace(cmd *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	defer close(p.ended)
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		started <- err
		return
	}
	p.pid = cmd.Process.Pid
	var status unix.WaitStatus
	_, err := unix.Wait4(p.pid, &status, unix.WALL, nil)
	if err == nil {
		err = unix.PtraceSetOptions(p.pid, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_EXITKILL)
	}
	if err == nil {
		err = unix.PtraceCont(p.pid, 0)
	}
	started <- err
	if err != nil {
		p.Kill()
	}
	inside := map[int]bool{} // threads between entry and exit of a call
	for {
		tid, err := unix.Wait4(-p.pid, &status, unix.WALL, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return // No thread is left.
		}
		if !status.Stopped() {
			delete(inside, tid)
			continue
		}
		deliver := 0
		switch signal := status.StopSignal(); signal {
		case unix.SIGTRAP | 0x80:
			if inside[tid] = !inside[tid]; inside[tid] {
				p.entry(tid)
			}
		case unix.SIGTRAP, unix.SIGSTOP:
			// A new thread, or the event that announces it.
		default:
			deliver = int(signal)
		}
		// Fails only for an ended thread, which the next Wait4 reports.
		if p.isArmed() {
			_ = unix.PtraceSyscall(tid, deliver)
		} else {
			delete(inside, tid)
			_ = unix.PtraceCont(tid, deliver)
		}
	}
}

// entry handles the call that a thread is about to make.
func (p *Process) entry(tid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.armed {
		return
	}
	var regs unix.PtraceRegs
	if unix.PtraceGetRegs(tid, &regs) != nil {
		return
	}
	name, path := p.mutation(tid, &regs)
	if name == "" || !p.watched(path) {
		return
	}
	p.seen = append(p.seen, fmt.Sprintf("%s %s", name, filepath.Base(path)))
	if p.left == 0 {
		p.armed, p.killed = false, true
		p.Kill()
		return
	}
	p.left--
}

func (p *Process) watched(path string) bool {
	return slices.ContainsFunc(p.paths, func(w string) bool { return path == w || strings.HasPrefix(path, w+"/") })
}

// mutation names a call that changes a file system, and the file. The numbers hold for amd64. A sync is none: what
// was written outlives the process without it.
func (p *Process) mutation(tid int, regs *unix.PtraceRegs) (name, path string) {
	switch regs.Orig_rax {
	case unix.SYS_OPENAT:
		if regs.Rdx&(unix.O_CREAT|unix.O_TRUNC) == 0 {
			return "", ""
		}
		return "open", p.text(tid, regs.Rsi)
	case unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2:
		return "rename", p.text(tid, regs.R10)
	case unix.SYS_UNLINKAT:
		if path := p.text(tid, regs.Rsi); exists(path) {
			return "unlink", path
		}
	case unix.SYS_LINKAT:
		return "link", p.text(tid, regs.R10)
	case unix.SYS_MKDIRAT:
		return "mkdir", p.text(tid, regs.Rsi)
	case unix.SYS_WRITE:
		return "write", p.file(regs.Rdi)
	case unix.SYS_PWRITE64:
		return "pwrite", p.file(regs.Rdi)
	case unix.SYS_FTRUNCATE:
		return "truncate", p.file(regs.Rdi)
	}
	return "", ""
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func (p *Process) text(tid int, address uint64) string {
	var buffer [512]byte
	n, err := unix.PtracePeekData(tid, uintptr(address), buffer[:])
	if err != nil && n == 0 {
		return ""
	}
	text, _, _ := bytes.Cut(buffer[:n], []byte{0})
	return string(text)
}

func (p *Process) file(fd uint64) string {
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", p.pid, int32(fd)))
	if err != nil {
		return ""
	}
	return path
}
