// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/sim/engine"
)

// fault sets a fault of the simulated MPS of one device; empty: none. sim/mps describes the faults.
func (e *env) fault(d mpsd.Daemon, word, rest string) {
	e.t.Helper()
	text := ""
	if word != "" {
		text = word + " " + d.UUID + " " + rest + "\n"
	}
	path := filepath.Join(e.root.Path, engine.Dir, "mps-fault")
	if err := os.WriteFile(path+".tmp", []byte(text), 0o644); err != nil {
		e.t.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		e.t.Fatal(err)
	}
}

// ask sends commands to a running daemon, as an administrator does.
func (e *env) ask(d mpsd.Daemon, commands ...string) string {
	e.t.Helper()
	n, err := readNote(filepath.Join(e.o.Dir, d.Name))
	if err != nil {
		e.t.Fatal(err)
	}
	c, err := namespace{Root: e.o.Root, UUID: d.UUID}.control(n.PID)
	if err != nil {
		e.t.Fatal(err)
	}
	defer c.root.Close()
	out, err := c.ask(e.t.Context(), commands...)
	if err != nil {
		e.t.Fatal(err)
	}
	return out
}

// size is a daemon's limits in GiB and percent.
type size struct {
	gib     uint64
	threads int
}

func (z size) of(d mpsd.Daemon) mpsd.Daemon {
	d.MemoryLimit, d.Threads = nil, z.threads
	if z.gib > 0 {
		d.MemoryLimit = new(z.gib << 30)
	}
	return d
}

// check connects a client, which must have the limits of a daemon.
func (e *env) check(at string, d mpsd.Daemon) {
	e.t.Helper()
	c, err := e.client(d, "")
	if err != nil {
		e.t.Fatalf("%s: %v", at, err)
	}
	defer c.Close()
	mib, threads := uint64(81559-454), d.Threads
	if d.MemoryLimit != nil {
		mib = *d.MemoryLimit >> 20
	}
	if threads == 0 {
		threads = 100
	}
	if c.LimitMiB != mib || c.Threads != threads {
		e.t.Errorf("%s: a client has %d MiB and %d %% of the SMs, want %d MiB and %d %%",
			at, c.LimitMiB, c.Threads, mib, threads)
	}
}

// ensureSoon repeats ensure while commands need more than a test's short limit, as on a busy machine.
func (e *env) ensureSoon(s *Supervisor, d mpsd.Daemon) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), 2*time.Minute)
	defer cancel()
	for {
		_, err := s.ensure(ctx, d)
		if err == nil {
			return
		}
		if text := err.Error(); ctx.Err() != nil || !strings.Contains(text, "did not answer") && !strings.Contains(text, "in start") {
			e.t.Fatal(err)
		}
	}
}

// endServer ends the server of a daemon, so that the next client starts another.
func (e *env) endServer(d mpsd.Daemon) (was bool) {
	e.t.Helper()
	pid := e.ask(d, "get_server_list")
	if pid != "" {
		e.ask(d, "shutdown_server "+pid+" -f")
	}
	return pid != ""
}

// TestEnsure_ServerStartsBetweenCommands_HasItsLimits starts a server before each command that the supervisor sends
// while limits change, and lets it serve before each later one. Such a server has the old limits and is listed late.
func TestEnsure_ServerStartsBetweenCommands_HasItsLimits(t *testing.T) {
	for name, sizes := range map[string][2]size{
		"memory": {{20, 0}, {39, 0}}, "SMs": {{20, 25}, {20, 50}}, "no limit": {{20, 50}, {0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			s := e.start()
			d := sizes[0].of(e.daemon(0))
			e.ensure(s, d)
			next := 1
			// The limits grow and shrink in turn.
			for start, started := 1, true; started; start++ {
				started = false
				for _, later := range []int{0, 1, 4} {
					ready := start + later
					for _, change := range []string{"", "grow", "shrink"} {
						at := fmt.Sprintf("%s: a server starts before command %d and serves before %d", change, start, ready)
						e.fault(d, "", "")
						e.endServer(d)
						if change == "" {
							continue
						}
						d, next = sizes[next].of(d), 1-next
						e.fault(d, "server", fmt.Sprintf("%d %d", start, ready))
						e.ensure(s, d)
						e.fault(d, "", "")
						started = e.ask(d, "get_server_list") != "" || started
						e.check(at, d)
					}
				}
				if start > 30 {
					t.Fatal("the supervisor sends more and more commands")
				}
				if !started && start < 3 {
					t.Fatal("no server started while the limits changed")
				}
			}
		})
	}
}

// TestEnsure_ServerEndsBetweenCommands_Succeeds ends a running server before each command.
func TestEnsure_ServerEndsBetweenCommands_Succeeds(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	s := e.start()
	sizes := [2]size{{20, 25}, {39, 50}}
	d := sizes[0].of(e.daemon(0))
	e.ensure(s, d)
	for end := 1; end <= 12; end++ {
		e.ask(d, "start_server -uid 0")
		d = sizes[end%2].of(d)
		e.fault(d, "server", fmt.Sprintf("0 0 %d", end))
		e.ensure(s, d)
		e.fault(d, "", "")
		e.check(fmt.Sprintf("the server ends before command %d", end), d)
	}
}

// TestEnsure_DaemonStarts_FirstServerHasItsLimits starts a server before each command that a new daemon gets: a client
// of a daemon that ended connects to the next one at once.
func TestEnsure_DaemonStarts_FirstServerHasItsLimits(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.o.server = time.Second // The last one is asked for while another is in start, and is not answered.
	s := e.start()
	for start := 1; start <= 6; start++ {
		d := size{10, 30}.of(e.daemon(start % 8))
		e.fault(d, "server", fmt.Sprintf("%d %d", start, start+2))
		e.ensure(s, d)
		e.fault(d, "", "")
		e.check(fmt.Sprintf("a server starts before command %d", start), d)
		if err := s.stop(t.Context(), d.Name); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEnsure_LimitsNotConfirmed_ReturnsError: a limit that was not read back may be that of a smaller share.
func TestEnsure_LimitsNotConfirmed_ReturnsError(t *testing.T) {
	for name, c := range map[string]struct {
		word, rest string
		running    bool // A server runs before.
		want       string
	}{
		"a server stays in start":             {"server", "1 0", false, "in start"},
		"a server keeps its memory limit":     {"answer", "set_device_pinned_mem_limit not now", true, "want 39936 MiB"},
		"a server keeps its SMs":              {"answer", "set_active_thread_percentage not now", true, "want 50 %"},
		"the default limit stays":             {"answer", "set_default_device_pinned_mem_limit no", false, "want 39936 MiB"},
		"the default SMs stay":                {"answer", "set_default_active_thread_percentage not now", false, "want 50 %"},
		"the answer is not a limit":           {"answer", "get_device_pinned_mem_limit 39936 bananas", true, "39936 bananas"},
		"the answer is empty":                 {"answer", "get_device_pinned_mem_limit", true, "memory limit"},
		"the answer is not a percentage":      {"answer", "get_active_thread_percentage many", true, "many"},
		"the default's answer is not a limit": {"answer", "get_default_device_pinned_mem_limit none", false, "none"},
		"the list is not readable":            {"answer", "get_server_list the list", true, "the list"},
		"a server is not listed any more":     {"answer", "get_server_list", true, "in start"},
		"the list is not answered":            {"silent", "get_server_list", false, "did not answer"},
		"a server's limit is not answered":    {"silent", "get_device_pinned_mem_limit", true, "did not answer"},
		"the default limit is not answered":   {"silent", "get_default_device_pinned_mem_limit", false, "did not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			timed := c.want == "in start" || c.want == "did not answer"
			if timed {
				e.o.settle = time.Second
			}
			s := e.start()
			d := size{20, 25}.of(e.daemon(0))
			e.ensureSoon(s, d)
			if !c.running {
				e.endServer(d)
			}
			d = size{39, 50}.of(d)
			e.fault(d, c.word, c.rest)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			for range 2 { // The second caller asks for no change.
				_, err := s.ensure(ctx, d)
				for timed && ctx.Err() == nil && err != nil && !strings.Contains(err.Error(), c.want) {
					_, err = s.ensure(ctx, d) // A command before the fault's took all of the time.
				}
				if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), d.Name) {
					t.Errorf("%v, want %q in it", err, c.want)
				}
			}
			e.fault(d, "", "")
			e.ask(d, "get_default_active_thread_percentage") // The daemon notices the end of the fault.
			e.ensureSoon(s, d)
			e.check("after the fault", d)
		})
	}
}

// TestEnsure_UnknownFormOfLimits_SetAndNotCompared: a driver whose form of limits is not known must not stop all shares.
func TestEnsure_UnknownFormOfLimits_SetAndNotCompared(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"39936 MB", "41875931136", "limit is 39936"} {
		e := newEnv(t)
		s := e.start()
		d := size{39, 50}.of(e.daemon(0))
		e.fault(d, "answer", "get_default_device_pinned_mem_limit "+form)
		e.ensure(s, d)
		e.fault(d, "", "")
		e.check(form, d)
	}
}

// TestEnsure_ChildIsNeverAServer_SharesStartLater: the daemon of another driver can have a child that is not a server.
func TestEnsure_ChildIsNeverAServer_SharesStartLater(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.o.settle = time.Second
	s := e.start()
	d := size{20, 25}.of(e.daemon(0))
	e.ensureSoon(s, d)
	e.endServer(d)
	e.fault(d, "server", "1 0")
	d = size{39, 50}.of(d)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for inStart := 0; ; {
		_, err := s.ensure(ctx, d)
		switch {
		case err == nil && inStart == 0:
			t.Fatal("the supervisor did not wait for a child that may be a server")
		case err == nil:
			return
		case strings.Contains(err.Error(), "in start"):
			inStart++
		case ctx.Err() != nil || !strings.Contains(err.Error(), "did not answer"): // A busy machine answers late.
			t.Fatal(err)
		}
		if inStart > maxWaits {
			t.Fatalf("%v, after as many errors as are allowed", err)
		}
	}
}

// TestRunOnce_ServerSeenLate_GetsLimitsLater: a daemon can take the defaults for a server before they change, and start
// its process after the supervisor has met all servers.
func TestRunOnce_ServerSeenLate_GetsLimitsLater(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	s := e.start()
	s.firstRecheck = 5 * time.Millisecond
	d := size{20, 25}.of(e.daemon(0))
	e.ensure(s, d)
	d = size{39, 50}.of(d)
	e.fault(d, "late", "1 6") // The supervisor sends five commands if it meets no server.
	e.ensure(s, d)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		pid := e.ask(d, "get_server_list")
		if pid != "" && strings.Contains(e.ask(d, "get_device_pinned_mem_limit "+pid+" 0"), "39G") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the limit of the server %s is still that of the smaller share", pid)
		}
	}
	e.fault(d, "", "")
	e.check("afterwards", d)
}

// TestUnchanged_AnyAnswerDiffers_IsFalse answers all questions in one process.
func TestUnchanged_AnyAnswerDiffers_IsFalse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	program, asked := filepath.Join(dir, "control"), filepath.Join(dir, "asked")
	l := &limiter{settle: time.Minute, control: &control{root: root, program: program}}
	look := func(answers string) bool {
		t.Helper()
		script := "#!/bin/sh\n{ echo process; cat; } >>" + asked + "\ncat <<E\n" + answers + "\nE\n"
		if err := os.WriteFile(program+".new", []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(program+".new", program); err != nil {
			t.Fatal(err)
		}
		return l.unchanged(t.Context())
	}
	for name, c := range map[string]struct {
		mib    uint64
		memory string
		want   []string
	}{
		"a limit": {39936, "39G", []string{"7", "ACTIVE", "50.0", "39G", "50.0", "39G"}},
		"none":    {0, "", []string{"7", "ACTIVE", "50.0", "", "50.0", ""}},
	} {
		is := limits{threads: "50.0", memory: c.memory, mib: c.mib}
		l.listed, l.met = []int{7}, map[int]limits{defaults: is, 7: is}
		_ = os.Remove(asked)
		if !look(strings.Join(c.want, "\n")) {
			t.Errorf("%s: the answers of the last apply count as others", name)
		}
		commands, err := os.ReadFile(asked)
		if set := strings.Count(string(commands), "set_"); err != nil || strings.Count(string(commands), "process") != 1 || set != min(2, int(c.mib)) {
			t.Errorf("%s: %v, it asked %q", name, err, commands)
		}
		for i := range c.want {
			for _, other := range []string{"", "1", "FAULT", "80G", "Server 7 not found"} {
				if answers := slices.Replace(slices.Clone(c.want), i, i+1, other); !slices.Equal(answers, c.want) && look(strings.Join(answers, "\n")) {
					t.Errorf("%s: %q count as the answers of the last apply", name, answers)
				}
			}
		}
		if look(strings.Join(append(c.want, "8"), "\n")) {
			t.Errorf("%s: another line is not noticed", name)
		}
		delete(l.met, 7)
		if look(strings.Join(c.want, "\n")) {
			t.Errorf("%s: a server that did not take its limits counts as one that did", name)
		}
	}
}

func TestIsSize_PrintedLimits_EqualOnlyTheirNumber(t *testing.T) {
	for printed, want := range map[string]bool{
		"39713M": true, "38G": true, "39G": false, "20365M": false, "39713": false, "39713M\nM": false, "": false,
		"No limit set":          false,
		"99999999999999999999G": false, "0G": false,
	} {
		if got := isSize(printed, 39713); got != want {
			t.Errorf("%q is 39713 MiB: %t", printed, got)
		}
	}
}
