// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package host changes the machine: durable files, locks that hold across processes, the clock and the boot ID.
//
// Every system call that changes the machine is an Operation with a label, but for those of ShareWithContainers, which
// each start repeats. Production has no FaultHook. A test's hook runs each operation: it can make one operation fail,
// or end the simulated process before or after it (see `hosttest`).
//
// Traps. A rename is durable only once its directory is synced. A temporary file has a fixed name next to its target.
// The holder of the target's lock owns the temporary file, and the next write overwrites the file that a crash left.
package host

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Label names the purpose of an operation, such as "record.commit". The crash matrix checks that it covers every
// label.
type Label string

type Call string

const (
	CallWrite   Call = "write"    // create or truncate the temporary file and fill it
	CallSync    Call = "sync"     // flush a file
	CallRename  Call = "rename"   // move a file into place
	CallSyncDir Call = "sync-dir" // flush a directory
	CallRemove  Call = "remove"   // unlink a file
	CallLink    Call = "link"     // give a file a second name
	CallMkdir   Call = "mkdir"    // make a directory
	CallNote    Call = "note"     // write in place, not durable
)

// Operation is one change of the machine.
type Operation struct {
	Label Label
	Call  Call
	Path  string
	// From is the earlier name of a renamed file.
	From string
}

func (o Operation) String() string { return string(o.Label) + "/" + string(o.Call) }

// FaultHook runs an operation in tests: it calls do, and decides whether the operation happens and what it returns.
type FaultHook func(o Operation, do func() error) error

// Options configures a Host. The zero value is the real machine.
type Options struct {
	// BootIDFile holds an ID that changes with every boot. Default /proc/sys/kernel/random/boot_id.
	BootIDFile string
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// ReadFile lets a test make reads of files and of notes fail. Default os.ReadFile, and for notes the descriptor of
	// the lock.
	ReadFile  func(path string) ([]byte, error)
	FaultHook FaultHook
}

// Host is the machine. The zero Host is not usable: call New.
type Host struct {
	o     Options
	locks locker
}

func New(o Options) *Host {
	o.BootIDFile = cmp.Or(o.BootIDFile, "/proc/sys/kernel/random/boot_id")
	if o.Now == nil {
		o.Now = time.Now
	}
	h := &Host{o: o}
	h.locks = locker{host: h, files: map[string]*os.File{}, queues: map[lockKey]*lockQueue{}}
	return h
}

// Now returns a time for differences. It has a monotonic reading, which a change of the clock does not affect. It is
// not to be stored in a file, which loses that reading.
func (h *Host) Now() time.Time { return h.o.Now() }

// Uptime is the time since the boot, including sleep. Unlike Now it can be compared across processes.
func (h *Host) Uptime() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0, fmt.Errorf("read the time since the boot: %w", err)
	}
	return time.Duration(t.Nano()), nil
}

// BootID identifies the running boot. An empty or unreadable file is an error: without it a record of an earlier boot
// could pass for one of this.
func (h *Host) BootID() (string, error) {
	data, err := os.ReadFile(h.o.BootIDFile)
	if err != nil {
		return "", fmt.Errorf("read the boot ID: %w", err)
	}
	id := string(bytes.TrimSpace(data))
	if id == "" {
		return "", fmt.Errorf("read the boot ID: %s is empty", h.o.BootIDFile)
	}
	return id, nil
}

// do runs one operation, through the fault hook if there is one.
func (h *Host) do(label Label, call Call, path string, act func() error) error {
	return h.run(Operation{Label: label, Call: call, Path: path}, act)
}

func (h *Host) run(o Operation, act func() error) error {
	if h.o.FaultHook == nil {
		return act()
	}
	return h.o.FaultHook(o, act)
}

// Close ends a simulated process: it releases every lock that this Host holds, as the kernel does at the end of a
// process. A real process does not call it, because work can be in flight until its end. Later calls of Lock fail.
func (h *Host) Close() {
	h.locks.mu.Lock()
	defer h.locks.mu.Unlock()
	h.locks.closed = true
	for _, f := range h.locks.files {
		// A thread that waits in the kernel for one byte of the file keeps the file open, and so keeps the locks on
		// its other bytes.
		_ = control(f, unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK})
		_ = f.Close()
	}
}

var ErrPanic = errors.New("a bug of the driver stopped it")

// Guard calls do. It logs a panic and returns it as an error, so that a bug fails one operation, not the process.
func Guard(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			klog.Background().Error(nil, "A bug of the driver stopped an operation",
				"panic", p, "stack", string(debug.Stack()))
			err = ErrPanic
		}
	}()
	return do()
}

// Ordered reports whether operations must run one after the other, because a fault hook may end the process at one.
func (h *Host) Ordered() bool { return h.o.FaultHook != nil }
