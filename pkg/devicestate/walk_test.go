// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/pkg/claimerror"
)

var (
	walkSteps = flag.Int("walk.steps", 2000, "steps of the random walk")
	walkSeed  = flag.Uint64("walk.seed", 1, "seed of the random walk")
)

// walker is a machine with two plugin processes side by side, and what the kubelet was told.
type walker struct {
	*world
	random    *rand.Rand
	processes [2]process
	faults    [2]*hosttest.Faults
	// answered are the claims whose last Prepare was answered and whose Unprepare was not begun since, with the boot.
	answered map[string]int
	// damaged are the answered claims whose record or spec was spoiled since.
	damaged map[string]bool
	next    int
	history []string
}

// TestRandomWalk does at random what happens to a node, and after each step asks that no GPU has two owners and that
// what the kubelet was told is there. Every so often all is released, and then nothing may be left.
func TestRandomWalk(t *testing.T) {
	w := &walker{world: newWorld(t), random: rand.New(rand.NewPCG(*walkSeed, 0)), answered: map[string]int{}, damaged: map[string]bool{}}
	for i := range w.processes {
		w.restart(i)
	}
	defer func() {
		if t.Failed() {
			t.Logf("seed %d, the last steps:\n  %s", *walkSeed, strings.Join(w.history[max(0, len(w.history)-30):], "\n  "))
		}
	}()
	moves := []struct {
		weight int
		name   string
		do     func() string
	}{
		{30, "prepare", w.prepareSome}, {15, "prepare again", w.prepareAgain}, {20, "unprepare", w.unprepareSome},
		{12, "crash", w.crash}, {3, "restart", func() string { w.restart(w.random.IntN(2)); return "" }}, {2, "reboot", w.rebootSome},
		{3, "damage a record", w.damageSome}, {2, "lose the CDI directory", w.loseSpecs}, {2, "lose a GPU", w.loseGPU},
		{4, "bring a GPU back", w.returnGPU}, {3, "fail an effect", w.failSome}, {1, "release all", w.releaseAll},
	}
	counts, total := map[string]int{}, 0
	for _, m := range moves {
		total += m.weight
	}
	for range *walkSteps {
		n := w.random.IntN(total)
		for _, m := range moves {
			if n -= m.weight; n < 0 {
				counts[m.name]++
				said := m.do()
				w.history = append(w.history, m.name+" "+said)
				break
			}
		}
		w.invariants()
		if t.Failed() {
			return
		}
	}
	w.releaseAll()
	for _, m := range moves {
		if counts[m.name] == 0 && *walkSteps >= 1000 {
			t.Errorf("never: %s", m.name)
		}
	}
	t.Logf("%d steps: %v", *walkSteps, counts)
}

func (w *walker) restart(i int) {
	if w.processes[i].host != nil {
		w.processes[i].host.Close()
	}
	w.faults[i] = hosttest.Trace()
	p, err := w.start(w.faults[i].Do)
	w.must(err)
	w.processes[i] = p
	w.recover(i)
}

func (w *walker) recover(i int) {
	findings, err := w.processes[i].Recover(context.Background())
	w.must(err)
	for _, f := range findings {
		if f.Err != nil {
			w.t.Errorf("recover: %+v", f)
		}
	}
	if identified, err := w.processes[i].Identify(context.Background(), &server{w: w.world}); err != nil {
		w.t.Error(err)
	} else if len(identified) > 0 {
		_, err = w.processes[i].Recover(context.Background())
		w.must(err)
	}
	// A claim whose record and spec are lost stays unknown while one of its GPUs is.
	maps.DeleteFunc(w.damaged, func(uid string, _ bool) bool {
		_, err := os.Stat(w.state + "/records/unknown/" + uid + ".json")
		return err != nil
	})
}

func (w *walker) pick(uids []string) string {
	if len(uids) == 0 {
		return ""
	}
	return uids[w.random.IntN(len(uids))]
}

func (w *walker) some() string { return w.pick(slices.Sorted(maps.Keys(w.claims))) }

// free are the GPUs that no claim is allocated: the scheduler gives out no others.
func (w *walker) free() []int {
	free := []int{0, 1, 2, 3}
	for _, c := range w.claims {
		for _, r := range c.Status.Allocation.Devices.Results {
			if r.AdminAccess == nil {
				free = slices.DeleteFunc(free, func(n int) bool { return strings.Contains(r.Device, fmt.Sprintf("-%02x-", 0x10+n)) })
			}
		}
	}
	return free
}

func (w *walker) prepareSome() string {
	free := w.free()
	w.random.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
	gpus := slices.Clone(free[:min(len(free), w.random.IntN(3))])
	if len(gpus) == 0 || w.random.IntN(4) == 0 {
		gpus = append(gpus, -1-w.random.IntN(4))
	}
	uid := fmt.Sprintf("c%d", w.next)
	w.next++
	if w.random.IntN(2) == 0 {
		w.steppedClaim(uid, gpus...)
	} else {
		w.claim(uid, gpus...)
	}
	return fmt.Sprint(gpus, " ", w.ask(w.random.IntN(2), uid))
}

func (w *walker) prepareAgain() string {
	if uid := w.some(); uid != "" {
		return w.ask(w.random.IntN(2), uid)
	}
	return "nothing"
}

// ask is the kubelet's Prepare.
func (w *walker) ask(i int, uid string) string {
	devices, err := w.processes[i].Prepare(context.Background(), w.claims[uid])
	if err == nil {
		if len(devices) != len(w.claims[uid].Status.Allocation.Devices.Results) {
			w.t.Errorf("%s: devices %+v", uid, devices)
		}
		w.answered[uid] = w.boots
		delete(w.damaged, uid)
		return uid + " prepared"
	}
	var said *claimerror.Error
	if !errors.As(err, &said) || claimerror.KindOf(err) != claimerror.Transient {
		w.t.Errorf("prepare of %s: %v", uid, err)
	}
	return err.Error()
}

func (w *walker) unprepareSome() string {
	uid := w.some()
	if uid == "" {
		return "nothing"
	}
	i := w.random.IntN(2)
	delete(w.answered, uid)
	if err := w.processes[i].Unprepare(context.Background(), claimOf(uid)); err != nil {
		w.t.Errorf("unprepare of %s: %v", uid, err)
	}
	delete(w.claims, uid)
	delete(w.damaged, uid)
	return uid
}

// faulted does something to a claim with a fault armed in one process.
func (w *walker) faulted(k hosttest.Kind) string {
	i := w.random.IntN(2)
	at := w.random.IntN(14)
	w.faults[i].ArmAt(at, k)
	uid := w.some()
	died, err := hosttest.Run(func() error {
		switch {
		case uid == "" || w.random.IntN(3) == 0:
			_, err := w.processes[i].Recover(context.Background())
			return err
		case w.random.IntN(2) == 0:
			_, err := w.processes[i].Prepare(context.Background(), w.claims[uid])
			if err == nil {
				w.answered[uid] = w.boots
				delete(w.damaged, uid)
			}
			return err
		default:
			delete(w.answered, uid)
			err := w.processes[i].Unprepare(context.Background(), claimOf(uid))
			if err == nil {
				delete(w.claims, uid)
			}
			return err
		}
	})
	w.faults[i].Disarm()
	w.restart(i)
	return fmt.Sprintf("process %d, %s at effect %d of %s: died %v, %v", i, k, at, uid, died, err)
}

func (w *walker) crash() string {
	if w.random.IntN(2) == 0 {
		return w.faulted(hosttest.CrashBefore)
	}
	return w.faulted(hosttest.CrashAfter)
}

func (w *walker) failSome() string { return w.faulted(hosttest.Fail) }

func (w *walker) rebootSome() string {
	keep := w.random.IntN(2) == 0
	for i := range w.processes {
		w.processes[i].host.Close()
	}
	w.reboot(keep)
	if w.random.IntN(2) == 0 {
		w.empty(w.state+"/locks", "")
	}
	for i := range w.processes {
		w.restart(i)
	}
	return fmt.Sprint("specs kept ", keep)
}

func (w *walker) damageSome() string {
	uid := w.pick(slices.Sorted(maps.Keys(w.answered)))
	if uid == "" {
		return "nothing"
	}
	if _, err := os.Stat(w.recordFile(uid)); err != nil {
		return "nothing"
	}
	if _, err := os.Stat(w.specFile(uid)); err != nil && w.claims[uid].Labels[stepped] != "" {
		return "nothing" // Without both, nobody knows the steps: Unprepare could not revert them.
	}
	w.damage(uid)
	if w.random.IntN(2) == 0 && w.claims[uid].Labels[stepped] == "" {
		w.must(errors.Join(ignoreMissing(os.Remove(w.specFile(uid)))))
	}
	w.damaged[uid] = true
	switch w.random.IntN(3) {
	case 0:
		w.recover(w.random.IntN(2))
	case 1:
		return uid + " " + w.ask(w.random.IntN(2), uid)
	}
	return uid
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func (w *walker) loseSpecs() string {
	w.empty(w.cdi, foreign)
	if len(w.damaged) > 0 {
		w.recover(0)
	}
	for uid := range w.claims {
		w.damaged[uid] = true
	}
	if w.random.IntN(2) == 0 {
		w.recover(w.random.IntN(2))
	}
	return ""
}

func (w *walker) loseGPU() string {
	if len(w.snapshot.GPUs) < 4 {
		return "nothing"
	}
	i := w.random.IntN(4)
	w.snapshot.GPUs = slices.Delete(slices.Clone(w.snapshot.GPUs), i, i+1)
	return fmt.Sprint(i)
}

func (w *walker) returnGPU() string {
	w.snapshot.GPUs = newWorld(w.t).snapshot.GPUs
	return ""
}

func (w *walker) releaseAll() string {
	w.returnGPU()
	for _, uid := range slices.Sorted(maps.Keys(w.claims)) {
		delete(w.answered, uid)
		w.must(w.processes[0].Unprepare(context.Background(), claimOf(uid)))
		delete(w.claims, uid)
	}
	clear(w.damaged)
	w.recover(1)
	w.empty(w.state+"/records/quarantine", "")
	w.clean(w.processes[0])
	return ""
}

// invariants hold after every step.
func (w *walker) invariants() {
	p := w.processes[0]
	owner := map[string]string{}
	plans, _, err := p.Held()
	w.must(err)
	held := map[string]bool{}
	for _, plan := range plans {
		held[plan.Claim.UID] = true
		if w.claims[plan.Claim.UID] == nil {
			w.t.Errorf("claim %s is gone and has a record", plan.Claim.UID)
		}
		for _, a := range plan.Exclusive() {
			if owner[a] != "" {
				w.t.Errorf("GPU %s has owners %s and %s", a, owner[a], plan.Claim.UID)
			}
			owner[a] = plan.Claim.UID
		}
	}
	for uid, boot := range w.answered {
		if w.damaged[uid] {
			continue
		}
		if !held[uid] {
			w.t.Errorf("claim %s was answered and has no record", uid)
		}
		if boot == w.boots {
			if _, err := os.Stat(w.specFile(uid)); err != nil {
				w.t.Errorf("claim %s was answered and: %v", uid, err)
			}
		}
	}
	if text, err := os.ReadFile(w.cdi + "/" + foreign); err != nil || string(text) != foreignText {
		w.t.Errorf("another driver's spec: %q, %v", text, err)
	}
	if len(w.damaged) == 0 {
		if err := p.Check(); err != nil {
			w.t.Error("check: ", err)
		}
	}
}
