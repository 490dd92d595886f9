// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestatetest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/seedtest"
)

// Move is a step of a randomized test. Do returns a description for the log. It is an alias so that tables stay short.
type Move = struct {
	Weight int
	Name   string
	Do     func() string
}

// Random is the machine of a randomized test, with the kubelet's state.
type Random struct {
	*Env
	Rand *rand.Rand
	// Prepared are the claims after a successful Prepare and before their Unprepare, with the boot.
	Prepared map[string]int
	// Damaged are the prepared claims whose record or spec was damaged since.
	Damaged map[string]bool
	claims  int
}

func NewRandom(e *Env) *Random {
	return &Random{
		Env:      e,
		Rand:     rand.New(rand.NewPCG(seedtest.Base(e.T), 0)),
		Prepared: map[string]int{},
		Damaged:  map[string]bool{},
	}
}

// Run makes random moves and checks the invariants after each. If the test fails, it logs the last moves.
func (r *Random) Run(steps int, moves []Move, invariants func()) {
	r.T.Helper()
	counts, total, history := map[string]int{}, 0, []string(nil)
	for _, m := range moves {
		total += m.Weight
	}
	defer func() {
		if r.T.Failed() {
			r.T.Logf("the last steps:\n  %s", strings.Join(history[max(0, len(history)-30):], "\n  "))
		}
	}()
	for range steps {
		n := r.Rand.IntN(total)
		for _, m := range moves {
			if n -= m.Weight; n < 0 {
				counts[m.Name]++
				history = append(history, m.Name+" "+m.Do())
				break
			}
		}
		invariants()
		if r.T.Failed() {
			return
		}
	}
	for _, m := range moves {
		if counts[m.Name] == 0 && steps >= 1000 {
			r.T.Errorf("never: %s", m.Name)
		}
	}
	r.T.Logf("%d steps: %v", steps, counts)
}

// NewUID returns the UID of a new claim.
func (r *Random) NewUID() string {
	r.claims++
	return fmt.Sprintf("c%d", r.claims)
}

// Pick returns one of the UIDs, or "".
func (r *Random) Pick(uids []string) string {
	if len(uids) == 0 {
		return ""
	}
	return uids[r.Rand.IntN(len(uids))]
}

// AnyClaim returns the UID of a claim, or "".
func (r *Random) AnyClaim() string { return r.Pick(slices.Sorted(maps.Keys(r.Claims))) }

// TryPrepare prepares a claim and notes a success.
func (r *Random) TryPrepare(p *Process, uid string) error {
	devices, err := p.Prepare(context.Background(), r.Claims[uid])
	if err == nil {
		if len(devices) != len(r.Claims[uid].Status.Allocation.Devices.Results) {
			r.T.Errorf("%s: devices %+v", uid, devices)
		}
		r.Prepared[uid] = r.Boots
		delete(r.Damaged, uid)
	}
	return err
}

// TryUnprepare unprepares and deletes a claim.
func (r *Random) TryUnprepare(p *Process, uid string) error {
	delete(r.Prepared, uid)
	err := p.Unprepare(context.Background(), ClaimID(uid))
	if err == nil {
		delete(r.Claims, uid)
		delete(r.Damaged, uid)
	}
	return err
}

// UnprepareAny unprepares a claim.
func (r *Random) UnprepareAny(p *Process) string {
	uid := r.AnyClaim()
	if uid == "" {
		return "nothing"
	}
	if err := r.TryUnprepare(p, uid); err != nil {
		r.T.Errorf("unprepare of %s: %v", uid, err)
	}
	return uid
}

// UnprepareAll unprepares all claims.
func (r *Random) UnprepareAll(p *Process) {
	for _, uid := range slices.Sorted(maps.Keys(r.Claims)) {
		r.Must(r.TryUnprepare(p, uid))
	}
}

// Strike recovers, prepares or unprepares, with a fault at the n-th operation.
func (r *Random) Strike(p *Process, f *hosttest.Faults, n int, kind hosttest.Kind) string {
	f.ArmAt(n, kind)
	uid := r.AnyClaim()
	crashed, err := hosttest.Run(func() error {
		switch {
		case uid == "" || r.Rand.IntN(3) == 0:
			return p.RecoverAll()
		case r.Rand.IntN(2) == 0:
			return r.TryPrepare(p, uid)
		}
		return r.TryUnprepare(p, uid)
	})
	f.Disarm()
	return fmt.Sprintf("%s operation %d of %s: crashed %v, %v", kind, n, uid, crashed, err)
}
