// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// states of a phase that ran.
const (
	ok     = "ok"
	failed = "failed"
	ended  = "ended" // because another one failed, or by a signal
)

// A result has the times of a phase.
type result struct {
	phase
	wall, cpu time.Duration
	// tests has the parts that test programs used, if the phase writes them down. They do not depend on the work of compilers.
	tests map[string]time.Duration
	state string
}

// runner runs the phases of a target.
type runner struct {
	// dir gets a file NAME.log for each phase, and the reports of its tests, NAME*.json.
	dir string
	out io.Writer
	// keepGoing runs all phases although one has failed.
	keepGoing bool

	mu      sync.Mutex
	results []result
}

// errFailed says that a phase has failed, which was printed.
var errFailed = errors.New("a phase failed")

// run runs the stages. The first phase that fails ends the others of its stage, and no stage follows.
func (r *runner) run(ctx context.Context, stages []map[string][]phase) error {
	red := false
	for _, stage := range stages {
		ctx, end := context.WithCancelCause(ctx)
		var group sync.WaitGroup
		for _, lane := range slices.Sorted(maps.Keys(stage)) {
			queue := make(chan phase, len(stage[lane]))
			for _, p := range stage[lane] {
				queue <- p
			}
			close(queue)
			for range workers(lane) {
				group.Go(func() {
					for p := range queue {
						if ctx.Err() != nil {
							return
						}
						if r.one(ctx, p) == failed {
							r.mu.Lock()
							red = true
							r.mu.Unlock()
							if !r.keepGoing {
								end(errFailed)
							}
						}
					}
				})
			}
		}
		group.Wait()
		cause := context.Cause(ctx)
		end(nil)
		if cause != nil {
			return cause
		}
	}
	if red {
		return errFailed
	}
	return nil
}

// one runs a phase in a process group of its own, and ends the whole group if the context ends.
func (r *runner) one(ctx context.Context, p phase) string {
	began := time.Now()
	log, err := os.Create(filepath.Join(r.dir, p.name+".log"))
	if err != nil {
		return r.done(result{phase: p, state: failed}, err.Error())
	}
	defer log.Close()
	lines := &prefixed{r: r, prefix: p.name + ": "}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "bash", "-c", p.command) // endGroup ends it.
	cmd.Env = append(os.Environ(), "PHASE_REPORT="+filepath.Join(r.dir, p.name))
	if r.keepGoing {
		cmd.Env = append(cmd.Env, "KEEP_GOING=1")
	}
	cmd.Stdout = io.MultiWriter(log, lines)
	cmd.Stderr = cmd.Stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	exited, started := make(chan struct{}), make(chan error)
	go func() {
		runtime.LockOSThread() // The signal of `Pdeathsig` comes when the thread that started the process ends.
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // ProcessState has the error.
			close(exited)
		}
	}()
	if err := <-started; err != nil {
		return r.done(result{phase: p, state: failed}, err.Error())
	}
	state := ok
	select {
	case <-exited:
	case <-ctx.Done():
		endGroup(cmd.Process.Pid)
		<-exited
		state = ended
	}
	if state == ok && !cmd.ProcessState.Success() {
		state = failed
	}
	lines.flush()
	res := result{phase: p, wall: time.Since(began), cpu: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), state: state}
	if res.tests, err = timesOf(filepath.Join(r.dir, p.name+".cpu")); err != nil {
		return r.done(result{phase: p, state: failed}, err.Error())
	}
	why := ""
	if state == failed {
		text, _ := os.ReadFile(log.Name())
		why = failures(string(text))
	}
	return r.done(res, why)
}

func (r *runner) done(res result, why string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results = append(r.results, res)
	if res.state == failed {
		fmt.Fprintf(r.out, "\n%s failed after %.0f s:\n%s\n", res.name, res.wall.Seconds(), why)
	}
	return res.state
}

// endGroup ends the processes of a group and waits for them: a cluster takes a while to clean up, and its shell does not
// wait for it.
func endGroup(group int) {
	_ = syscall.Kill(-group, syscall.SIGTERM) // It can be gone.
	for len(groupMembers(group)) > 0 {
		time.Sleep(100 * time.Millisecond)
	}
}

// groupMembers lists the processes of a group that are not zombies.
func groupMembers(group int) (out []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // It ended.
		}
		// `pid (comm) state ppid pgrp`
		rest := string(text[bytes.LastIndexByte(text, ')')+1:])
		var state string
		var parent, pgrp, pid int
		if _, err := fmt.Sscan(rest, &state, &parent, &pgrp); err != nil || pgrp != group || state == "Z" {
			continue
		}
		if _, err := fmt.Sscan(string(text), &pid); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// timesOf reads the lines that hack/timed.sh wrote, such as "mig.test 1m2.500s 0m3.100s". Programs of one name are added up; without
// a file there are none.
func timesOf(file string) (map[string]time.Duration, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	out := map[string]time.Duration{}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) != 3 {
			return nil, fmt.Errorf("%s: %q is not a program and its two times", file, strings.TrimSpace(line))
		}
		for _, word := range words[1:] {
			d, err := time.ParseDuration(word)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			out[words[0]] += d
		}
	}
	return out, err
}

// most is how many lines of failures are printed.
const most = 60

// failures returns the part of a phase's log that says why it failed: the failed tests of each module, or its end.
func failures(log string) string {
	var found, last []string
	inside := false
	for line := range strings.Lines(log) {
		line = strings.TrimRight(line, "\n")
		if len(line) > 240 {
			line = line[:240]
		}
		switch {
		case strings.HasPrefix(line, "=== Failed"):
			inside = true
		case strings.HasPrefix(line, "DONE "):
			inside = false
		}
		if inside {
			found = append(found, line)
		}
		last = append(last, line)
	}
	if len(found) == 0 {
		found = last[max(0, len(last)-most/2):]
	}
	return strings.Join(found[:min(len(found), most)], "\n")
}

// prefixed writes whole lines with a prefix to the runner's output.
type prefixed struct {
	r      *runner
	prefix string
	rest   []byte
}

func (w *prefixed) Write(b []byte) (int, error) {
	w.rest = append(w.rest, b...)
	for {
		line, rest, found := bytes.Cut(w.rest, []byte("\n"))
		if !found {
			return len(b), nil
		}
		w.print(line)
		w.rest = rest
	}
}

func (w *prefixed) flush() {
	if len(w.rest) > 0 {
		w.print(w.rest)
		w.rest = nil
	}
}

func (w *prefixed) print(line []byte) {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	fmt.Fprintf(w.r.out, "%s%s\n", w.prefix, line)
}
