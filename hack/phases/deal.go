// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// unlisted is the time of a test that the list of times lacks, in seconds.
const unlisted = 30

// night prints the regular expression of the tests that a file of times marks so: only test-all runs them.
func night(file string) error {
	_, nightly, err := readTimes(file)
	if err != nil {
		return err
	}
	fmt.Println("^(" + strings.Join(nightly, "|") + ")$")
	return nil
}

// deal prints the regular expression of a part of the tests beside the file with their times, without those that match skip.
func deal(file, part, of, skip string) error {
	times, _, err := readTimes(file)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(part)
	if err != nil {
		return err
	}
	parts, err := strconv.Atoi(of)
	if err != nil || parts < 1 || n < 1 || n > parts {
		return fmt.Errorf("there is no part %s of %s", part, of)
	}
	sources, err := filepath.Glob(filepath.Join(filepath.Dir(file), "*_test.go"))
	if err != nil {
		return err
	}
	skipped, err := regexp.Compile(skip)
	if err != nil {
		return err
	}
	var tests []string
	for _, source := range sources {
		text, err := os.ReadFile(source)
		if err != nil {
			return err
		}
		for _, name := range testName.FindAllStringSubmatch(string(text), -1) {
			if !skipped.MatchString(name[1]) {
				tests = append(tests, name[1])
			}
		}
	}
	fmt.Println(expression(dealt(tests, times, parts)[n-1]))
	return nil
}

var testName = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]*)\(t \*testing\.T\)`)

// readTimes reads lines of a test's name and its seconds, and the word night after those of tests that only test-all runs.
func readTimes(file string) (times map[string]float64, nightly []string, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, err
	}
	times = map[string]float64{}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if len(f) == 3 && f[2] == "night" {
			nightly, f = append(nightly, f[0]), f[:2]
		}
		seconds, err := strconv.ParseFloat(f[len(f)-1], 64)
		if len(f) != 2 || err != nil {
			return nil, nil, fmt.Errorf("%s: %q is not a test, its seconds, and perhaps night", file, strings.TrimSpace(line))
		}
		times[f[0]] = seconds
	}
	return times, nightly, nil
}

// unit is the part of a test's name that says what it tests. Tests of one unit mostly need the same settings of the chart, so they
// stay together.
func unit(test string) string { return strings.SplitN(test, "_", 2)[0] }

// dealt divides the units of tests into parts that take about as long as each other.
func dealt(tests []string, times map[string]float64, parts int) [][]string {
	units := map[string]float64{}
	for _, t := range tests {
		seconds, ok := times[t]
		if !ok {
			seconds = unlisted
		}
		units[unit(t)] += seconds
	}
	longest := slices.SortedFunc(maps.Keys(units), func(a, b string) int { return cmp.Or(cmp.Compare(units[b], units[a]), cmp.Compare(a, b)) })
	out, took := make([][]string, parts), make([]float64, parts)
	for _, u := range longest {
		least := 0
		for i := range took {
			if took[i] < took[least] {
				least = i
			}
		}
		out[least], took[least] = append(out[least], u), took[least]+units[u]
	}
	return out
}

// expression matches the tests of some units.
func expression(units []string) string {
	slices.Sort(units)
	return "^(" + strings.Join(units, "|") + ")(_|$)"
}
