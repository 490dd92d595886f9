// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the table of CONTRIBUTING.md")

// proven returns the table of CONTRIBUTING.md.
func proven(p plan) string {
	var b strings.Builder
	b.WriteString("| phase | in `make check` | `make test` | `make test-all` | proves |\n| --- | --- | --- | --- | --- |\n")
	mark := func(p phase, target string) string {
		if slices.Contains(p.targets, target) {
			return " yes"
		}
		return ""
	}
	for _, one := range p {
		fmt.Fprintf(&b, "| `%s` |%s |%s |%s | %s |\n", one.name, mark(one, "check"), mark(one, "test"), mark(one, "test-all"), one.proves)
	}
	return b.String()
}

func TestPlan_Contributing_HasItsTable(t *testing.T) {
	p, err := parse(planText)
	if err != nil {
		t.Fatal(err)
	}
	const file = "../../CONTRIBUTING.md"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	place := regexp.MustCompile(`(?s)(<!-- phases: begin -->\n).*?(<!-- phases: end -->)`)
	want := place.ReplaceAllString(string(text), "${1}"+strings.ReplaceAll(proven(p), "$", "$$")+"${2}")
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, string(text)); diff != "" && !*update || !place.Match(text) {
		t.Errorf("CONTRIBUTING.md differs from hack/phases/plan.tsv; -update writes it (-want +got):\n%s", diff)
	}
}

// TestPlan_Targets_NothingIsLost compares the plan with the Makefile: what a smaller target proves a larger one proves too, and each
// target that tests is in the largest.
func TestPlan_Targets_NothingIsLost(t *testing.T) {
	p, err := parse(planText)
	if err != nil {
		t.Fatal(err)
	}
	// Phases that do all that another one does, and more.
	more := map[string]string{"unit-short": "unit", "others-short": "others"}
	in := func(target, name string) bool {
		return slices.ContainsFunc(p, func(one phase) bool { return one.name == name && slices.Contains(one.targets, target) })
	}
	commands := ""
	for _, one := range p {
		commands += one.command + "\n"
		for _, larger := range []string{"test", "test-all"} {
			is := in("check", one.name) || larger == "test-all"
			if is && !in(larger, one.name) && !in(larger, more[one.name]) {
				t.Errorf("%s is in a smaller target and not in %s", one.name, larger)
			}
		}
	}
	nightly, err := os.ReadFile("../../.github/workflows/nightly.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range p {
		// Real GPUs are not there, and kind has a workflow of its own.
		if slices.Contains(one.targets, "test-all") && !slices.Contains(one.targets, "test") && one.name != "hardware" && one.name != "kind" &&
			!regexp.MustCompile(`(?m)^ +- .*\b`+one.name+`\b`).Match(nightly) {
			t.Errorf("nightly.yml lacks the phase %s", one.name)
		}
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	// Those that a phase runs by its script, and those that need what a machine can lack.
	other := map[string]string{
		"test": "", "test-all": "", "test-unit": "hack/test-unit.sh", "test-e2e": "hack/test-e2e.sh", "test-cluster": "cluster", "test-hardware": "",
	}
	targets := regexp.MustCompile(`(?m)^((?:test|bench)[a-z0-9-]*):`).FindAllStringSubmatch(string(makefile), -1)
	if len(targets) < 10 {
		t.Fatalf("the Makefile has the targets %v", targets)
	}
	for _, m := range targets {
		want, is := other[m[1]]
		if !is {
			want = "make --no-print-directory " + m[1]
		}
		if !strings.Contains(commands, want) {
			t.Errorf("no phase of test-all runs %q", want)
		}
	}
}

func TestParse_WrongRows_AreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"a\ttest\t1\tlane\tx\n":                "5 fields",
		"a\ttest\tx\tl\tc\tp\n":                "the stage",
		"a\ttest\t1\tl\tc\t\n":                 "needs a name",
		"a\tt\t1\tl\tc\tp\na\tt\t1\tl\tc\tp\n": "of its own",
	} {
		if _, err := parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// ran runs a plan whose commands write into a file what they do.
func ran(t *testing.T, ctx context.Context, keepGoing bool, rows ...string) (said, out string, err error) {
	t.Helper()
	text := ""
	for _, row := range rows {
		f := strings.SplitN(row, " ", 4) // name stage lane command
		text += strings.Join([]string{f[0], "test", f[1], f[2], f[3], "it"}, "\t") + "\n"
	}
	p, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Setenv("SAID", filepath.Join(dir, "said"))
	var b strings.Builder
	r := &runner{dir: dir, out: &b, keepGoing: keepGoing}
	err = r.run(ctx, p.of("test"))
	text2, _ := os.ReadFile(filepath.Join(dir, "said"))
	states := ""
	for _, one := range r.results {
		states += one.name + " " + one.state + "\n"
	}
	return string(text2), b.String() + states, err
}

func TestRun_LanesAndStages_KeepTheirOrder(t *testing.T) {
	said, out, err := ran(t, t.Context(), false,
		// Each phase of the lane waits for the other one, so they run at once; so do two lanes.
		"a 1 l*2 touch $SAID.a; until [ -e $SAID.b ]; do sleep 0.01; done; echo a >>$SAID",
		"b 1 l*2 touch $SAID.b; until [ -e $SAID.a ]; do sleep 0.01; done; echo a >>$SAID",
		"c 1 m until [ -e $SAID.a ]; do sleep 0.01; done",
		"d 2 l echo d >>$SAID", "e 2 l echo e >>$SAID")
	if want := "a\na\nd\ne\n"; said != want || err != nil {
		t.Errorf("the phases said %q, want %q: %v\n%s", said, want, err, out)
	}
}

func TestRun_PhaseFails_EndsTheOthers(t *testing.T) {
	rows := []string{
		"slow 1 a trap 'sleep 0.2; echo cleaned >>$SAID; exit 1' TERM; touch $SAID.up; while :; do sleep 0.01; done",
		"red 1 b until [ -e $SAID.up ]; do sleep 0.01; done; echo '=== Failed'; echo the cause; echo DONE 1 tests; exit 1",
		"next 1 b echo next >>$SAID", "later 2 a echo later >>$SAID",
	}
	said, out, err := ran(t, t.Context(), false, rows...)
	if said != "cleaned\n" || !errors.Is(err, errFailed) {
		t.Errorf("the phases said %q: %v", said, err)
	}
	for _, want := range []string{"red: the cause\n", "red failed after 0 s:\n=== Failed\nthe cause\n", "red failed\n", "slow ended\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
	rows[0] = "slow 1 a until [ -e $SAID.done ]; do sleep 0.01; done; echo slow >>$SAID"
	rows[1] = "red 1 b touch $SAID.done; exit 1"
	said, _, err = ran(t, t.Context(), true, rows...)
	for _, want := range []string{"slow\n", "next\n", "later\n"} {
		if !strings.Contains(said, want) || !errors.Is(err, errFailed) {
			t.Errorf("with KEEP_GOING the phases said %q: %v", said, err)
		}
	}
}

func TestRun_Interrupted_WaitsForItsProcesses(t *testing.T) {
	ctx, interrupt := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer interrupt()
	// The shell ends at once, its child takes a while to clean up.
	said, out, err := ran(t, ctx, false, `a 1 l (trap 'sleep 0.3; echo cleaned >>$SAID; exit' TERM; while :; do sleep 0.01; done) & wait`)
	if said != "cleaned\n" || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(out, "a ended") {
		t.Errorf("said %q: %v\n%s", said, err, out)
	}
}

func TestReport_PhaseGrows_Fails(t *testing.T) {
	budget, err := parsePrograms("# a comment\nunit a.test 10s\nunit b.test 20s\nunit c.test 30s\nunit d.test 40s\nunit short.test 0.1s\nscheduler s.test 10s\n")
	if err != nil {
		t.Fatal(err)
	}
	// run has the recorded times, times a factor, and what change makes of them.
	run := func(factor float64, change func(programs)) []result {
		took := programs{}
		for phase, times := range budget {
			took[phase] = map[string]time.Duration{}
			for name, d := range times {
				took[phase][name] = time.Duration(factor * float64(d))
			}
		}
		change(took)
		var out []result
		for phase, times := range took {
			out = append(out, result{phase: named(phase), tests: times, state: ok})
		}
		return out
	}
	set := func(phase, name string, d time.Duration) func(programs) {
		return func(p programs) { p[phase][name] = d }
	}
	for name, c := range map[string]struct {
		results []result
		red     string
	}{
		"as recorded":                    {run(1, func(programs) {}), ""},
		"a machine of half the speed":    {run(2, func(programs) {}), ""},
		"one program grew":               {run(2, set("unit", "b.test", 80*time.Second)), "unit has 120 % (b.test 80 s instead of 40, "},
		"one program grew a little":      {run(2, set("unit", "b.test", 60*time.Second)), ""},
		"a new program":                  {run(1, set("unit", "e.test", 20*time.Second)), "unit has 120 % (e.test 20 s instead of 0, "},
		"a short one varies":             {run(1, set("unit", "short.test", time.Second)), ""},
		"the only program of its phase":  {run(2, set("scheduler", "s.test", 30*time.Second)), "scheduler has 150 %"},
		"a phase that was not recorded":  {[]result{{phase: named("new"), tests: map[string]time.Duration{"x.test": time.Hour}, state: ok}}, ""},
		"a failed phase":                 {[]result{{phase: named("unit"), tests: map[string]time.Duration{"a.test": time.Hour}, state: failed}}, ""},
		"a phase without times of tests": {[]result{{phase: named("unit"), cpu: time.Hour, state: ok}}, ""},
	} {
		table, err := report("test", budget, c.results, machine{load: "1 1 1"}, time.Minute, []test{{"pkg/a.TestB", 12.3}})
		if (err != nil) != (c.red != "") || err != nil && !strings.Contains(err.Error(), c.red) {
			t.Errorf("%s: %v, want %q\n%s", name, err, c.red, table)
		}
		if !strings.Contains(table, "12.3 s  pkg/a.TestB") {
			t.Errorf("%s: the table lacks the slow test:\n%s", name, table)
		}
	}
}

func named(name string) phase { return phase{name: name, lane: name} }

func TestPrograms_WhatTimedWrote_IsReadBack(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "unit.cpu"), []byte("mig.test 1m2.500s 0m3.100s\nask.test 0m0.400s 0m0.000s\nask.test 0m1.000s 0m0.200s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	read, err := readPrograms(dir, []string{"unit"})
	if err != nil {
		t.Fatal(err)
	}
	again, err := parsePrograms(read.String())
	if want := (programs{"unit": {"mig.test": 65600 * time.Millisecond, "ask.test": 1600 * time.Millisecond}}); err != nil || !cmp.Equal(want, again) {
		t.Errorf("%v, %v, want %v", again, err, want)
	}
	if _, err := readPrograms(dir, []string{"unit", "lint"}); err == nil || !strings.Contains(err.Error(), "lint") {
		t.Errorf("a phase without times: %v", err)
	}
	if of, err := parsePrograms(cpuText); err != nil || len(of["unit"]) < 50 || len(of["scheduler"]) != 1 {
		t.Errorf("cpu.txt has %d and %d programs, %v", len(of["unit"]), len(of["scheduler"]), err)
	}
	for _, text := range []string{"unit 1s", "unit a.test x", "unit a.test -1s"} {
		if _, err := parsePrograms(text); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}

func TestDealt_UnitsOfTests_PartsTakeAsLong(t *testing.T) {
	tests := []string{"TestDemos", "TestAuto_A_B", "TestAuto_B_C", "TestNew_A_B", "TestPlugin_A_B", "TestPack_A_B"}
	times := map[string]float64{"TestDemos": 100, "TestAuto_A_B": 40, "TestAuto_B_C": 20, "TestPlugin_A_B": 50, "TestPack_A_B": 10}
	parts := dealt(tests, times, 2)
	// A test without a time is taken for one of 30 s.
	want := [][]string{{"TestDemos", "TestNew"}, {"TestAuto", "TestPlugin", "TestPack"}}
	if diff := cmp.Diff(want, parts); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for i, part := range parts {
		re := regexp.MustCompile(expression(part))
		for _, test := range tests {
			if re.MatchString(test) != slices.Contains(want[i], unit(test)) {
				t.Errorf("%s matches %s: %t", re, test, re.MatchString(test))
			}
		}
	}
}

// TestTimes_EndToEnd_HasEachTest reads the list of the tree.
func TestTimes_EndToEnd_HasEachTest(t *testing.T) {
	times, nightly, err := readTimes("../../test/e2e/times.txt")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../../test/e2e/*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testName.FindAllStringSubmatch(string(source), -1) {
			there[m[1]] = true
		}
	}
	if len(nightly) == 0 || len(nightly) > len(times)*2/3 {
		t.Errorf("%d of %d tests run at night only", len(nightly), len(times))
	}
	for name := range times {
		if !there[name] {
			t.Errorf("times.txt has %s, which does not exist", name)
		}
	}
}
