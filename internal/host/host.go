// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Label names an effect for the reader of a crash matrix: "record.commit".
type Label string

// Op is the system call of an effect.
type Op string

// The operations that effects are made of.
const (
	OpWrite   Op = "write"    // create or truncate the temporary file and fill it
	OpSync    Op = "sync"     // flush a file
	OpRename  Op = "rename"   // move a file into place
	OpSyncDir Op = "sync-dir" // flush a directory
	OpRemove  Op = "remove"   // unlink a file
	OpLink    Op = "link"     // give a file a second name
	OpMkdir   Op = "mkdir"    // make a directory
	OpNote    Op = "note"     // write in place, not durable
)

// Effect is one act on the machine.
type Effect struct {
	Label Label
	Op    Op
	Path  string
}

func (e Effect) String() string { return string(e.Label) + "/" + string(e.Op) }

// Tap sees effects. Before may make the effect fail; neither is called in production.
type Tap interface {
	Before(Effect) error
	After(Effect)
}

// Options are a host's; each zero value is the real machine's.
type Options struct {
	// BootIDFile holds an ID that changes with every boot. Default /proc/sys/kernel/random/boot_id.
	BootIDFile string
	// Now is the clock.
	Now func() time.Time
	// Read is how ReadFile reads: a disk that fails to is not had at will.
	Read func(path string) ([]byte, error)
	Tap  Tap
}

// Host is the machine. The zero Host is not usable: call New.
type Host struct {
	bootIDFile string
	now        func() time.Time
	read       func(path string) ([]byte, error)
	tap        Tap
	locks      locker
}

// New makes a Host.
func New(o Options) *Host {
	if o.BootIDFile == "" {
		o.BootIDFile = "/proc/sys/kernel/random/boot_id"
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Read == nil {
		o.Read = os.ReadFile
	}
	return &Host{bootIDFile: o.BootIDFile, now: o.Now, read: o.Read, tap: o.Tap}
}

// Now reads the clock.
func (h *Host) Now() time.Time { return h.now() }

// BootID identifies the running boot. An empty or unreadable file is an error: without it a record of an earlier boot
// could pass for one of this.
func (h *Host) BootID() (string, error) {
	data, err := os.ReadFile(h.bootIDFile)
	if err != nil {
		return "", fmt.Errorf("read the boot ID: %w", err)
	}
	id := string(bytes.TrimSpace(data))
	if id == "" {
		return "", fmt.Errorf("read the boot ID: %s is empty", h.bootIDFile)
	}
	return id, nil
}

// do runs one effect between the tap's two looks.
func (h *Host) do(e Effect, act func() error) error {
	if h.tap == nil {
		return act()
	}
	if err := h.tap.Before(e); err != nil {
		return err
	}
	if err := act(); err != nil {
		return err
	}
	h.tap.After(e)
	return nil
}

// Close gives up every lock that this Host holds, as the end of the process does. It takes none after.
func (h *Host) Close() {
	h.locks.mu.Lock()
	defer h.locks.mu.Unlock()
	h.locks.closed = true
	for _, f := range h.locks.files {
		// A thread that waits in the kernel for one byte of the file keeps it open, and with it the other bytes' locks.
		_ = control(f, unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK})
		_ = f.Close()
	}
	h.locks.files = nil
}
