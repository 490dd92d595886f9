// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestAdvice_Readings_BeginsAndEnds polls every 30 s. Advice never makes a GPU faulty.
func TestAdvice_Readings_BeginsAndEnds(t *testing.T) {
	const half = 30 * time.Second
	for name, tc := range map[string]struct {
		// reading is of one poll; nil is the reading of a healthy GPU.
		reading func(n int) Reading
		// `xid` is raised before the poll.
		xid int
		// first and last are the polls with the advice, of 200.
		first, last int
		want        string
	}{
		"pending row":    {func(n int) Reading { return Reading{RemapPending: n < 3} }, -1, 0, 2, RemapPending},
		"XID 92":         {nil, 5, 5, 124, ManyErrors},
		"errors":         {func(n int) Reading { return Reading{Corrected: int64(min(n, 10))} }, -1, 10, 129, RisingErrors},
		"few errors":     {func(n int) Reading { return Reading{Corrected: int64(n / 14)} }, -1, 0, -1, ""},
		"counter resets": {func(n int) Reading { return Reading{Corrected: 1 << 40 >> n} }, -1, 0, -1, ""},
		"unknown errors": {func(int) Reading { return Reading{Corrected: -1} }, -1, 0, -1, ""},
		"errors unknown at times": {func(n int) Reading {
			if n%7 == 0 {
				return Reading{Corrected: -1}
			}
			return Reading{Corrected: 500}
		}, -1, 0, -1, ""},
		"slow":           {func(n int) Reading { return Reading{Slow: n < 20} }, -1, 11, 19, SlowClocks},
		"slow at times":  {func(n int) Reading { return Reading{Slow: n%10 > 0} }, -1, 0, -1, ""},
		"few lanes":      {func(n int) Reading { return Reading{Width: 8, MaxWidth: 16, Busy: n == 7} }, -1, 7, 126, FewLanes},
		"no persistence": {func(n int) Reading { return Reading{NoPersistence: n < 5} }, -1, 0, 4, NoPersistence},
		"idle":           {func(int) Reading { return Reading{Width: 8, MaxWidth: 16} }, -1, 0, -1, ""},
		"all lanes":      {func(int) Reading { return Reading{Width: 16, MaxWidth: 16, Busy: true} }, -1, 0, -1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var g GPU
			first, last := 0, -1
			for n := range 200 {
				var r Reading
				if tc.reading != nil {
					r = tc.reading(n)
				}
				r.At = time.Unix(1e9, 0).Add(time.Duration(n) * half)
				if n == tc.xid {
					g = g.Event(92, Settings{})
				}
				g = g.Poll(r)
				if len(g.Faults()) > 0 {
					t.Fatalf("poll %d: faults %v", n, g.Faults())
				}
				advice := g.Advice()
				if len(advice) == 0 {
					continue
				}
				if last < 0 {
					first = n
				}
				if last = n; len(advice) != 1 || advice[0].State != tc.want {
					t.Fatalf("poll %d: advice %v, want %s", n, advice, tc.want)
				}
				if _, ok := Advised(advice[0].State); !ok {
					t.Errorf("no remedy for %s", advice[0].State)
				}
			}
			if diff := cmp.Diff([2]int{tc.first, tc.last}, [2]int{first, last}); diff != "" {
				t.Errorf("first and last poll with advice (-want +got):\n%s", diff)
			}
		})
	}
}

func TestUnmonitored_QueriesOrEventsMissing_NamesReason(t *testing.T) {
	old, recent := Reading{Recovery: NoRecovery}, Reading{}
	g := GPU{}.Poll(recent)
	for n := 1; n <= failedPolls; n++ {
		if g = g.Failed(); (g.Unmonitored() != "") != (n == failedPolls) {
			t.Errorf("after %d failed queries: %q", n, g.Unmonitored())
		}
	}
	if g = g.Poll(recent); g.Unmonitored() != "" {
		t.Errorf("after an answer: %q", g.Unmonitored())
	}
	if g := g.Refused(true); g.Unmonitored() != "" {
		t.Errorf("with recovery actions: %q", g.Unmonitored())
	}
	if g := (GPU{}).Refused(true); g.Unmonitored() != "" {
		t.Errorf("before the first answer: %q", g.Unmonitored())
	}
	if g = g.Poll(old).Refused(true); g.Unmonitored() == "" {
		t.Error("a GPU without recovery actions and XIDs is monitored")
	}
	if g = g.Refused(false); g.Unmonitored() != "" {
		t.Errorf("with XIDs: %q", g.Unmonitored())
	}
}
