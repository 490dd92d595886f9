// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package seedtest gives random tests their seeds. They are the same in each run, unless GPU_DRA_SEED has another
// first one.
package seedtest

import (
	"hash/crc32"
	"iter"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const variable = "GPU_DRA_SEED"

// Count returns n, or a tenth with -short, but at least one.
func Count(n int) int {
	if testing.Short() {
		return max(1, n/10)
	}
	return n
}

// Chosen reports whether a case of a matrix runs: each one, or with -short about each tenth, by its name.
func Chosen(name string) bool {
	return !testing.Short() || crc32.ChecksumIEEE([]byte(name))%10 == 0
}

// Each yields Count(n) seeds in a row.
func Each(t testing.TB, n int) iter.Seq[uint64] {
	t.Helper()
	base := Base(t)
	return func(yield func(uint64) bool) {
		for i := range uint64(Count(n)) {
			if !yield(base + i) {
				return
			}
		}
	}
}

// Base returns the first seed, for a test with one source of random numbers. If the test fails, it logs how to repeat
// it.
func Base(t testing.TB) uint64 {
	t.Helper()
	base := uint64(0)
	if text := os.Getenv(variable); text != "" {
		var err error
		if base, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", variable, err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			name := strings.ReplaceAll(regexp.QuoteMeta(t.Name()), "/", "$/^")
			t.Logf("seeds begin at %d: %s=%d go test -run '^%s$' repeats it", base, variable, base, name)
		}
	})
	return base
}
