// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	_ "embed"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// growth is how far the test programs of a phase may exceed its budget together.
const growth = 1.15

// worth is the recorded time of the programs that show how fast the machine is. Shorter ones vary more.
const worth = time.Second

// programs holds the processor time of test programs by their names, of each phase that writes it down.
type programs map[string]map[string]time.Duration

//go:embed cpu.txt
var cpuText string

// parsePrograms reads lines of a phase, a test program and its processor time, such as "unit controller.test 12.5s".
func parsePrograms(text string) (programs, error) {
	out := programs{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] == "#" {
			continue
		}
		took, err := time.ParseDuration(f[len(f)-1])
		if len(f) != 3 || err != nil || took < 0 {
			return nil, fmt.Errorf("cpu.txt: %q is not a phase, a test program and its processor time", strings.TrimSpace(line))
		}
		if out[f[0]] == nil {
			out[f[0]] = map[string]time.Duration{}
		}
		out[f[0]][f[1]] = took
	}
	return out, nil
}

// readPrograms reads what some phases of a run wrote into the directory of its reports.
func readPrograms(dir string, phases []string) (programs, error) {
	out := programs{}
	for _, phase := range phases {
		times, err := timesOf(filepath.Join(dir, phase+".cpu"))
		if err != nil {
			return nil, err
		}
		if len(times) == 0 {
			return nil, fmt.Errorf("%s has no times of the phase %s", dir, phase)
		}
		out[phase] = times
	}
	return out, nil
}

// String returns the lines of cpu.txt.
func (p programs) String() string {
	var b strings.Builder
	b.WriteString("# The processor time of test programs in a warm run: `go run ./hack/phases budgets dist/test/test unit scheduler`. Tests of the phase\n" +
		"# others build programs of other projects, so their time is not recorded.\n")
	for _, phase := range slices.Sorted(maps.Keys(p)) {
		for _, name := range slices.Sorted(maps.Keys(p[phase])) {
			fmt.Fprintf(&b, "%s %s %.1fs\n", phase, name, p[phase][name].Seconds())
		}
	}
	return b.String()
}

func sum(times map[string]time.Duration) (all time.Duration) {
	for _, took := range times {
		all += took
	}
	return all
}

// speed returns how many times the recorded processor time most programs of some phases used. It differs on a slow or
// crowded machine, and stays if one program grows. Without programs to compare it is 0.
func (p programs) speed(budget programs, phases ...string) float64 {
	var ratios []float64
	for _, phase := range phases {
		for name, recorded := range budget[phase] {
			if took := p[phase][name]; recorded >= worth && took > 0 {
				ratios = append(ratios, took.Seconds()/recorded.Seconds())
			}
		}
	}
	if len(ratios) == 0 {
		return 0
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2]
}

// few is the number of programs below which a phase has the speed of the whole run.
const few = 5

// used returns which part of its budget a phase used, and those of its programs that grew most. It is 0 for a phase that cannot be
// compared.
func (p programs) used(budget programs, phase string) (part float64, most []string) {
	phases := []string{phase}
	if len(budget[phase]) < few {
		phases = slices.Sorted(maps.Keys(p))
	}
	speed := p.speed(budget, phases...)
	if speed == 0 || len(p[phase]) == 0 || len(budget[phase]) == 0 {
		return 0, nil
	}
	fair := func(name string) time.Duration { return time.Duration(speed * float64(budget[phase][name])) }
	names := slices.SortedFunc(maps.Keys(p[phase]), func(a, b string) int {
		return cmp.Or(cmp.Compare(p[phase][b]-fair(b), p[phase][a]-fair(a)), cmp.Compare(a, b))
	})
	for _, name := range names[:min(3, len(names))] {
		most = append(most, fmt.Sprintf("%s %.0f s instead of %.0f", name, p[phase][name].Seconds(), fair(name).Seconds()))
	}
	return sum(p[phase]).Seconds() / (speed * sum(budget[phase]).Seconds()), most
}
