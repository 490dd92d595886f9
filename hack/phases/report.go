// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// A run whose lanes named build take more processor time than coldBuild compiled most of the programs that a warm run finds in its caches.
const coldBuild = 4 * time.Minute

// A machine has the run's measurements of the machine.
type machine struct {
	// others is the load by other programs before the first phase and after the last one, in processors.
	others float64
	// idle is the part of the processors' time that nothing used.
	idle float64
	load string
}

// ticks returns the idle and the whole time of all processors, in ticks.
func ticks() (idle, all float64, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	var f [8]float64 // `user nice system idle iowait irq softirq steal`
	if _, err := fmt.Sscanf(string(text), "cpu %f %f %f %f %f %f %f %f", &f[0], &f[1], &f[2], &f[3], &f[4], &f[5], &f[6], &f[7]); err != nil {
		return 0, 0, fmt.Errorf("read /proc/stat: %w", err)
	}
	for _, v := range f {
		all += v
	}
	return f[3] + f[4], all, nil
}

// busy returns how many processors are in use during a second in which this program does nothing.
func busy() (float64, error) {
	idle, all, err := ticks()
	if err != nil {
		return 0, err
	}
	time.Sleep(time.Second)
	idleNow, allNow, err := ticks()
	if err != nil || allNow == all {
		return 0, err
	}
	return (1 - (idleNow-idle)/(allNow-all)) * float64(runtime.NumCPU()), nil
}

// cold reports whether the builds compiled most of what the run needs.
func cold(results []result) bool {
	took := time.Duration(0)
	for _, r := range results {
		if strings.HasPrefix(r.lane, "build") {
			took += r.cpu
		}
	}
	return took > coldBuild
}

// report returns the table of a run, and an error if the test programs of a phase need more processor time than its budget allows.
func report(target string, budget programs, results []result, m machine, wall time.Duration, tests []test) (string, error) {
	var b strings.Builder
	warmth := "warm"
	if cold(results) {
		warmth = "cold"
	}
	took := programs{}
	for _, r := range results {
		if r.state == ok && len(r.tests) > 0 {
			took[r.name] = r.tests
		}
	}
	var grown []string
	fmt.Fprintf(&b, "\nmake %s\n\n", target)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "phase\ttime\tCPU\tits tests\tof the budget\tresult\t")
	total := time.Duration(0)
	for _, r := range results {
		share := "-"
		if part, most := took.used(budget, r.name); part > 0 {
			share = fmt.Sprintf("%.0f %%", 100*part)
			if part > growth {
				grown = append(grown, fmt.Sprintf("%s has %s (%s)", r.name, share, strings.Join(most, ", ")))
			}
		}
		total += r.cpu
		fmt.Fprintf(t, "%s\t%.0f s\t%.0f s\t%.0f s\t%s\t%s\t\n", r.name, r.wall.Seconds(), r.cpu.Seconds(), sum(r.tests).Seconds(), share, r.state)
	}
	fmt.Fprintf(t, "together\t%.0f s\t%.0f s\t\t\t\t\n", wall.Seconds(), total.Seconds())
	_ = t.Flush() // It writes to memory.
	fmt.Fprintf(&b, "\n%d processors, idle %.0f %% of the time; load %s; other programs use %.1f processors; caches are %s; tests use %.2f times the recorded processor time\n",
		runtime.NumCPU(), 100*m.idle, m.load, m.others, warmth, took.speed(budget, slices.Sorted(maps.Keys(took))...))
	if len(tests) > 0 {
		b.WriteString("\nthe slowest tests:\n")
		for _, t := range tests[:min(10, len(tests))] {
			fmt.Fprintf(&b, "%8.1f s  %s\n", t.seconds, t.name)
		}
	}
	if len(grown) > 0 {
		return b.String(), fmt.Errorf("the tests of %s of the processor time in hack/phases/cpu.txt; %.0f %% are allowed. Find what grew, "+
			"or record the times of this run in a commit that says what they buy", strings.Join(grown, "; "), 100*growth)
	}
	return b.String(), nil
}

// A test is one that ran, without its subtests.
type test struct {
	name    string
	seconds float64
}

// slowest reads the reports of `gotestsum` in a directory, the slowest tests first.
func slowest(dir string) ([]test, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var out []test
	var errs []error
	for _, file := range files {
		text, err := os.Open(file)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		lines := bufio.NewScanner(text)
		for lines.Scan() {
			var e struct {
				Action, Package, Test string
				Elapsed               float64
			}
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", file, err))
				break
			}
			if e.Test != "" && !strings.Contains(e.Test, "/") && (e.Action == "pass" || e.Action == "fail") {
				out = append(out, test{strings.TrimPrefix(e.Package, "gpu-dra-driver/") + "." + e.Test, e.Elapsed})
			}
		}
		errs = append(errs, lines.Err(), text.Close())
	}
	slices.SortFunc(out, func(a, b test) int { return cmp.Or(cmp.Compare(b.seconds, a.seconds), cmp.Compare(a.name, b.name)) })
	return out, errors.Join(errs...)
}
