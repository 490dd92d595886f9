// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"gpu-dra-driver/internal/mpsd"
)

const noteFile = "daemon.json"

// note records a daemon for the next supervisor.
type note struct {
	BootID string      `json:"bootID"`
	Daemon mpsd.Daemon `json:"daemon"`
	// PID and Started identify the daemon's process, should it have outlived its supervisor.
	PID     int    `json:"pid,omitempty"`
	Started string `json:"started,omitempty"`
}

func readNote(dir string) (note, error) {
	data, err := os.ReadFile(filepath.Join(dir, noteFile))
	if err != nil {
		return note{}, err
	}
	return decodeNote(data)
}

func decodeNote(data []byte) (note, error) {
	var n note
	if err := json.Unmarshal(data, &n); err != nil {
		return note{}, fmt.Errorf("its note is not readable: %w", err)
	}
	return n, nil
}

// writeNote replaces the note. It need not be durable: it is of no use after the machine went down.
func writeNote(dir, boot string, want mpsd.Daemon, pid int) error {
	n := note{BootID: boot, Daemon: want, PID: pid}
	if pid != 0 {
		n.Started, _ = started(pid) // Gone already: then there is nothing to end later.
	}
	data, err := json.Marshal(n)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, noteFile)
	if err = os.WriteFile(path+".tmp", data, 0o600); err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err != nil {
		return fmt.Errorf("note an MPS daemon: %w", err)
	}
	return nil
}

// kill ends a process that outlived its supervisor, with its group, unless its number is another's by now.
func (n note) kill() {
	if now, err := started(n.PID); err != nil || now != n.Started {
		return
	}
	_ = syscall.Kill(-n.PID, syscall.SIGKILL)
}

// started is when a process was started, in clock ticks since the boot (proc(5), field 22 of stat).
func started(pid int) (string, error) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", err
	}
	// The second field is the program's name in brackets, which may hold anything.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	const at = 22 - 3
	if len(fields) <= at {
		return "", fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	return fields[at], nil
}
