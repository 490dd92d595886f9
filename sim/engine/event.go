// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"gpu-dra-driver/internal/nvml"
)

// Event types of nvml.h, as bits.
const (
	EventSingleBitECC = 0x1
	EventDoubleBitECC = 0x2
	EventXID          = 0x8
	// EventsSupported lists the events of a data-centre board, as an H200 with driver 580 has them. The simulator raises only
	// those above.
	EventsSupported = 0xff9f
)

// Event is an event of a GPU, which each registered event set of each process receives once.
type Event struct {
	Slot int    `json:"slot"`
	Type uint64 `json:"type"`
	// Data is the number of an XID.
	Data uint64 `json:"data,omitempty"`
	// GPUInstance and ComputeInstance are -1 for the whole GPU.
	GPUInstance     int `json:"gi"`
	ComputeInstance int `json:"ci"`
	// PID and Process are the process at fault, which only the kernel's log names.
	PID     uint32 `json:"pid,omitempty"`
	Process string `json:"process,omitempty"`
	// Text follows the number and the process in the kernel's log.
	Text string `json:"text,omitempty"`
}

// Raise delivers an event once the change is written.
func (s *State) Raise(e Event) { s.Raised = append(s.Raised, e) }

// RaiseXID delivers an XID of the whole GPU, with its text in the kernel's log.
func (s *State) RaiseXID(g *GPU, xid uint64, text string) {
	s.RaiseOf(g, Event{Type: EventXID, Data: xid, GPUInstance: -1, ComputeInstance: -1, Text: text})
}

// RaiseOf delivers an event of a GPU.
func (s *State) RaiseOf(g *GPU, e Event) {
	e.Slot = slices.IndexFunc(s.GPUs, func(o GPU) bool { return o.Address == g.Address })
	s.Raise(e)
}

// KernelLine returns an XID as the kernel's log has it, or "".
func (s *State) KernelLine(e Event) string {
	if e.Type != EventXID || e.Slot >= len(s.GPUs) {
		return ""
	}
	at, _, _ := strings.Cut(s.GPUs[e.Slot].Address, ".")
	if e.GPUInstance >= 0 {
		at += fmt.Sprintf(" GPU-I:%02d", e.GPUInstance)
	}
	pid, name := "'<unknown>'", "<unknown>"
	if e.PID > 0 {
		pid, name = strconv.Itoa(int(e.PID)), cmp.Or(e.Process, name)
	}
	text := e.Text
	if text == "" {
		text = "Ch 00000008"
	}
	return fmt.Sprintf("NVRM: Xid (PCI:%s): %d, pid=%s, name=%s, %s", at, e.Data, pid, name, text)
}

// eventFile returns the file of all events since the machine was made. A position is a number of its bytes, or of events in
// memory.
func (e *Engine) eventFile() string { return filepath.Join(e.dir, "events") }

// deliver adds events. The caller holds the machine's lock.
func (e *Engine) deliver(events []Event) error {
	if e.dir == "" {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.events = append(e.events, events...)
		if e.changed != nil {
			close(e.changed)
			e.changed = nil
		}
		return nil
	}
	if len(events) == 0 {
		return nil
	}
	var lines bytes.Buffer
	for _, event := range events {
		if err := json.NewEncoder(&lines).Encode(event); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(e.eventFile(), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(lines.Bytes())
	return errors.Join(err, f.Close())
}

// eventsEnd returns the position after the last event.
func (e *Engine) eventsEnd() int64 {
	if e.dir == "" {
		e.mu.Lock()
		defer e.mu.Unlock()
		return int64(len(e.events))
	}
	info, err := os.Stat(e.eventFile())
	if err != nil {
		return 0
	}
	return info.Size()
}

// eventsFrom returns the events after a position, with their positions.
func (e *Engine) eventsFrom(from int64) (events []Event, ends []int64, err error) {
	if e.dir == "" {
		e.mu.Lock()
		defer e.mu.Unlock()
		for n := from; n < int64(len(e.events)); n++ {
			events, ends = append(events, e.events[n]), append(ends, n+1)
		}
		return events, ends, nil
	}
	f, err := os.Open(e.eventFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() <= from {
		return nil, nil, err
	}
	b := make([]byte, info.Size()-from)
	if _, err := f.ReadAt(b, from); err != nil {
		return nil, nil, err
	}
	for {
		line, rest, whole := bytes.Cut(b, []byte("\n"))
		if !whole {
			return events, ends, nil
		}
		var event Event
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, nil, err
		}
		from += int64(len(line)) + 1
		events, ends, b = append(events, event), append(ends, from), rest
	}
}

// EventSet is an event set of a session.
type EventSet struct {
	session *Session
	notify  *os.File // of `inotify`; nil of a machine in memory

	mu sync.Mutex
	// registered has the event types of each slot, and the position since which they are recorded.
	registered map[int]registration
	position   int64
	pending    []Event
	ends       []int64
}

type registration struct {
	types uint64
	from  int64
}

// NewEventSet starts an empty set. Free ends it.
func (s *Session) NewEventSet() (*EventSet, nvml.Code) {
	set := &EventSet{session: s, registered: map[int]registration{}, position: s.engine.eventsEnd()}
	if s.engine.dir == "" {
		return set, 0
	}
	fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	if err != nil {
		return nil, nvml.Unknown
	}
	set.notify = os.NewFile(uintptr(fd), "inotify")
	if _, err := syscall.InotifyAddWatch(fd, s.engine.dir, syscall.IN_MOVED_TO|syscall.IN_MODIFY|syscall.IN_CREATE); err != nil {
		set.notify.Close()
		return nil, nvml.Unknown
	}
	return set, 0
}

// Free ends the set. A running Wait fails.
func (e *EventSet) Free() {
	if e.notify != nil {
		e.notify.Close()
	}
}

// Register records events of a GPU from now on. More types add to the GPU's earlier ones.
func (e *EventSet) Register(v View, types uint64) nvml.Code {
	if types == 0 {
		return nvml.InvalidArgument
	}
	if types&^EventsSupported != 0 {
		return nvml.NotSupported
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	r, known := e.registered[v.Slot]
	if !known {
		r.from = e.session.engine.eventsEnd()
	}
	r.types |= types
	e.registered[v.Slot] = r
	return 0
}

// Wait returns the next event. If there is none, it returns GPUIsLost while a registered GPU is lost, else Timeout after the
// limit.
func (e *EventSet) Wait(limit time.Duration) (Event, nvml.Code) {
	deadline := time.Now().Add(limit)
	for {
		changed := e.session.engine.change()
		event, code, ok := e.next()
		if ok || code != 0 {
			return event, code
		}
		left := time.Until(deadline)
		if left <= 0 {
			return Event{}, nvml.Timeout
		}
		if e.notify == nil {
			select {
			case <-changed:
			case <-time.After(left):
			}
			continue
		}
		var ignored [4096]byte
		if err := e.notify.SetReadDeadline(deadline); err != nil {
			return Event{}, nvml.Unknown
		}
		if _, err := e.notify.Read(ignored[:]); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return Event{}, nvml.Unknown
		}
	}
}

// change returns a channel that is closed at the next change of a machine in memory.
func (e *Engine) change() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.changed == nil {
		e.changed = make(chan struct{})
	}
	return e.changed
}

// next takes the oldest event that the set registers.
func (e *EventSet) next() (Event, nvml.Code, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.pending) == 0 {
		var err error
		if e.pending, e.ends, err = e.session.engine.eventsFrom(e.position); err != nil {
			return Event{}, nvml.Unknown, false
		}
	}
	for len(e.pending) > 0 {
		event, end := e.pending[0], e.ends[0]
		e.pending, e.ends, e.position = e.pending[1:], e.ends[1:], end
		if r, ok := e.registered[event.Slot]; ok && r.types&event.Type != 0 && end > r.from {
			return event, 0, true
		}
	}
	for slot := range e.registered {
		if _, code := e.session.Peer(slot); code != 0 {
			return Event{}, code, false
		}
	}
	return Event{}, 0, false
}
