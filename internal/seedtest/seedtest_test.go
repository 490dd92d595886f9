// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package seedtest

import (
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// recorder is a test that has failed.
type recorder struct {
	testing.TB
	failed  bool
	cleanup []func()
	log     []string
}

func (r *recorder) Helper()                   {}
func (r *recorder) Name() string              { return "TestX/a.b" }
func (r *recorder) Failed() bool              { return r.failed }
func (r *recorder) Cleanup(f func())          { r.cleanup = append(r.cleanup, f) }
func (r *recorder) Logf(f string, a ...any)   { r.log = append(r.log, fmt.Sprintf(f, a...)) }
func (r *recorder) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

func short(t *testing.T, on bool) {
	t.Helper()
	was := testing.Short()
	t.Cleanup(func() { set(t, was) })
	set(t, on)
}

func set(t *testing.T, on bool) {
	t.Helper()
	if err := flag.Set("test.short", strconv.FormatBool(on)); err != nil {
		t.Fatal(err)
	}
}

func TestEach_BaseAndShort_YieldsSeedsFromTheBase(t *testing.T) {
	for _, test := range []struct {
		base  string
		short bool
		n     int
		want  []uint64
	}{
		{"", false, 3, []uint64{0, 1, 2}},
		{"", true, 3, []uint64{0}},
		{"1000", true, 29, []uint64{1000, 1001}},
		{"1000", false, 3, []uint64{1000, 1001, 1002}},
		{"18446744073709551615", false, 2, []uint64{1<<64 - 1, 0}},
	} {
		t.Setenv(variable, test.base)
		short(t, test.short)
		if got := slices.Collect(Each(t, test.n)); !slices.Equal(got, test.want) {
			t.Errorf("%+v: %v", test, got)
		}
	}
}

func TestEach_LoopEnds_YieldsNoMore(t *testing.T) {
	n := 0
	for range Each(t, 3000) {
		n++
		break
	}
	if n != 1 {
		t.Errorf("%d seeds", n)
	}
}

func TestBase_NoNumber_FailsTheTest(t *testing.T) {
	t.Setenv(variable, "-1")
	defer func() {
		if text := fmt.Sprint(recover()); !strings.HasPrefix(text, variable+": ") {
			t.Errorf("it ends with %q", text)
		}
	}()
	Base(&recorder{})
}

func TestBase_TestFails_LogsHowToRepeatIt(t *testing.T) {
	t.Setenv(variable, "77")
	for _, failed := range []bool{false, true} {
		r := &recorder{}
		Base(r)
		r.failed = failed
		for _, f := range r.cleanup {
			f()
		}
		const want = `seeds begin at 77: GPU_DRA_SEED=77 go test -run '^TestX$/^a\.b$' repeats it`
		if got := strings.Join(r.log, "\n"); failed != (got == want) {
			t.Errorf("failed %v: %q", failed, got)
		}
	}
}
