// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"gpu-dra-driver/test/bench/table"
)

const (
	// settle is the time after which the plugin has looked up the new claims, once a minute, and the supervisor has met
	// the servers of new daemons.
	settle = 65 * time.Second
	// Prometheus scrapes at scrapeInterval in most clusters.
	scrapeInterval = 30 * time.Second
	// openFiles is the number of files that the node's processes have open. The plugin searches them for GPUs.
	openFiles, processes = 30_000, 300
	// daemons is the number of MPS daemons, one for each GPU.
	daemons = 8
)

// pause waits, unless the context ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// job measures the processor time of a job as part of a processor, and adds a row with its budget in percent.
func (b *bench) job(ctx context.Context, name string, budget float64, spent func() (time.Duration, error)) error {
	before, err := spent()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := pause(ctx, time.Duration(b.idle)*time.Second); err != nil {
		return err
	}
	after, err := spent()
	percent := 100 * float64(after-before) / float64(time.Since(began))
	b.rows = append(b.rows, table.Plain(name, fmt.Sprintf("%.3f %%", percent), fmt.Sprintf("%.2f %%", budget), percent > budget))
	return err
}

// restWithoutClaims measures the plugin before the first claim.
func (b *bench) restWithoutClaims(ctx context.Context) error {
	if err := errors.Join(b.openFiles(), pause(ctx, settle)); err != nil {
		return err
	}
	return b.job(ctx, "CPU at rest, no claim", 0.05, b.cpu)
}

// openFiles makes the node's processes. None of them runs again.
func (b *bench) openFiles() error {
	for i := range processes {
		dir := filepath.Join(b.stage.Root, "proc", strconv.Itoa(100_000+i))
		if err := os.MkdirAll(filepath.Join(dir, "fd"), 0o755); err != nil {
			return err
		}
		stat := fmt.Sprintf("%d (server) S 1 1 1 0 -1 4194560 9 0 0 0 4 2 0 0 20 0 1 0 100 0 0\n", 100_000+i)
		if err := errors.Join(os.WriteFile(filepath.Join(dir, "comm"), []byte("server\n"), 0o644),
			os.WriteFile(filepath.Join(dir, "stat"), []byte(stat), 0o644)); err != nil {
			return err
		}
		for fd := range openFiles / processes {
			if err := os.Symlink(fmt.Sprintf("socket:[%d]", fd), filepath.Join(dir, "fd", strconv.Itoa(fd))); err != nil {
				return err
			}
		}
	}
	return nil
}

// rest measures the idle plugin beside scrapes and a node's open files, with the claims of growth still prepared, and its
// memory.
func (b *bench) rest(ctx context.Context) error {
	if err := pause(ctx, settle); err != nil {
		return err
	}
	measured, cancel := context.WithCancel(ctx)
	defer cancel()
	var work errgroup.Group
	work.Go(func() error { return b.scrapes(measured) })
	if b.profile {
		work.Go(func() error { // Its signals come with CPU time only, so at rest it costs little.
			return b.get(ctx, "/debug/pprof/profile?seconds="+strconv.Itoa(b.idle), filepath.Join(b.raw, "rest.pprof"))
		})
	}
	err := b.job(ctx, fmt.Sprintf("CPU at rest, %d prepared, scraped", b.prepared), 0.1, b.cpu)
	cancel()
	if err := errors.Join(err, work.Wait()); err != nil {
		return err
	}
	const scrapes = 10
	before, err := b.cpu()
	for range scrapes {
		err = errors.Join(err, b.get(ctx, "/metrics", ""))
	}
	after, cpuErr := b.cpu()
	rss, rssErr := b.memory("VmRSS:")
	anonymous, memoryErr := b.memory("RssAnon:")
	one := (after - before) / scrapes
	b.rows = append(b.rows,
		table.Plain("CPU of a scrape", table.Millis(one), "15 ms", one > 15*time.Millisecond),
		table.Row{Figure: fmt.Sprintf("anonymous memory at rest, %d prepared", b.prepared), Value: fmt.Sprintf("%.1f MB", anonymous),
			Floor: fmt.Sprintf("%.1f MB resident", rss), Ratio: "-", Budget: "20 MB", Over: anonymous > 20})
	return errors.Join(err, cpuErr, rssErr, memoryErr)
}

// scrapes asks for the metrics as Prometheus does.
func (b *bench) scrapes(ctx context.Context) error {
	for pause(ctx, scrapeInterval/2) == nil {
		if err := b.get(ctx, "/metrics", ""); err != nil && ctx.Err() == nil {
			return err
		}
		_ = pause(ctx, scrapeInterval/2)
	}
	return nil
}

// restWithMPS measures the supervisor, and the processes by which it asks a daemon of each GPU.
func (b *bench) restWithMPS(ctx context.Context) (err error) {
	for gpu := range daemons {
		claims, sharesErr := b.shares(ctx, gpu, 1)
		if sharesErr != nil {
			return sharesErr
		}
		if err := b.prepare(ctx, claims[0]); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, b.unprepare(ctx, claims[0])) }()
	}
	if err := pause(ctx, settle); err != nil {
		return err
	}
	return b.job(ctx, fmt.Sprintf("CPU of the MPS supervisor, %d daemons", daemons), 0.15, func() (time.Duration, error) {
		own, err := cpuOf(b.mps.Process.Pid)
		asked, askedErr := cpuOfChildren(b.mps.Process.Pid)
		return own + asked, errors.Join(err, askedErr)
	})
}

// get asks the plugin's server, and keeps the answer in a file unless its name is empty.
func (b *bench) get(ctx context.Context, path, file string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.http+path, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %s", path, resp.Status)
	case file == "":
		return nil
	}
	return os.WriteFile(file, data, 0o644)
}

// leaks prepares and unprepares many times and compares files, descriptors and memory before and after.
func (b *bench) leaks(ctx context.Context) error {
	names, err := b.names(ctx)
	if err != nil {
		return err
	}
	claims, err := b.claims(ctx, names, false)
	if err != nil {
		return err
	}
	round := func(n int) error {
		for i := range n {
			c := claims[i%len(claims)]
			if err := b.prepare(ctx, c); err != nil {
				return err
			}
			if err := b.unprepare(ctx, c); err != nil {
				return err
			}
		}
		return nil
	}
	if err := round(50); err != nil { // initialises everything that is initialised once
		return err
	}
	before, err := b.counts()
	if err != nil {
		return err
	}
	if err := round(b.rounds); err != nil {
		return err
	}
	after, err := b.counts()
	if err != nil {
		return err
	}
	for _, c := range []struct {
		name       string
		was, is    float64
		format     string
		atMostMore float64
	}{
		{"files", before.files, after.files, "%.0f", 0},
		{"open files", before.open, after.open, "%.0f", 2},
		{"memory", before.rss, after.rss, "%.1f MB", 3},
	} {
		b.rows = append(b.rows, table.Row{
			Figure: fmt.Sprintf("%s after %d rounds", c.name, b.rounds), Value: fmt.Sprintf(c.format, c.is),
			Floor: fmt.Sprintf(c.format, c.was) + " before", Ratio: "-", Budget: "flat", Over: c.is > c.was+c.atMostMore,
		})
	}
	return nil
}

type counts struct{ files, open, rss float64 }

func (b *bench) counts() (counts, error) {
	var c counts
	err := filepath.WalkDir(b.dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			c.files++
		}
		return err
	})
	if err != nil {
		return c, err
	}
	open, err := os.ReadDir(b.proc("fd"))
	if err != nil {
		return c, err
	}
	c.open = float64(len(open))
	c.rss, err = b.memory("VmRSS:")
	return c, err
}

func (b *bench) proc(name string) string {
	return filepath.Join("/proc", strconv.Itoa(b.plugin.Process.Pid), name)
}

// memory returns a line of the plugin's status file in MB of 10^6 bytes.
func (b *bench) memory(name string) (float64, error) {
	data, err := os.ReadFile(b.proc("status"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, name); ok {
			kb, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
			return kb * 1024 / 1e6, err
		}
	}
	return 0, fmt.Errorf("no %s in %s", name, b.proc("status"))
}

// cpu is the plugin's processor time so far.
func (b *bench) cpu() (time.Duration, error) { return cpuOf(b.plugin.Process.Pid) }

// cpuOf reads the clock of a process, which counts nanoseconds of all its threads.
func cpuOf(pid int) (time.Duration, error) {
	const scheduled = 2 // CPUCLOCK_SCHED of the kernel
	var spent unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|scheduled, &spent); err != nil {
		return 0, fmt.Errorf("read the processor time of process %d: %w", pid, err)
	}
	return time.Duration(spent.Nano()), nil
}

// cpuOfChildren is the processor time of the children of a process that have ended. The kernel counts it in hundredths of
// a second.
func cpuOfChildren(pid int) (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 15 {
		return 0, fmt.Errorf("the stat file of process %d is too short", pid)
	}
	user, err := strconv.ParseInt(fields[13], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(fields[14], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond, err
}
