// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// command carries out one line of the control program. Only the daemon's own user may send commands.
func (d *daemon) command(line string, uid uint32) (string, error) {
	if uid != uint32(os.Getuid()) {
		return "", errors.New("permission denied")
	}
	words := strings.Fields(line)
	if len(words) == 0 {
		return "", nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	name, args := words[0], words[1:]
	if answer, replaced, err := d.beforeCommand(name); replaced || err != nil {
		return answer, err
	}
	server := func() error {
		if len(args) == 0 || !d.listed() || args[0] != strconv.Itoa(d.server.pid) {
			return errors.New("failed to find the MPS server")
		}
		return nil
	}
	switch name {
	case "get_server_list":
		if !d.listed() {
			return "", nil
		}
		return fmt.Sprintln(d.server.pid), nil
	case "get_server_status":
		return "ACTIVE\n", server()
	case "get_client_list":
		if err := server(); err != nil {
			return "", err
		}
		return d.table(func(c *client) string { return fmt.Sprintln(c.pid) }), nil
	case "ps":
		return "PID       ID    SERVER    DEVICE             NAMESPACE  COMMAND\n" + d.table(func(c *client) string {
			return fmt.Sprintf("%-9d %-5d %-9d %-18s %-10d %s\n", c.pid, c.uid, d.server.pid, d.device, 0, processName)
		}), nil
	case "start_server":
		if d.server == nil {
			if err := d.start(uint32(max(number(last(args)), 0))); err != nil {
				return "", err
			}
		}
		d.awaitStart()
		return "", nil
	case "shutdown_server":
		if err := server(); err != nil {
			return "", err
		}
		d.shut(slices.Contains(args, "-f"))
		return "", nil
	case "terminate_client":
		if err := server(); err != nil {
			return "", err
		}
		return "", d.terminate(number(last(args)))
	case "quit":
		d.stop()
		return "", nil
	case "get_default_active_thread_percentage":
		return fmt.Sprintf("%d.0\n", d.defaultThreads), nil
	case "set_default_active_thread_percentage":
		n := number(last(args))
		if n < 1 || n > 100 {
			return "", errors.New("invalid percentage")
		}
		d.defaultThreads = n
		return fmt.Sprintf("%d.0\n", n), nil
	case "set_active_thread_percentage":
		n := number(last(args))
		if err := server(); err != nil {
			return "", err
		}
		if n < 1 || n > 100 {
			return "", errors.New("invalid percentage")
		}
		d.server.threads = n
		return fmt.Sprintf("%d.0\n", n), nil
	case "get_active_thread_percentage":
		if err := server(); err != nil {
			return "", err
		}
		return fmt.Sprintf("%d.0\n", d.server.threads), nil
	case "set_default_device_pinned_mem_limit":
		n := mebibytes(last(args))
		if len(args) != 2 || args[0] != "0" || n == 0 {
			return "", errors.New("invalid limit")
		}
		d.defaultMiB = n
		return "", nil
	case "get_default_device_pinned_mem_limit":
		return limitText(d.defaultMiB), nil
	case "set_device_pinned_mem_limit":
		n := mebibytes(last(args))
		if err := server(); err != nil {
			return "", err
		}
		if len(args) != 3 || args[1] != "0" || n == 0 {
			return "", errors.New("invalid limit")
		}
		d.server.mib = n
		return "", nil
	case "get_device_pinned_mem_limit":
		if err := server(); err != nil {
			return "", err
		}
		return limitText(d.server.mib), nil
	}
	return "", fmt.Errorf("unknown command: %s", name)
}

// terminate ends a process's contexts. The caller holds d.mu.
func (d *daemon) terminate(pid int) error {
	err := errors.New("failed to find the MPS client")
	for c := range d.clients {
		if int(c.pid) == pid {
			err = c.end()
		}
	}
	return err
}

// table prints the clients in order. The caller holds d.mu.
func (d *daemon) table(row func(*client) string) string {
	var rows []string
	for c := range d.clients {
		rows = append(rows, row(c))
	}
	slices.Sort(rows)
	return strings.Join(rows, "")
}

func limitText(mib uint64) string {
	if mib == 0 {
		return "No limit set\n"
	}
	return fmt.Sprintf("%dM\n", mib)
}

func last(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[len(args)-1]
}

// number parses a number, or returns -1.
func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return -1
	}
	return n
}

// mebibytes parses "10G", "512M" or a number of bytes, or returns 0.
func mebibytes(s string) uint64 {
	digits, shift := s, -20
	if d, ok := strings.CutSuffix(s, "G"); ok {
		digits, shift = d, 10
	} else if d, ok := strings.CutSuffix(s, "M"); ok {
		digits, shift = d, 0
	}
	n, err := strconv.ParseUint(digits, 10, 40)
	switch {
	case err != nil:
		return 0
	case shift < 0:
		return n >> 20
	}
	return n << shift
}
