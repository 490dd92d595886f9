// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"gpu-dra-driver/test/bench/table"
)

// settle is the time after which the plugin has looked up the new claims, once a minute, is idle and has returned memory.
const settle = 65 * time.Second

// rest reads memory and CPU time of the idle plugin, with the claims of growth still prepared.
func (b *bench) rest(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(settle):
	}
	before, err := b.cpu()
	if err != nil {
		return err
	}
	rested := time.After(time.Duration(b.idle) * time.Second)
	if b.profile != "" { // Its signals come with CPU time only, so at rest it costs little.
		if err := b.keepProfile(ctx); err != nil {
			return err
		}
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-rested:
	}
	after, err := b.cpu()
	if err != nil {
		return err
	}
	rss, err := b.rss()
	if err != nil {
		return err
	}
	b.rows = append(b.rows,
		table.Plain(fmt.Sprintf("memory at rest, %d prepared", b.prepared), fmt.Sprintf("%.1f MB", rss), "45 MB", rss > 45),
		table.Plain("CPU at rest", fmt.Sprintf("%.2f %%", 100*(after-before)/float64(b.idle)), "0.15 %",
			after-before > 0.0015*float64(b.idle)))
	return nil
}

// keepProfile keeps the plugin's CPU profile of the time at rest.
func (b *bench) keepProfile(ctx context.Context) error {
	url := fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", b.profile, b.idle)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.raw, "rest.pprof"), data, 0o644)
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
	c.rss, err = b.rss()
	return c, err
}

func (b *bench) proc(name string) string {
	return filepath.Join("/proc", strconv.Itoa(b.plugin.Process.Pid), name)
}

// rss is in MB of 10^6 bytes.
func (b *bench) rss() (float64, error) {
	data, err := os.ReadFile(b.proc("status"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
			return kb * 1024 / 1e6, err
		}
	}
	return 0, fmt.Errorf("no VmRSS in %s", b.proc("status"))
}

// cpu is the CPU time so far, in seconds. The kernel counts it in hundredths.
func (b *bench) cpu() (float64, error) {
	data, err := os.ReadFile(b.proc("stat"))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("%s is too short", b.proc("stat"))
	}
	user, err := strconv.ParseFloat(fields[11], 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseFloat(fields[12], 64)
	return (user + system) / 100, err
}
