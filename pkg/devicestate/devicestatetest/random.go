// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestatetest

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// Move is a step of a randomized test. Do returns a description for the log. It is an alias so that tables stay short.
type Move = struct {
	Weight int
	Name   string
	Do     func() string
}

// RunMoves makes random moves and checks the invariants after each. It logs the last moves of a test that failed.
func RunMoves(t testing.TB, random *rand.Rand, steps int, moves []Move, invariants func()) {
	t.Helper()
	counts, total, history := map[string]int{}, 0, []string(nil)
	for _, m := range moves {
		total += m.Weight
	}
	defer func() {
		if t.Failed() {
			t.Logf("the last steps:\n  %s", strings.Join(history[max(0, len(history)-30):], "\n  "))
		}
	}()
	for range steps {
		n := random.IntN(total)
		for _, m := range moves {
			if n -= m.Weight; n < 0 {
				counts[m.Name]++
				history = append(history, m.Name+" "+m.Do())
				break
			}
		}
		invariants()
		if t.Failed() {
			return
		}
	}
	for _, m := range moves {
		if counts[m.Name] == 0 && steps >= 1000 {
			t.Errorf("never: %s", m.Name)
		}
	}
	t.Logf("%d steps: %v", steps, counts)
}
