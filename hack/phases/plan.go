// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

//go:embed plan.tsv
var planText string

// A phase is one row of plan.tsv: a command, and what it proves.
type phase struct {
	name string
	// targets are the make targets that run it: check, test, test-all.
	targets []string
	// stage is its place in the order. The phases of one stage run side by side, those of one lane of it one after another.
	stage   int
	lane    string
	command string
	proves  string
}

// A plan holds the phases in the order of the file.
type plan []phase

// parse reads a plan: rows of tab-separated fields, and comments.
func parse(text string) (p plan, err error) {
	names := map[string]bool{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) != 6 {
			return nil, fmt.Errorf("plan.tsv:%d: %d fields, want 6: name, targets, stage, lane, command, what it proves", n, len(f))
		}
		one := phase{name: f[0], targets: strings.Split(f[1], ","), lane: f[3], command: f[4], proves: f[5]}
		if one.stage, err = strconv.Atoi(f[2]); err != nil {
			return nil, fmt.Errorf("plan.tsv:%d: the stage %q is not a number", n, f[2])
		}
		if one.name == "" || one.command == "" || one.proves == "" || names[one.name] {
			return nil, fmt.Errorf("plan.tsv:%d: the phase %q needs a name of its own, a command and what it proves", n, one.name)
		}
		names[one.name] = true
		p = append(p, one)
	}
	return p, lines.Err()
}

// of returns the stages of a target in order: each has its lanes, and each lane its phases. With names, only these phases.
func (p plan) of(target string, only ...string) (stages []map[string][]phase) {
	all := map[int]map[string][]phase{}
	for _, one := range p {
		if !slices.Contains(one.targets, target) || len(only) > 0 && !slices.Contains(only, one.name) {
			continue
		}
		if all[one.stage] == nil {
			all[one.stage] = map[string][]phase{}
		}
		all[one.stage][one.lane] = append(all[one.stage][one.lane], one)
	}
	for _, stage := range slices.Sorted(maps.Keys(all)) {
		stages = append(stages, all[stage])
	}
	return stages
}

// workers returns how many phases of a lane run at once. The name of a lane ends in the number, as in clusters*2.
func workers(lane string) int {
	if _, number, ok := strings.Cut(lane, "*"); ok {
		if n, err := strconv.Atoi(number); err == nil && n > 0 {
			return n
		}
	}
	return 1
}
