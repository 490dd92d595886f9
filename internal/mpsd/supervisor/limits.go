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
	// met holds the servers, and defaults, that have these limits by their own answer. listed are the servers of the
	// last apply.
	met    map[int]limits
	listed []int
}

// limits has a server's limits as the daemon prints them, and its memory limit as it was set, or 0.
type limits struct {
	threads, memory string
	mib             uint64
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
	l.mib, l.threads, l.met = 0, cmp.Or(d.Threads, 100), map[int]limits{}
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
	if err := l.meet(ctx, defaults); err != nil {
		return err
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
			if _, met := l.met[pid]; met {
				continue
			}
			settled = false // The next list confirms that no other server began to serve.
			switch err := l.meet(ctx, pid); {
			case err == nil:
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
			l.listed = servers
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

// unchanged reports whether the daemon has the servers and limits of the last apply, and no server a fault. One process
// asks all of that, because a daemon at rest costs the processes that ask it. It sets memory limits again: the daemon
// prints them without the rest of a GiB.
func (l *limiter) unchanged(ctx context.Context) bool {
	ask, want := []string{"get_server_list"}, strings.Trim(fmt.Sprintln(l.listed), "[]\n")
	for _, pid := range l.listed {
		ask, want = append(ask, "get_server_status "+strconv.Itoa(pid)), want+" ACTIVE"
	}
	for _, server := range append([]int{defaults}, l.listed...) {
		is, met := l.met[server]
		if !met {
			return false
		}
		c := commandsFor(server)
		ask = append(ask, c.getThreads)
		if is.mib > 0 {
			ask = append(ask, c.setMemory(is.mib))
		}
		ask, want = append(ask, c.getMemory), want+" "+is.threads+" "+is.memory
	}
	got, err := l.ask(ctx, ask...)
	return err == nil && slices.Equal(strings.Fields(got), strings.Fields(want))
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

// limitCommands are the commands for the limits of a server, or for the defaults.
type limitCommands struct {
	of, argument          string
	getThreads, getMemory string
}

func commandsFor(server int) limitCommands {
	c := limitCommands{of: "default_"}
	if server != defaults {
		c = limitCommands{argument: " " + strconv.Itoa(server)}
	}
	c.getThreads = "get_" + c.of + "active_thread_percentage" + c.argument
	c.getMemory = "get_" + c.of + "device_pinned_mem_limit" + c.argument + " 0"
	return c
}

func (c limitCommands) setThreads(percent int) string {
	return fmt.Sprintf("set_%sactive_thread_percentage%s %d", c.of, c.argument, percent)
}

func (c limitCommands) setMemory(mib uint64) string {
	return fmt.Sprintf("set_%sdevice_pinned_mem_limit%s 0 %dM", c.of, c.argument, mib)
}

// meet calls set for a server, or the defaults, unless it is met.
func (l *limiter) meet(ctx context.Context, server int) error {
	if _, met := l.met[server]; met {
		return nil
	}
	is, err := l.set(ctx, server)
	if err == nil {
		l.met[server] = is
	}
	return err
}

// set sets the limits of a server, or the defaults, and reads them back, because the daemon accepts commands without
// effect.
func (l *limiter) set(ctx context.Context, server int) (is limits, err error) {
	what, c := "the default", commandsFor(server)
	if server != defaults {
		what = fmt.Sprintf("its server with process %d", server)
	}
	if is.mib = l.mib; is.mib == 0 {
		if is.memory, err = l.ask(ctx, c.getMemory); err != nil {
			return is, err
		}
		if hasNumber(is.memory) {
			is.mib = noLimit
		}
	}
	commands := []string{c.setThreads(l.threads)}
	if is.mib > 0 {
		commands = append(commands, c.setMemory(is.mib))
	}
	// If the daemon refuses a command, the limits that are read back are others.
	if _, err := l.ask(ctx, commands...); err != nil && !errors.As(err, new(*exec.ExitError)) {
		return is, err
	}
	if is.threads, err = l.ask(ctx, c.getThreads); err != nil {
		return is, err
	}
	if percent, err := strconv.ParseFloat(strings.TrimSuffix(is.threads, "%"), 64); err != nil ||
		math.Abs(percent-float64(l.threads)) >= 1 {
		return is, fmt.Errorf("%s has a limit of %q of the SMs, want %d %%", what, is.threads, l.threads)
	}
	if is.mib == 0 {
		return is, nil
	}
	is.memory, err = l.ask(ctx, c.getMemory)
	switch {
	case err != nil:
		return is, err
	case isSize(is.memory, is.mib):
		return is, nil
	case server == defaults && hasNumber(is.memory) && !sizeForm.MatchString(is.memory):
		l.unreadable = is.memory
		return is, nil
	case l.unreadable != "" && !sizeForm.MatchString(is.memory):
		return is, nil
	}
	return is, fmt.Errorf("%s has a memory limit of %q, want %d MiB", what, is.memory, is.mib)
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
func hasNumber(text string) bool { return strings.ContainsAny(text, "0123456789") }

var sizeForm = regexp.MustCompile(`^([1-9][0-9]{0,9})([GM])$`)

// isSize reports whether a memory limit that the daemon prints is a number of MiB. A number of GiB can be rounded.
func isSize(text string, mib uint64) bool {
	m := sizeForm.FindStringSubmatch(text)
	if m == nil {
		return false
	}
	n, err := strconv.ParseUint(m[1], 10, 64)
	if m[2] == "G" {
		mib >>= 10
	}
	return err == nil && n == mib
}
