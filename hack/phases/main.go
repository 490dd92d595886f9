// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command phases runs the phases of a make target, which plan.tsv lists: side by side where the plan says so, until the
// first one fails. It prints a table of what they took, which stays in dist/test.
//
//	phases TARGET [PHASE...]  runs check, test or test-all, or some phases of it; KEEP_GOING=1 runs all that follow a failure
//	phases deal FILE PART OF SKIP  prints a regular expression for one part of the end-to-end tests, which take about as long
//	                               as each other part; FILE lists what the tests took, SKIP matches those that do not run
//	phases night FILE         prints a regular expression for the tests of the file that only test-all runs
//	phases budgets DIR PHASE...  prints the processor time of the test programs of some phases of a run, for cpu.txt
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 5 && args[0] == "deal":
		err = deal(args[1], args[2], args[3], args[4])
	case len(args) == 2 && args[0] == "night":
		err = night(args[1])
	case len(args) > 2 && args[0] == "budgets":
		var p programs
		if p, err = readPrograms(args[1], args[2:]); err == nil {
			fmt.Print(p)
		}
	case len(args) > 0:
		err = target(ctx, args[0], args[1:])
	default:
		err = errors.New("usage: phases check|test|test-all [PHASE...], phases deal FILE PART OF SKIP, phases night FILE, or phases budgets DIR PHASES")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "phases:", err)
		os.Exit(1)
	}
}

// target runs the phases of a make target in the source tree that is the working directory.
func target(ctx context.Context, name string, only []string) error {
	p, err := parse(planText)
	if err != nil {
		return err
	}
	stages := p.of(name, only...)
	if len(stages) == 0 {
		return fmt.Errorf("plan.tsv has no phase of %q %q", name, only)
	}
	dir, err := filepath.Abs(filepath.Join("dist", "test", name))
	if err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	before, err := busy()
	if err != nil {
		return err
	}
	budget, err := parsePrograms(cpuText)
	if err != nil {
		return err
	}
	var m machine
	idle, all, err := ticks()
	if err != nil {
		return err
	}
	began := time.Now()
	r := &runner{dir: dir, out: os.Stderr, keepGoing: os.Getenv("KEEP_GOING") != ""}
	red := r.run(ctx, stages)
	wall := time.Since(began)
	idleNow, allNow, err := ticks()
	if err != nil {
		return err
	}
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err
	}
	after := 0.0
	if red == nil {
		if after, err = busy(); err != nil {
			return err
		}
	}
	m.idle, m.others, m.load = (idleNow-idle)/max(allNow-all, 1), max(before, after), strings.Join(strings.Fields(string(load))[:3], " ")
	tests, err := slowest(dir)
	if err != nil {
		return err
	}
	table, grown := report(name, budget, r.results, m, wall, tests)
	fmt.Fprint(os.Stderr, table)
	if err := os.WriteFile(filepath.Join(dir, "table.txt"), []byte(table), 0o644); err != nil {
		return err
	}
	for _, one := range r.results {
		if one.state == failed {
			fmt.Fprintf(os.Stderr, "%s failed; its output is in %s\n", one.name, filepath.Join(dir, one.name+".log"))
		}
	}
	if red != nil {
		return red
	}
	return grown
}
