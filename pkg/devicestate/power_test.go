// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"slices"
	"strings"
	"testing"

	"gpu-dra-driver/internal/host/hosttest"
)

// TestEngine_PowerCutAfterEveryOperation_KeepsCommits cuts the power after each effect of each scenario, when the act has ended, and after a killed process's
// successor has answered. What a commit promised is on disk, nothing half-written is read as whole, and the machine
// goes on in its next boot.
func TestEngine_PowerCutAfterEveryOperation_KeepsCommits(t *testing.T) {
	cuts := 0
	for _, s := range scenarios {
		if s.unknown {
			continue // What is damaged from the beginning stays unknown; the matrix has it.
		}
		t.Run(s.name, func(t *testing.T) {
			traced := hosttest.Trace()
			_, p, _, _ := s.begin(t, traced, false)
			p.Crash()
			for at := range len(traced.Seen()) + 1 {
				for _, answeredAgain := range []bool{false, true} {
					cuts++
					s.powerCut(t, at, answeredAgain)
					if t.Failed() {
						t.Fatalf("power cut after effect %d of %v, answered again: %v", at, traced.Seen(), answeredAgain)
					}
				}
			}
		})
	}
	t.Logf("power cuts: %d", cuts)
}

func (s scenario) powerCut(t *testing.T, at int, answerAgain bool) {
	e, p, died, err := s.begin(t, hosttest.At(at, hosttest.CrashAfter), true)
	p.Crash()
	// z was answered before; the act's own claim if the act came to its end.
	var promised, denied []string
	if !s.starts && e.Claims["z"] != nil {
		promised = append(promised, "z")
	}
	if !died && err == nil {
		if promised = s.then; !slices.Contains(s.then, "a") {
			denied = append(denied, "a")
		}
	}
	if answerAgain && e.Claims["a"] != nil && len(e.Claims["a"].Status.Allocation.Devices.Results) > 0 {
		// The next process finds what the page cache still has, and answers on the strength of it.
		next, err := e.StartWith(hosttest.Trace().Do)
		e.Must(err)
		e.Prepare(next, "a")
		next.Crash()
		promised, denied = slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(promised), "a")))), nil
	}
	e.Must(e.Disk.CutPower())
	e.Disk = nil
	e.Reboot(true)
	q := s.settle(t, e, nil)
	if n, err := q.Quarantined(); err != nil || n > 0 && !strings.Contains(s.name, "damaged") {
		t.Fatalf("%d records unreadable, %v", n, err)
	}
	plans, _, err := q.Held()
	e.Must(err)
	held := map[string]bool{}
	for _, p := range plans {
		held[p.Claim.UID] = true
	}
	for _, uid := range promised {
		if !held[uid] {
			t.Errorf("claim %s was answered and is lost", uid)
		}
	}
	for _, uid := range denied {
		if held[uid] {
			t.Errorf("claim %s was released and is back", uid)
		}
	}
	s.after(t, e, at%2 == 0)
	q.Crash()
}
