// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/internal/procfs"
)

// noLimit replaces an earlier memory limit where there must be none: no command removes one. It is in MiB, and more
// than a GPU has.
const noLimit = 1 << 20

// maxAttempts is the number of times that a server can keep other limits before the change fails.
const maxAttempts = 3

// maxWaits is the number of times that a child of the daemon can be in start for too long. Then it is not a server: a
// daemon with another child must serve too.
const maxWaits = 2

// startPoll is the pause between lists while a server is in start.
const startPoll = 50 * time.Millisecond

// defaults stands for the limits of servers that start later, in place of a server's PID.
const defaults = 0

// limiter sets the limits of a daemon's clients. It is not safe for concurrent use.
type limiter struct {
	// control sends commands to the daemon, and daemon is its PID. Time limits: settle for apply and for a command,
	// server for the command that starts a server.
	control *control
	daemon  int
	settle  time.Duration
	server  time.Duration

	mib     uint64 // 0: no limit
	threads int
	// unreadable is the daemon's default limit if this driver prints limits in a form that is not known here. Memory
	// limits are then set, but not compared: a share would never start.
	unreadable string
	// late counts the times that apply waited for a child of the daemon in vain.
	late map[int]int
	// met holds the servers, and defaults, that have these limits by their own answer.
	met map[int]bool
}

// open opens the control of the daemon, which has entered the namespace, unless it is open.
func (l *limiter) open(n namespace) (err error) {
	if l.control == nil {
		l.control, err = n.control(l.daemon)
	}
	return err
}

func (l *limiter) close() {
	if l.control != nil {
		_ = l.control.root.Close()
		l.control = nil
	}
}

// want changes the limits. Servers have them after the next apply.
func (l *limiter) want(d mpsd.Daemon) {
	l.mib, l.threads, l.met = 0, cmp.Or(d.Threads, 100), map[int]bool{}
	if d.MemoryLimit != nil {
		l.mib = *d.MemoryLimit >> 20
	}
}

// apply sets the limits of future and of running servers. A server takes the defaults when it starts, but the daemon
// lists it only once it serves. So apply sets the defaults first, and then waits for each child of the daemon. It fails
// unless each server has answered that it has the limits.
func (l *limiter) apply(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.settle)
	defer cancel()
	if !l.met[defaults] {
		if err := l.set(ctx, defaults); err != nil {
			return err
		}
		l.met[defaults] = true
	}
	inStart := 0
	late := func() error {
		l.late[inStart]++
		return fmt.Errorf("its server with process %d is still in start after %s, and may have the limits of "+
			"other shares",
			inStart, l.settle)
	}
	for refused := map[int]int{}; ; {
		// The children come first: a server that serves meanwhile is then in both.
		children, err := procfs.Children("/proc", l.daemon)
		if err != nil {
			return err
		}
		servers, err := l.servers(ctx)
		switch {
		case err != nil && inStart != 0 && ctx.Err() != nil:
			return late()
		case err != nil:
			return err
		}
		settled := true
		inStart = 0
		for _, pid := range servers {
			if l.met[pid] {
				continue
			}
			settled = false // The next list confirms that no other server began to serve.
			switch err := l.set(ctx, pid); {
			case err == nil:
				l.met[pid] = true
			case ctx.Err() != nil:
				return err
			default: // It may have ended, and is in the next list if not.
				if refused[pid]++; refused[pid] == maxAttempts {
					return err
				}
			}
		}
		for _, pid := range children {
			if !slices.Contains(servers, pid) && l.late[pid] < maxWaits {
				settled, inStart = false, pid
			}
		}
		switch {
		case settled:
			return nil
		case inStart == 0:
			continue
		}
		select {
		case <-time.After(startPoll):
		case <-ctx.Done():
			return late()
		}
	}
}

// hold starts a server, unless one runs. Before the first client none does, and a process that avoids the daemon could
// take the device, with all of its memory, and keep the daemon's clients from it.
func (l *limiter) hold(ctx context.Context) error {
	servers, err := l.servers(ctx)
	if err != nil || len(servers) > 0 {
		return err
	}
	starting, cancel := context.WithTimeout(ctx, l.server)
	out, err := l.ask(starting, "start_server -uid 0")
	cancel()
	if err == nil {
		err = l.apply(ctx)
	}
	if err == nil {
		servers, err = l.servers(ctx)
	}
	if err == nil && len(servers) == 0 {
		err = fmt.Errorf("no server started: %s", cmp.Or(out, "the daemon gave no reason"))
	}
	return err
}

// servers lists the PIDs of the servers that serve.
func (l *limiter) servers(ctx context.Context) (pids []int, err error) {
	out, err := l.ask(ctx, "get_server_list")
	if err != nil {
		return nil, err
	}
	for word := range strings.FieldsSeq(out) {
		pid, err := strconv.Atoi(word)
		if err != nil || pid <= 0 {
			return nil, fmt.Errorf("its list of servers is not readable: %q", out)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// faulty reports whether a server is in the state FAULT.
func (l *limiter) faulty(ctx context.Context) (bool, error) {
	servers, err := l.servers(ctx)
	for _, pid := range servers {
		status, statusErr := l.ask(ctx, "get_server_status "+strconv.Itoa(pid))
		if strings.EqualFold(status, "FAULT") {
			return true, nil
		}
		err = errors.Join(err, statusErr)
	}
	return false, err
}

// set sets the limits of a server, or the defaults, and reads them back, because the daemon accepts commands without
// effect.
func (l *limiter) set(ctx context.Context, server int) error {
	what, of, argument := "the default", "default_", ""
	if server != defaults {
		what, of, argument = fmt.Sprintf("its server with process %d", server), "", " "+strconv.Itoa(server)
	}
	getThreads := "get_" + of + "active_thread_percentage" + argument
	getMemory := "get_" + of + "device_pinned_mem_limit" + argument + " 0"
	mib := l.mib
	if mib == 0 {
		now, err := l.ask(ctx, getMemory)
		if err != nil {
			return err
		}
		if hasNumber(now) {
			mib = noLimit
		}
	}
	commands := []string{fmt.Sprintf("set_%sactive_thread_percentage%s %d", of, argument, l.threads)}
	if mib > 0 {
		commands = append(commands, fmt.Sprintf("set_%sdevice_pinned_mem_limit%s 0 %dM", of, argument, mib))
	}
	// If the daemon refuses a command, the limits that are read back are others.
	if _, err := l.ask(ctx, commands...); err != nil && !errors.As(err, new(*exec.ExitError)) {
		return err
	}
	threads, err := l.ask(ctx, getThreads)
	if err != nil {
		return err
	}
	if percent, err := strconv.ParseFloat(strings.TrimSuffix(threads, "%"), 64); err != nil ||
		math.Abs(percent-float64(l.threads)) >= 1 {
		return fmt.Errorf("%s has a limit of %q of the SMs, want %d %%", what, threads, l.threads)
	}
	if mib == 0 {
		return nil
	}
	memory, err := l.ask(ctx, getMemory)
	switch {
	case err != nil:
		return err
	case isSize(memory, mib):
		return nil
	case server == defaults && hasNumber(memory) && !sizeForm.MatchString(memory):
		l.unreadable = memory
		return nil
	case l.unreadable != "" && !sizeForm.MatchString(memory):
		return nil
	}
	return fmt.Errorf("%s has a memory limit of %q, want %d MiB", what, memory, mib)
}

func (l *limiter) ask(ctx context.Context, commands ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, l.settle)
	defer cancel()
	out, err := l.control.ask(ctx, commands...)
	if err != nil {
		return "", fmt.Errorf("no answer: %w", err)
	}
	return out, nil
}

// hasNumber distinguishes a limit from a text that there is none.
func hasNumber(printed string) bool { return strings.ContainsAny(printed, "0123456789") }

var sizeForm = regexp.MustCompile(`^([1-9][0-9]{0,9})([GM])$`)

// isSize reports whether a memory limit that the daemon prints is a number of MiB. A number of GiB can be rounded.
func isSize(printed string, mib uint64) bool {
	m := sizeForm.FindStringSubmatch(printed)
	if m == nil {
		return false
	}
	n, err := strconv.ParseUint(m[1], 10, 64)
	if m[2] == "G" {
		mib >>= 10
	}
	return err == nil && n == mib
}
