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

// command carries out one line of the control program, as driver 580.159.04 does: the answers, also refusals, are texts,
// and the program succeeds. All users may read. Root may also end clients and limit a server. Only the privileged socket takes the rest.
func (d *daemon) command(line string, uid uint32, privileged bool) (string, error) {
	words := strings.Fields(line)
	if len(words) == 0 {
		return unknown(line), nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	name, args := words[0], words[1:]
	if answer, replaced, err := d.beforeCommand(name); replaced || err != nil {
		return answer, err
	}
	switch owner := uid == 0 || uid == uint32(os.Getuid()); {
	case privileged || strings.HasPrefix(name, "get_") || name == "ps":
	case owner && slices.Contains(ownersCommands, name):
	case name == "quit":
		return "Not enough privilege to execute quit command\n", nil
	default:
		return fmt.Sprintf("Insufficient privileges for UID %d. Control deamon settings can only be modified by the user who started it or by the root user.\n", uid), nil
	}
	out, err := d.carryOut(line, name, args)
	if err != nil {
		out += err.Error() + "\n"
	}
	return out, nil
}

// ownersCommands are root's commands over the socket for clients.
var ownersCommands = []string{"terminate_client", "start_server", "shutdown_server", "set_active_thread_percentage", "set_device_pinned_mem_limit"}

// refusal is an answer of NVIDIA's daemon, in its words.
type refusal string

func (r refusal) Error() string { return string(r) }

func unknown(line string) string { return fmt.Sprintf("Unknown command %q\n", line) }

// carryOut carries out a command that its sender may send. The caller holds d.mu.
func (d *daemon) carryOut(line, name string, args []string) (string, error) {
	server := func() error {
		switch {
		case len(args) == 0:
			return refusal("A server PID is required")
		case !d.listed() || args[0] != strconv.Itoa(d.server.pid):
			return refusal(fmt.Sprintf("Server %s not found", args[0]))
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
		if err := server(); err != nil {
			return "", err
		}
		if d.server.fault {
			return "FAULT\n", nil
		}
		return "ACTIVE\n", nil
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
		d.defaultThreads = percentage(last(args))
		return fmt.Sprintf("%d.0\n", d.defaultThreads), nil
	case "set_active_thread_percentage":
		if err := server(); err != nil {
			return "", err
		}
		d.server.threads = percentage(last(args))
		return fmt.Sprintf("%d.0\n", d.server.threads), nil
	case "get_active_thread_percentage":
		if err := server(); err != nil {
			return "", err
		}
		return fmt.Sprintf("%d.0\n", d.server.threads), nil
	case "set_default_device_pinned_mem_limit":
		if len(args) == 2 && args[0] == "0" {
			d.defaultMiB = mebibytes(args[1])
		}
		return "", nil
	case "get_default_device_pinned_mem_limit":
		return limitText(d.defaultMiB), nil
	case "set_device_pinned_mem_limit":
		if err := server(); err != nil {
			return "", err
		}
		if len(args) == 3 && args[1] == "0" {
			d.server.mib = mebibytes(args[2])
		}
		return "", nil
	case "get_device_pinned_mem_limit":
		if err := server(); err != nil {
			return "", err
		}
		return limitText(d.server.mib), nil
	}
	return unknown(line), nil
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

// limitText prints GiB without the rest, and nothing for no limit.
func limitText(mib uint64) string {
	switch {
	case mib == 0:
		return "\n"
	case mib < 1024:
		return fmt.Sprintf("%dM\n", mib)
	}
	return fmt.Sprintf("%dG\n", mib>>10)
}

// percentage parses a limit of threads; everything else means all of them.
func percentage(s string) int {
	if n := number(s); n >= 1 && n <= 100 {
		return n
	}
	return 100
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

// mebibytes parses "10G", "512M" or a number of MiB, or returns 0 for none.
func mebibytes(s string) uint64 {
	digits, shift := strings.TrimRight(s, "KM"), 0
	if d, ok := strings.CutSuffix(s, "G"); ok {
		digits, shift = d, 10
	}
	n, err := strconv.ParseUint(digits, 10, 40)
	if err != nil {
		return 0
	}
	return n << shift
}
