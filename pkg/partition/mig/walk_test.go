// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/sim/engine"
)

var (
	walkSteps = flag.Int("walk.steps", 10_000, "steps of the random walk")
	walkSeed  = flag.Uint64("walk.seed", 1, "seed of the random walk")
)

// walkGPUs is how many GPUs the walk uses: few, so that much meets on each.
const walkGPUs = 3

// walker is a rig and what the kubelet was told.
type walker struct {
	*rig
	random *rand.Rand
	p      process
	f      *hosttest.Faults
	// answered are the claims whose Prepare was answered in this boot, and whose partitions nobody took away since.
	answered map[string]bool
	next     int
	history  []string
}

// TestRandomWalk does at random what happens to a node whose GPUs are cut, and after each step asks that no slice has two
// owners, that what was answered is there, that what is there has an owner, and that nothing foreign was touched. Every
// so often all is released, and then nothing may be left.
func TestRandomWalk(t *testing.T) {
	w := &walker{rig: newRig(t, "hgx-h100"), random: rand.New(rand.NewPCG(*walkSeed, 0)), answered: map[string]bool{}}
	w.restart()
	defer func() {
		if t.Failed() {
			t.Logf("seed %d, the last steps:\n  %s", *walkSeed, strings.Join(w.history[max(0, len(w.history)-25):], "\n  "))
		}
	}()
	moves := []struct {
		weight int
		name   string
		do     func() string
	}{
		{30, "prepare", w.prepareSome}, {8, "prepare again", w.prepareAgain}, {22, "unprepare", w.unprepareSome},
		{14, "crash or fail", w.faulted}, {2, "reboot", w.rebootSome}, {4, "make a foreign partition", w.makeForeign},
		{5, "take a foreign partition away", w.takeForeign}, {3, "a partition vanishes", w.vanish}, {2, "damage a record", w.damageSome},
		{2, "lose a GPU", w.lose}, {3, "bring GPUs back", w.back}, {3, "put unused modes back", w.restore}, {1, "release all", w.releaseAll},
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
				w.history = append(w.history, m.name+" "+m.do())
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

func (w *walker) restart() {
	if w.p.host != nil {
		w.p.host.Close()
	}
	w.f = hosttest.Trace()
	p, err := w.start(w.f)
	w.must(err)
	w.p = p
	_ = p.recover() // What it cannot mend, a lost GPU or a partition that is gone, is for Prepare and Unprepare.
}

func (w *walker) some() string {
	uids := slices.Sorted(maps.Keys(w.claims))
	if len(uids) == 0 {
		return ""
	}
	return uids[w.random.IntN(len(uids))]
}

// taken says what the scheduler has given out on a GPU, and what is published as foreign there.
func (w *walker) taken(n int) (out []gpu.Placement) {
	g := w.state().GPUs[n]
	for _, c := range w.claims {
		for _, r := range c.Status.Allocation.Devices.Results {
			d, err := gpu.ParseName(r.Device)
			w.must(err)
			switch {
			case d.PCIAddress != g.Address:
			case d.Kind == gpu.KindGPU:
				out = append(out, gpu.Placement{Size: 8})
			default:
				out = append(out, gpu.Placement{Start: d.Start, Size: size[d.Profile]})
			}
		}
	}
	for _, i := range g.Instances {
		for _, c := range i.Computes {
			if w.foreign[c.UUID] {
				out = append(out, gpu.Placement{Start: i.Start, Size: i.Size})
			}
		}
	}
	return out
}

var size = map[string]int{"1g.10gb": 1, "2g.20gb": 2, "3g.40gb": 4}

// free finds a device that overlaps nothing that is given out; empty if chance finds none.
func (w *walker) free() string {
	n := w.random.IntN(walkGPUs)
	device, at := fmt.Sprint(n), gpu.Placement{Size: 8}
	switch w.random.IntN(5) {
	case 0:
		if w.foreignModes[w.address(n)] {
			return "" // Not published.
		}
	case 1:
		at = gpu.Placement{Start: 4 * w.random.IntN(2), Size: 4}
		device = fmt.Sprintf("%d 3g.40gb %d", n, at.Start)
	case 2:
		at = gpu.Placement{Start: 2 * w.random.IntN(3), Size: 2}
		device = fmt.Sprintf("%d 2g.20gb %d", n, at.Start)
	default:
		at = gpu.Placement{Start: w.random.IntN(7), Size: 1}
		device = fmt.Sprintf("%d 1g.10gb %d", n, at.Start)
	}
	if slices.ContainsFunc(w.taken(n), at.Overlaps) {
		return ""
	}
	return device
}

func (w *walker) prepareSome() string {
	device := w.free()
	if device == "" {
		return "nothing is free"
	}
	uid := fmt.Sprintf("c%d", w.next)
	w.next++
	w.claim(uid, device)
	if w.random.IntN(4) == 0 {
		if other := w.free(); other != "" {
			w.claim(uid, device, other) // Perhaps of the same GPU, perhaps overlapping: then Prepare refuses it.
		}
	}
	return uid + " " + device + ": " + w.ask(uid)
}

func (w *walker) prepareAgain() string {
	if uid := w.some(); uid != "" {
		return uid + ": " + w.ask(uid)
	}
	return "nothing"
}

// ask is the kubelet's Prepare.
func (w *walker) ask(uid string) string {
	_, err := w.p.Prepare(context.Background(), w.claims[uid])
	if err == nil {
		w.answered[uid] = true
		return "prepared"
	}
	var said *claimerror.Error
	if !errors.As(err, &said) {
		w.t.Errorf("prepare of %s: %v", uid, err)
	}
	if said != nil && claimerror.KindOf(err) == claimerror.Permanent {
		delete(w.claims, uid) // The scheduler never makes such an allocation.
	}
	return err.Error()
}

func (w *walker) unprepareSome() string {
	uid := w.some()
	if uid == "" {
		return "nothing"
	}
	delete(w.answered, uid)
	if err := w.p.Unprepare(context.Background(), claimOf(uid)); err != nil {
		w.t.Errorf("unprepare of %s: %v", uid, err)
	}
	delete(w.claims, uid)
	return uid
}

// faulted does something to a claim with a fault armed.
func (w *walker) faulted() string {
	at, kind := w.random.IntN(24), kinds[w.random.IntN(len(kinds))]
	w.f.ArmAt(at, kind)
	uid := w.some()
	died, err := hosttest.Run(func() error {
		switch {
		case uid == "" || w.random.IntN(3) == 0:
			return w.p.recover()
		case w.random.IntN(2) == 0:
			_, err := w.p.Prepare(context.Background(), w.claims[uid])
			if err == nil {
				w.answered[uid] = true
			}
			return err
		default:
			delete(w.answered, uid)
			err := w.p.Unprepare(context.Background(), claimOf(uid))
			if err == nil {
				delete(w.claims, uid)
			}
			return err
		}
	})
	text := fmt.Sprintf("%s operation %d of %s: died %v, %v", kind, at, uid, died, err)
	w.restart()
	return text
}

func (w *walker) rebootSome() string {
	w.p.host.Close()
	clear(w.answered)
	w.reboot()
	w.restart()
	return ""
}

func (w *walker) makeForeign() string {
	n := w.random.IntN(walkGPUs)
	g := w.state().GPUs[n]
	start := w.random.IntN(7)
	if g.Lost || slices.ContainsFunc(w.taken(n), gpu.Placement{Start: start, Size: 1}.Overlaps) ||
		slices.ContainsFunc(g.Instances, func(i engine.Instance) bool { return start >= i.Start && start < i.Start+i.Size }) {
		return "nothing"
	}
	w.administrator(n, 19, start, false)
	return fmt.Sprintf("%d at %d", n, start)
}

func (w *walker) takeForeign() string {
	told := "nothing"
	w.change(func(s *engine.State) {
		g := &s.GPUs[w.random.IntN(walkGPUs)]
		for _, i := range g.Instances {
			if len(i.Computes) == 1 && w.foreign[i.Computes[0].UUID] {
				delete(w.foreign, i.Computes[0].UUID)
				s.Vanish(g, i.Start)
				told = fmt.Sprintf("%s at %d", g.Address, i.Start)
				w.unanswer(g.Address)
				return
			}
		}
	})
	return told
}

// unanswer forgets what was answered on a GPU: somebody took partitions of it away.
func (w *walker) unanswer(address string) {
	for uid, c := range w.claims {
		for _, r := range c.Status.Allocation.Devices.Results {
			if d, err := gpu.ParseName(r.Device); err == nil && d.PCIAddress == address {
				delete(w.answered, uid)
			}
		}
	}
}

func (w *walker) vanish() string {
	n := w.random.IntN(walkGPUs)
	w.change(func(s *engine.State) {
		g := &s.GPUs[n]
		for _, i := range append([]engine.Instance(nil), g.Instances...) {
			if len(i.Computes) == 1 && !w.foreign[i.Computes[0].UUID] {
				s.Vanish(g, i.Start)
			}
		}
	})
	w.unanswer(w.address(n))
	return fmt.Sprint(n)
}

func (w *walker) damageSome() string {
	uids := slices.Sorted(maps.Keys(w.answered))
	if len(uids) == 0 {
		return "nothing"
	}
	uid := uids[w.random.IntN(len(uids))]
	w.damage(uid)
	return uid + ": " + w.ask(uid)
}

// lose makes a GPU fall off: what was on it is gone.
func (w *walker) lose() string {
	n := w.random.IntN(walkGPUs)
	w.change(func(s *engine.State) {
		g := &s.GPUs[n]
		for _, i := range g.Instances {
			for _, c := range i.Computes {
				delete(w.foreign, c.UUID)
			}
		}
		g.Lost, g.Instances = true, nil
	})
	w.unanswer(w.address(n))
	return fmt.Sprint(n)
}

func (w *walker) back() string {
	w.change(func(s *engine.State) {
		for i := range s.GPUs {
			s.GPUs[i].Lost = false
		}
	})
	return ""
}

func (w *walker) restore() string {
	g := w.state().GPUs[w.random.IntN(walkGPUs)]
	did, err := w.p.Unheld(context.Background(), g.Address, func() error { return w.p.mig.Restore(context.Background(), whole(g)) })
	return fmt.Sprint(g.Address, did, err)
}

func (w *walker) releaseAll() string {
	w.back()
	for _, uid := range slices.Sorted(maps.Keys(w.claims)) {
		delete(w.answered, uid)
		w.must(w.p.Unprepare(context.Background(), claimOf(uid)))
		delete(w.claims, uid)
	}
	w.clean(w.p)
	return ""
}

// invariants hold after every step.
func (w *walker) invariants() {
	plans, _, err := w.p.Held()
	w.must(err)
	records, slots := map[string]plan.Plan{}, map[string]string{}
	for _, p := range plans {
		records[p.Claim.UID] = p
		for _, d := range p.Devices {
			slots[fmt.Sprintf("%s %d %s", d.PCIAddress, d.Partition.Start, d.Partition.Profile)] = p.Claim.UID
		}
		for _, o := range plans {
			for _, address := range p.Exclusive() {
				if d, both := p.Conflict(o, address); both && o.Claim.UID != p.Claim.UID {
					w.t.Errorf("%s is held by %s and %s", d.Name, p.Claim.UID, o.Claim.UID)
				}
			}
		}
	}
	foreign, there := maps.Clone(w.foreign), map[string]string{}
	state := w.state()
	for _, g := range state.GPUs {
		for _, i := range g.Instances {
			p, _ := state.Profile.Board.MIG.Profile(i.ProfileID)
			at := fmt.Sprintf("%s %d %s", g.Address, i.Start, p.Name)
			for _, c := range i.Computes {
				there[at] = c.UUID
				if foreign[c.UUID] {
					delete(foreign, c.UUID)
					at = ""
				}
			}
			if at != "" && slots[at] == "" {
				w.t.Errorf("%s is there and no record has it: leaked", at)
			}
		}
	}
	for uuid := range foreign {
		w.t.Errorf("the foreign partition %s was taken away", uuid)
	}
	for uid := range w.answered {
		p, ok := records[uid]
		if !ok {
			w.t.Errorf("claim %s was answered and has no record", uid)
		}
		for _, d := range p.Devices {
			if at := fmt.Sprintf("%s %d %s", d.PCIAddress, d.Partition.Start, d.Partition.Profile); d.Kind == gpu.KindMIG && there[at] != d.Partition.UUID {
				w.t.Errorf("claim %s was answered %s, and %q is there", uid, d.Partition.UUID, there[at])
			}
			if g := state.GPUs[slices.IndexFunc(state.GPUs, func(g engine.GPU) bool { return g.Address == d.PCIAddress })]; d.Kind == gpu.KindGPU && g.MIGEnabled && !w.foreignModes[g.Address] {
				w.t.Errorf("claim %s was answered the whole of %s, which is cut", uid, d.PCIAddress)
			}
		}
	}
}
