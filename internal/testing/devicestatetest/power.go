// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestatetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/seedtest"
)

// RunPowerCuts cuts the power after each operation of each scenario, after its end, and after a new process prepared
// the claim again. Every answered commit must be on disk, no incomplete file may be accepted, and the next boot must
// recover.
func RunPowerCuts(t *testing.T, scenarios []Scenario) {
	cuts := 0
	for _, s := range scenarios {
		if s.Unknown {
			continue // A record that was damaged before stays unknown; the crash matrix has it.
		}
		t.Run(s.Name, func(t *testing.T) {
			s.initial = s.machine(t).image()
			trace := hosttest.Trace()
			_, p, _, _ := s.begin(t, trace, false)
			p.Crash()
			for at := range len(trace.Seen()) + 1 {
				if !seedtest.Chosen(fmt.Sprint(s.Name, at)) {
					continue
				}
				for _, again := range []bool{false, true} {
					cuts++
					s.cutPower(t, at, again)
					if t.Failed() {
						t.Fatalf("power cut after operation %d of %v, prepared again: %v", at, trace.Seen(), again)
					}
				}
			}
		})
	}
	t.Logf("power cuts: %d", cuts)
}

func (s Scenario) cutPower(t *testing.T, at int, again bool) {
	e, p, crashed, err := s.begin(t, hosttest.At(at, hosttest.CrashAfter), true)
	p.Crash()
	// Claim z was prepared before the act; the act's own claim is prepared if the act came to its end.
	var prepared, unprepared []string
	if !s.Starts && e.Claims["z"] != nil {
		prepared = append(prepared, "z")
	}
	if !crashed && err == nil {
		if prepared = s.Then; !slices.Contains(s.Then, "a") {
			unprepared = append(unprepared, "a")
		}
	}
	if again && e.Claims["a"] != nil && len(e.Claims["a"].Status.Allocation.Devices.Results) > 0 {
		// The next process finds the files that the page cache still has, and answers.
		next := e.start()
		e.Prepare(next, "a")
		next.Crash()
		prepared, unprepared = slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(prepared), "a")))), nil
	}
	e.Must(e.Disk.CutPower())
	e.Disk = nil
	e.Reboot(true)
	q := s.recovered(e)
	if n, err := q.Quarantined(); err != nil || n > 0 && !strings.Contains(s.Name, "damaged") {
		t.Fatalf("%d records unreadable, %v", n, err)
	}
	plans, _, err := q.Held()
	e.Must(err)
	held := map[string]bool{}
	for _, p := range plans {
		held[p.Claim.UID] = true
	}
	for _, uid := range prepared {
		if !held[uid] {
			t.Errorf("claim %s was prepared and is lost", uid)
		}
	}
	for _, uid := range unprepared {
		if held[uid] {
			t.Errorf("claim %s was unprepared and is back", uid)
		}
	}
	s.after(e, at%2 == 0)
	q.Crash()
}
