// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/plan"
)

// witness is what the node says of a claim.
type witness struct {
	named   bool
	holder  string
	err     error
	asked   int
	devices []plan.Device
}

func (x *witness) KubeletNames(context.Context, plan.Claim) (bool, error) {
	x.asked++
	return x.named, x.err
}

func (x *witness) Holder(_ context.Context, devices []plan.Device) (string, error) {
	x.devices = devices
	return x.holder, nil
}

const grace = time.Minute

type look struct {
	*world
	process
	devicestate.Vanished
	server  *server
	witness *witness
}

// vanishing is a machine whose claim a was force-deleted; b is there.
func vanishing(t *testing.T) *look {
	w := newWorld(t)
	p := w.run()
	w.steppedClaim("a", 0)
	w.claim("b", 1)
	w.prepare(p, "a")
	w.prepare(p, "b")
	delete(w.claims, "a")
	l := &look{world: w, process: p, server: &server{w: w}, witness: &witness{}}
	l.Vanished = devicestate.Vanished{Engine: p.Engine, Claims: l.server, Witness: l.witness, Grace: grace}
	return l
}

// after looks again once some time has passed.
func (l *look) after(d time.Duration) []devicestate.Finding {
	l.t.Helper()
	l.now = l.now.Add(d)
	findings, err := l.Look(context.Background())
	l.must(err)
	return findings
}

func (l *look) kept(findings []devicestate.Finding) {
	l.t.Helper()
	for _, f := range findings {
		if f.Did != "" {
			l.t.Fatalf("released: %+v", f)
		}
	}
	l.clean(l.process, "a", "b")
}

func (l *look) released(findings []devicestate.Finding) {
	l.t.Helper()
	if len(findings) != 1 || findings[0].Did == "" || findings[0].Err != nil || findings[0].Claim.UID != "a" {
		l.t.Fatalf("findings %+v", findings)
	}
	l.clean(l.process, "b")
}

func TestVanishedClaimIsReleasedAfterTheGracePeriod(t *testing.T) {
	l := vanishing(t)
	l.kept(l.after(0))
	l.kept(l.after(grace - time.Second))
	if l.witness.asked > 0 {
		t.Error("the kubelet was asked within the grace period")
	}
	l.released(l.after(time.Second))
	if len(l.witness.devices) != 1 || l.witness.devices[0].PCIAddress != address(0) {
		t.Errorf("asked for holders of %+v", l.witness.devices)
	}
	if f := l.after(grace); len(f) > 0 {
		t.Errorf("once more: %+v", f)
	}
}

func TestVanishedClaimIsNeverReleasedOnAnAPIError(t *testing.T) {
	l := vanishing(t)
	l.kept(l.after(0))
	l.server.down = errors.New("connection refused")
	l.kept(l.after(2 * grace))
	l.kept(l.after(2 * grace))
	l.server.down = nil
	// The clock starts anew, for nobody knows what was in between.
	l.kept(l.after(grace))
	l.released(l.after(grace))
}

func TestVanishedClaimThatReturnsIsKept(t *testing.T) {
	l := vanishing(t)
	l.kept(l.after(0))
	l.steppedClaim("a", 0)
	l.kept(l.after(grace))
	delete(l.claims, "a")
	l.kept(l.after(grace))
	l.released(l.after(grace))
}

func TestVanishedClaimInUseIsKeptAndSaid(t *testing.T) {
	for name, test := range map[string]witness{
		"kubelet names it":  {named: true},
		"kubelet unknown":   {err: errors.New("permission denied")},
		"process holds it":  {holder: "process 4711 (python)"},
		"both and an error": {named: true, holder: "process 1", err: errors.New("x")},
	} {
		t.Run(name, func(t *testing.T) {
			l := vanishing(t)
			*l.witness = test
			l.kept(l.after(0))
			for range 3 {
				findings := l.after(grace)
				l.kept(findings)
				if len(findings) == 0 {
					findings = l.after(grace)
				}
				if len(findings) != 1 || findings[0].Err == nil {
					t.Fatalf("not told: %+v", findings)
				}
			}
			*l.witness = witness{}
			l.kept(l.after(0))
			l.released(l.after(grace))
		})
	}
}

func TestClaimThatHoldsNothingHereAnyMoreVanishes(t *testing.T) {
	for name, change := range map[string]func(w *world){
		"deallocated":    func(w *world) { w.claim("a").Status.Allocation = nil },
		"another node's": func(w *world) { w.claim("a", 0).Status.Allocation.Devices.Results[0].Pool = "node-2/gpu" },
	} {
		t.Run(name, func(t *testing.T) {
			l := vanishing(t)
			change(l.world)
			l.kept(l.after(0))
			l.released(l.after(grace))
		})
	}
}

func TestVanishedUnknownRecordIsReleased(t *testing.T) {
	l := vanishing(t)
	l.damage("a")
	l.must(os.Remove(l.specFile("a")))
	l.must(recovers(l.world, l.process))
	l.empty(l.out, "") // What was lost with the record nobody can revert.
	if f := l.after(0); len(f) > 0 {
		t.Fatal(f)
	}
	l.released(l.after(grace))
}

func TestVanishedReleaseThatFailsIsTriedAgain(t *testing.T) {
	l := vanishing(t)
	executors := l.Executors
	l.process.Engine.Executors = nil
	l.after(0)
	if f := l.after(grace); len(f) != 1 || f[0].Err == nil {
		t.Fatalf("%+v", f)
	}
	l.process.Engine.Executors = executors
	l.after(0)
	l.released(l.after(grace))
}
