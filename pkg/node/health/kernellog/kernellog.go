// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package kernellog finds XIDs in the kernel's log that no event set received, such as those of while the plugin was
// down.
//
// XIDs are passed on at least once: the position in the log is saved after health has recorded the fault. Health does
// not count, so an XID that an event set received too does no harm.
//
// Traps. Users choose the names of processes, which are in the kernel's messages, and can write messages of their own.
// A line counts only if the kernel wrote it and it begins as NVIDIA's driver begins it. The log is a ring: a reader
// that is too slow loses messages. An XID of a GPU that cannot be read waits for the GPU, beside the position. XIDs of
// other GPUs must not be passed on again, because an administrator can have cleared their faults. The log does not show
// resets, so an XID counts even if the GPU was reset while the plugin was down.
package kernellog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/inventory"
)

// labelSave labels the write of the position.
const labelSave host.Label = "kernellog.save"

const (
	// idleTimeout is the time without messages after which all are read. Then XIDs are passed on.
	idleTimeout = 100 * time.Millisecond
	// flushInterval is the time after which XIDs are passed on without a pause between messages, and an ended file is
	// read again. Only a simulated log is a file.
	flushInterval = time.Second
	// retryInterval is the time until a log that cannot be read, and an XID of a GPU that cannot, are tried again.
	retryInterval = 30 * time.Second
	// longestMessage is more than the kernel writes at once.
	longestMessage = 16 << 10
	// maxWaiting limits the XIDs that wait for their GPUs.
	maxWaiting = 1000
)

// XID is an XID of a GPU or of a partition of it.
type XID struct {
	// Address is the GPU's PCI address.
	Address string `json:"address"`
	Code    uint64 `json:"code"`
}

// Health has the faults of GPUs. *tracker.Tracker implements it.
type Health interface {
	// Event adds an XID to a GPU's faults, durably.
	Event(g gpu.GPU, code uint64)
}

// Options configures a Log; all fields are required.
type Options struct {
	// Path is the path of /dev/kmsg.
	Path string
	// Cursor is the file of the position. Its directory must exist.
	Cursor string
	Scans  *inventory.Latest
	Health Health
	// XIDs requests polls of the GPUs' health, as after an XID.
	XIDs notify.Trigger
	// Instance saves the position if it is the newest.
	Instance *host.Instance
	// Reports receives errors for the node's Events.
	Reports notify.Reporter
}

// source is an open log. At the end of a simulated one, Read returns io.EOF. At the end of the kernel's it waits.
type source interface {
	io.ReadCloser
	SetReadDeadline(time.Time) error
}

// Log reads the kernel's log.
type Log struct {
	host *host.Host
	o    Options
	open func(path string) (source, error)
	// saved is the file that this process has written.
	saved []byte
}

func New(h *host.Host, o Options) *Log {
	return &Log{host: h, o: o, open: func(path string) (source, error) { return os.Open(path) }}
}

// Run passes XIDs on until the context ends.
func (l *Log) Run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-l.o.Scans.Scanned():
	}
	last := ""
	for ctx.Err() == nil {
		err := l.read(ctx)
		if ctx.Err() == nil && fmt.Sprint(err) != last {
			klog.FromContext(ctx).Error(err,
				"The kernel's log cannot be read; trying again. Polls of the GPUs' health continue")
		}
		last = fmt.Sprint(err)
		sleep(ctx, retryInterval)
	}
}

// reading is one reading of the log.
type reading struct {
	*Log
	// cursor has the first position that was not read, and the XIDs that no flush has passed on.
	cursor
	// skip means that the XIDs are of before the plugin's first start.
	skip bool
	// flushed is the time of the last flush, or of the start.
	flushed time.Time
	// begun means that a flush has seen all messages of before the start; fresh that there are XIDs that no flush has
	// seen.
	begun, fresh bool
	// rest is the begin of a line.
	rest string
}

// read reads the log until the context ends or a call fails.
func (l *Log) read(ctx context.Context) error {
	boot, err := l.host.BootID()
	if err != nil {
		return err
	}
	log, err := l.open(l.o.Path)
	if err != nil {
		return err
	}
	defer log.Close()
	stop := context.AfterFunc(ctx, func() { _ = log.SetReadDeadline(time.Now()) }) // A file cannot wait.
	defer stop()
	begin, known := l.load(boot)
	r := reading{Log: l, cursor: begin, skip: !known, flushed: time.Now()}
	for buffer := make([]byte, longestMessage); ctx.Err() == nil; {
		n, err := r.readOnce(ctx, log, buffer)
		r.lines(string(buffer[:n]))
		ended := errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded)
		switch {
		case errors.Is(err, syscall.EPIPE):
			klog.FromContext(ctx).Info("The kernel's log has overwritten messages before they were read; XIDs can be " +
				"among them")
			l.o.XIDs.Fire()
		case errors.Is(err, syscall.EINVAL):
			sleep(ctx, idleTimeout) // The kernel has skipped a message that is longer than any of the driver's.
		case err != nil && !ended:
			return fmt.Errorf("read %s: %w", l.o.Path, err)
		}
		if ended || time.Since(r.flushed) >= flushInterval {
			r.flush()
		}
		if errors.Is(err, io.EOF) {
			sleep(ctx, flushInterval)
		}
	}
	r.flush()
	l.save(r.cursor)
	return nil
}

// readOnce reads messages. It waits for the first one: shortly while XIDs are to be passed on, else without a limit.
func (r *reading) readOnce(ctx context.Context, log source, buffer []byte) (int, error) {
	var deadline time.Time
	switch {
	case !r.begun || r.fresh:
		deadline = time.Now().Add(idleTimeout)
	case len(r.Waiting) > 0:
		deadline = time.Now().Add(retryInterval)
	}
	if err := log.SetReadDeadline(deadline); err != nil && !errors.Is(err, os.ErrNoDeadline) {
		return 0, err
	}
	if ctx.Err() != nil {
		return 0, nil // The deadline of its end can be overwritten.
	}
	return log.Read(buffer)
}

// lines adds the XIDs of messages that were not read before.
func (r *reading) lines(text string) {
	text = r.rest + text
	for {
		line, rest, whole := strings.Cut(text, "\n")
		if !whole {
			break
		}
		text = rest
		m, ok := decode(line)
		if !ok || m.sequence < r.Next {
			continue
		}
		r.Next = m.sequence + 1
		if m.loads() {
			r.Waiting = nil
		}
		x := m.xid()
		if x != (XID{}) && len(r.Waiting) < maxWaiting && !slices.Contains(r.Waiting, x) {
			r.Waiting, r.fresh = append(r.Waiting, x), true
		}
	}
	if r.rest = text; len(r.rest) > longestMessage {
		r.rest = ""
	}
}

// flush passes on the XIDs of GPUs that can be read, and saves the position after them.
func (r *reading) flush() {
	if r.skip {
		r.Waiting, r.skip = nil, false
	}
	snapshot := r.o.Scans.Snapshot()
	var waiting []XID
	for _, x := range r.Waiting {
		g, ok := snapshot.ByAddress(x.Address)
		if !ok {
			waiting = append(waiting, x)
			continue
		}
		r.o.Health.Event(g, x.Code)
	}
	passed := len(waiting) < len(r.Waiting)
	if passed {
		r.o.XIDs.Fire()
	}
	began := r.begun
	r.Waiting, r.begun, r.fresh, r.flushed = waiting, true, false, time.Now()
	if passed || !began {
		r.save(r.cursor)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
