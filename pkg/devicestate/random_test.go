// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/claim/claimerror"
)

var randomSteps = flag.Int("random.steps", 2000, "steps of the randomized test")

// randomized is a machine with two plugin processes side by side.
type randomized struct {
	*devicestatetest.Random
	processes [2]*process
	faults    [2]*hosttest.Faults
}

// TestEngine_RandomMoves_KeepsInvariants does at random what happens to a node. After each step no GPU has two owners, and
// every prepared claim has its devices. Now and then all claims are released, and then nothing may be left.
func TestEngine_RandomMoves_KeepsInvariants(t *testing.T) {
	w := &randomized{Random: devicestatetest.NewRandom(devicestatetest.New(t))}
	for i := range w.processes {
		w.restart(i)
	}
	w.Run(seedtest.Count(*randomSteps), []devicestatetest.Move{
		{30, "prepare", w.prepareSome}, {15, "prepare again", w.prepareAgain}, {20, "unprepare", w.unprepareSome},
		{12, "crash", w.crash}, {3, "restart", func() string { w.restart(w.Rand.IntN(2)); return "" }}, {2, "reboot", w.rebootSome},
		{3, "damage a record", w.damageSome}, {2, "lose the CDI directory", w.loseSpecs}, {2, "lose a GPU", w.loseGPU},
		{4, "bring a GPU back", w.returnGPU}, {3, "fail an operation", w.failSome}, {1, "release all", w.releaseAll},
	}, w.invariants)
	if !t.Failed() {
		w.releaseAll()
	}
}

func (w *randomized) restart(i int) {
	w.processes[i].Crash()
	w.faults[i] = hosttest.Trace()
	p, err := w.StartWith(w.faults[i].Do)
	w.Must(err)
	w.processes[i] = p
	w.recover(i)
}

func (w *randomized) recover(i int) {
	findings, err := w.processes[i].Recover(context.Background())
	w.Must(err)
	for _, f := range findings {
		if f.Err != nil {
			w.T.Errorf("recover: %+v", f)
		}
	}
	if identified, err := w.processes[i].Identify(context.Background(), &devicestatetest.APIServer{Env: w.Env}); err != nil {
		w.T.Error(err)
	} else if len(identified) > 0 {
		_, err = w.processes[i].Recover(context.Background())
		w.Must(err)
	}
	// A claim whose record and spec are lost stays unknown while one of its GPUs is.
	maps.DeleteFunc(w.Damaged, func(uid string, _ bool) bool {
		_, err := os.Stat(w.StateDir + "/records/unknown/" + uid + ".json")
		return err != nil
	})
}

// free are the GPUs that no claim is allocated: the scheduler gives out no others.
func (w *randomized) free() []string {
	free := []string{"0", "1", "2", "3"}
	for _, c := range w.Claims {
		for _, r := range c.Status.Allocation.Devices.Results {
			if r.AdminAccess == nil {
				free = slices.DeleteFunc(free, func(n string) bool { return strings.Contains(r.Device, "-1"+n+"-") })
			}
		}
	}
	return free
}

func (w *randomized) prepareSome() string {
	free := w.free()
	w.Rand.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
	gpus := slices.Clone(free[:min(len(free), w.Rand.IntN(3))])
	if len(gpus) == 0 || w.Rand.IntN(4) == 0 {
		gpus = append(gpus, fmt.Sprint("monitor ", w.Rand.IntN(4)))
	}
	uid := w.NewUID()
	if w.Rand.IntN(2) == 0 {
		w.SteppedClaim(uid, gpus...)
	} else {
		w.Claim(uid, gpus...)
	}
	return fmt.Sprint(gpus, " ", w.ask(w.Rand.IntN(2), uid))
}

func (w *randomized) prepareAgain() string {
	if uid := w.AnyClaim(); uid != "" {
		return w.ask(w.Rand.IntN(2), uid)
	}
	return "nothing"
}

// ask is the kubelet's Prepare.
func (w *randomized) ask(i int, uid string) string {
	err := w.TryPrepare(w.processes[i], uid)
	if err == nil {
		return uid + " prepared"
	}
	var reason *claimerror.Error
	if !errors.As(err, &reason) || claimerror.KindOf(err) != claimerror.Transient {
		w.T.Errorf("prepare of %s: %v", uid, err)
	}
	return err.Error()
}

func (w *randomized) unprepareSome() string { return w.UnprepareAny(w.processes[w.Rand.IntN(2)]) }

// faulted works on a claim with a fault armed in one process.
func (w *randomized) faulted(k hosttest.Kind) string {
	i := w.Rand.IntN(2)
	text := w.Strike(w.processes[i], w.faults[i], w.Rand.IntN(14), k)
	w.restart(i)
	return fmt.Sprintf("process %d, %s", i, text)
}

func (w *randomized) crash() string {
	if w.Rand.IntN(2) == 0 {
		return w.faulted(hosttest.CrashBefore)
	}
	return w.faulted(hosttest.CrashAfter)
}

func (w *randomized) failSome() string { return w.faulted(hosttest.Fail) }

func (w *randomized) rebootSome() string {
	keep := w.Rand.IntN(2) == 0
	for i := range w.processes {
		w.processes[i].Crash()
	}
	w.Reboot(keep)
	if w.Rand.IntN(2) == 0 {
		w.Empty(w.StateDir+"/locks", "")
	}
	for i := range w.processes {
		w.restart(i)
	}
	return fmt.Sprint("specs kept ", keep)
}

func (w *randomized) damageSome() string {
	uid := w.Pick(slices.Sorted(maps.Keys(w.Prepared)))
	if uid == "" {
		return "nothing"
	}
	if _, err := os.Stat(w.RecordFile(uid)); err != nil {
		return "nothing"
	}
	if _, err := os.Stat(w.SpecFile(uid)); err != nil && w.Claims[uid].Labels[devicestatetest.Stepped] != "" {
		return "nothing" // Without both the steps are unknown, and Unprepare could not revert them.
	}
	w.Damage(uid)
	if w.Rand.IntN(2) == 0 && w.Claims[uid].Labels[devicestatetest.Stepped] == "" {
		w.Must(errors.Join(ignoreMissing(os.Remove(w.SpecFile(uid)))))
	}
	w.Damaged[uid] = true
	switch w.Rand.IntN(3) {
	case 0:
		w.recover(w.Rand.IntN(2))
	case 1:
		return uid + " " + w.ask(w.Rand.IntN(2), uid)
	}
	return uid
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func (w *randomized) loseSpecs() string {
	w.Empty(w.CDI, devicestatetest.External)
	if len(w.Damaged) > 0 {
		w.recover(0)
	}
	for uid := range w.Claims {
		w.Damaged[uid] = true
	}
	if w.Rand.IntN(2) == 0 {
		w.recover(w.Rand.IntN(2))
	}
	return ""
}

func (w *randomized) loseGPU() string {
	if len(w.Snapshot.GPUs) < 4 {
		return "nothing"
	}
	i := w.Rand.IntN(4)
	w.Snapshot.GPUs = slices.Delete(slices.Clone(w.Snapshot.GPUs), i, i+1)
	return fmt.Sprint(i)
}

func (w *randomized) returnGPU() string {
	w.Snapshot.GPUs = devicestatetest.Attach(w.T, w.Dir).Snapshot.GPUs
	return ""
}

func (w *randomized) releaseAll() string {
	w.returnGPU()
	w.UnprepareAll(w.processes[0])
	clear(w.Damaged)
	w.recover(1)
	w.Empty(w.StateDir+"/records/quarantine", "")
	w.CheckClean(w.processes[0])
	return ""
}

// invariants hold after every step.
func (w *randomized) invariants() {
	p := w.processes[0]
	owner := map[string]string{}
	plans, _, err := p.Held()
	w.Must(err)
	held := map[string]bool{}
	for _, plan := range plans {
		held[plan.Claim.UID] = true
		if w.Claims[plan.Claim.UID] == nil {
			w.T.Errorf("claim %s is gone and has a record", plan.Claim.UID)
		}
		for _, a := range plan.HeldGPUs() {
			if owner[a] != "" {
				w.T.Errorf("GPU %s has owners %s and %s", a, owner[a], plan.Claim.UID)
			}
			owner[a] = plan.Claim.UID
		}
	}
	for uid, boot := range w.Prepared {
		if w.Damaged[uid] {
			continue
		}
		if !held[uid] {
			w.T.Errorf("claim %s was answered and has no record", uid)
		}
		if boot == w.Boots {
			if _, err := os.Stat(w.SpecFile(uid)); err != nil {
				w.T.Errorf("claim %s was answered and: %v", uid, err)
			}
		}
	}
	if text, err := os.ReadFile(w.CDI + "/" + devicestatetest.External); err != nil || string(text) != devicestatetest.ExternalText {
		w.T.Errorf("another driver's spec: %q, %v", text, err)
	}
	if len(w.Damaged) == 0 {
		if err := p.Check(); err != nil {
			w.T.Error("check: ", err)
		}
	}
}
