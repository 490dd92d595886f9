// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig_test

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"testing"

	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/engine"
)

var randomSteps = flag.Int("random.steps", 10_000, "steps of the randomized test")

// randomGPUs is how many GPUs the randomized test uses: few, so that claims often meet.
const randomGPUs = 3

// randomized is a simulated machine. Prepared leaves out the claims whose partitions an administrator destroyed.
type randomized struct {
	*devicestatetest.Random
	p *process
	f *hosttest.Faults
}

// TestExecutor_RandomMoves_KeepsInvariants does at random what happens to a node with MIG. After each step no slice has
// two owners, each prepared claim has its partitions, each partition has an owner, and external ones are untouched. Now
// and then all claims are released, and then nothing may be left.
func TestExecutor_RandomMoves_KeepsInvariants(t *testing.T) {
	w := &randomized{Random: devicestatetest.NewRandom(devicestatetest.NewSimulated(t, "hgx-h100"))}
	w.restart()
	w.Run(seedtest.Count(*randomSteps), []devicestatetest.Move{
		{30, "prepare", w.prepareSome}, {8, "prepare again", w.prepareAgain}, {22, "unprepare", w.unprepareSome},
		{14, "crash or fail", w.faulted}, {2, "reboot", w.rebootSome}, {4, "make an external partition", w.makeExternal},
		{5, "destroy an external partition", w.destroyExternal}, {3, "a partition vanishes", w.vanish}, {2, "damage a record", w.damageSome},
		{2, "lose a GPU", w.lose}, {3, "bring GPUs back", w.back}, {3, "restore idle modes", w.restore}, {1, "release all", w.releaseAll},
	}, w.invariants)
	if !t.Failed() {
		w.releaseAll()
	}
}

func (w *randomized) restart() {
	w.p.Crash()
	w.f = hosttest.Trace()
	p, err := w.StartWith(w.f.Do)
	w.Must(err)
	w.p = p
	_ = p.RecoverAll() // A lost GPU or a missing partition is left to Prepare and Unprepare.
}

// taken says what the scheduler has given out on a GPU, and what is published as external there.
func (w *randomized) taken(n int) (out []gpu.Placement) {
	g := w.Sim.State().GPUs[n]
	for _, c := range w.Claims {
		for _, r := range c.Status.Allocation.Devices.Results {
			d, err := gpu.ParseName(r.Device)
			w.Must(err)
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
			if w.Sim.External[c.UUID] {
				out = append(out, gpu.Placement{Start: i.Start, Size: i.Size})
			}
		}
	}
	return out
}

var size = map[string]int{"1g.10gb": 1, "2g.20gb": 2, "3g.40gb": 4}

// free finds a device that overlaps nothing that is given out; empty if chance finds none.
func (w *randomized) free() string {
	n := w.Rand.IntN(randomGPUs)
	device, at := fmt.Sprint(n), gpu.Placement{Size: 8}
	switch w.Rand.IntN(5) {
	case 0:
		if w.Sim.ExternalModes[w.Address(n)] {
			return "" // Not published.
		}
	case 1:
		at = gpu.Placement{Start: 4 * w.Rand.IntN(2), Size: 4}
		device = fmt.Sprintf("%d 3g.40gb %d", n, at.Start)
	case 2:
		at = gpu.Placement{Start: 2 * w.Rand.IntN(3), Size: 2}
		device = fmt.Sprintf("%d 2g.20gb %d", n, at.Start)
	default:
		at = gpu.Placement{Start: w.Rand.IntN(7), Size: 1}
		device = fmt.Sprintf("%d 1g.10gb %d", n, at.Start)
	}
	if slices.ContainsFunc(w.taken(n), at.Overlaps) {
		return ""
	}
	return device
}

func (w *randomized) prepareSome() string {
	device := w.free()
	if device == "" {
		return "nothing is free"
	}
	uid := w.NewUID()
	w.Claim(uid, device)
	if w.Rand.IntN(4) == 0 {
		if other := w.free(); other != "" {
			w.Claim(uid, device, other) // Perhaps of the same GPU, perhaps overlapping: then Prepare refuses it.
		}
	}
	return uid + " " + device + ": " + w.ask(uid)
}

func (w *randomized) prepareAgain() string {
	if uid := w.AnyClaim(); uid != "" {
		return uid + ": " + w.ask(uid)
	}
	return "nothing"
}

// ask is the kubelet's Prepare.
func (w *randomized) ask(uid string) string {
	err := w.TryPrepare(w.p, uid)
	if err == nil {
		return "prepared"
	}
	var said *claimerror.Error
	if !errors.As(err, &said) {
		w.T.Errorf("prepare of %s: %v", uid, err)
	}
	if said != nil && claimerror.KindOf(err) == claimerror.Permanent {
		delete(w.Claims, uid) // The scheduler never makes such an allocation.
	}
	return err.Error()
}

func (w *randomized) unprepareSome() string { return w.UnprepareAny(w.p) }

// faulted works on a claim with a fault armed.
func (w *randomized) faulted() string {
	text := w.Strike(w.p, w.f, w.Rand.IntN(24), kinds[w.Rand.IntN(len(kinds))])
	w.restart()
	return text
}

func (w *randomized) rebootSome() string {
	w.p.Crash()
	clear(w.Prepared)
	w.Reboot(false)
	w.restart()
	return ""
}

func (w *randomized) makeExternal() string {
	n := w.Rand.IntN(randomGPUs)
	g := w.Sim.State().GPUs[n]
	start := w.Rand.IntN(7)
	if g.Lost || slices.ContainsFunc(w.taken(n), gpu.Placement{Start: start, Size: 1}.Overlaps) ||
		slices.ContainsFunc(g.Instances, func(i engine.Instance) bool { return start >= i.Start && start < i.Start+i.Size }) {
		return "nothing"
	}
	switched, err := w.p.MIG.Switched()
	w.Must(err)
	w.Sim.Administrator(n, 19, start, false)
	// After a reboot a record claims the mode until a round of Settings, which this machine does not run, finds it off.
	w.Sim.ExternalModes[g.Address] = w.Sim.ExternalModes[g.Address] && !switched[g.Address]
	return fmt.Sprintf("%d at %d", n, start)
}

func (w *randomized) destroyExternal() string {
	told := "nothing"
	w.Sim.Change(func(s *engine.State) {
		g := &s.GPUs[w.Rand.IntN(randomGPUs)]
		for _, i := range g.Instances {
			if len(i.Computes) == 1 && w.Sim.External[i.Computes[0].UUID] {
				delete(w.Sim.External, i.Computes[0].UUID)
				s.Vanish(g, i.Start)
				told = fmt.Sprintf("%s at %d", g.Address, i.Start)
				w.unanswer(g.Address)
				return
			}
		}
	})
	return told
}

// unanswer forgets the answers on a GPU after an administrator removed partitions.
func (w *randomized) unanswer(address string) {
	for uid, c := range w.Claims {
		for _, r := range c.Status.Allocation.Devices.Results {
			if d, err := gpu.ParseName(r.Device); err == nil && d.PCIAddress == address {
				delete(w.Prepared, uid)
			}
		}
	}
}

func (w *randomized) vanish() string {
	n := w.Rand.IntN(randomGPUs)
	w.Sim.Change(func(s *engine.State) {
		g := &s.GPUs[n]
		for _, i := range append([]engine.Instance(nil), g.Instances...) {
			if len(i.Computes) == 1 && !w.Sim.External[i.Computes[0].UUID] {
				s.Vanish(g, i.Start)
			}
		}
	})
	w.unanswer(w.Address(n))
	return fmt.Sprint(n)
}

func (w *randomized) damageSome() string {
	uids := slices.Sorted(maps.Keys(w.Prepared))
	if len(uids) == 0 {
		return "nothing"
	}
	uid := uids[w.Rand.IntN(len(uids))]
	w.Damage(uid)
	return uid + ": " + w.ask(uid)
}

// lose makes a GPU fall off: what was on it is gone.
func (w *randomized) lose() string {
	n := w.Rand.IntN(randomGPUs)
	w.Sim.Change(func(s *engine.State) {
		g := &s.GPUs[n]
		for _, i := range g.Instances {
			for _, c := range i.Computes {
				delete(w.Sim.External, c.UUID)
			}
		}
		g.Lost, g.Instances = true, nil
	})
	w.unanswer(w.Address(n))
	return fmt.Sprint(n)
}

func (w *randomized) back() string {
	w.Sim.Change(func(s *engine.State) {
		for i := range s.GPUs {
			s.GPUs[i].Lost = false
		}
	})
	return ""
}

func (w *randomized) restore() string {
	g := w.Sim.GPU(w.Rand.IntN(randomGPUs))
	return fmt.Sprint(g.PCIAddress, restoreIdle(w.p, g))
}

func (w *randomized) releaseAll() string {
	w.back()
	w.UnprepareAll(w.p)
	w.CheckClean(w.p)
	return ""
}

// invariants hold after every step.
func (w *randomized) invariants() {
	plans, _, err := w.p.Held()
	w.Must(err)
	records, slots := map[string]plan.Plan{}, map[string]string{}
	for _, p := range plans {
		records[p.Claim.UID] = p
		for _, d := range p.Devices {
			slots[fmt.Sprintf("%s %d %s", d.PCIAddress, d.Partition.Start, d.Partition.Profile)] = p.Claim.UID
		}
		for _, o := range plans {
			for _, address := range p.HeldGPUs() {
				if d, both := p.Conflict(o, address); both && o.Claim.UID != p.Claim.UID {
					w.T.Errorf("%s is held by %s and %s", d.Name, p.Claim.UID, o.Claim.UID)
				}
			}
		}
	}
	external, there := maps.Clone(w.Sim.External), map[string]string{}
	state := w.Sim.State()
	for _, g := range state.GPUs {
		for _, i := range g.Instances {
			p, _ := state.Profile.Board.MIG.Profile(i.ProfileID)
			at := fmt.Sprintf("%s %d %s", g.Address, i.Start, p.Name)
			for _, c := range i.Computes {
				there[at] = c.UUID
				if external[c.UUID] {
					delete(external, c.UUID)
					at = ""
				}
			}
			if at != "" && slots[at] == "" {
				w.T.Errorf("%s is there and no record has it: leaked", at)
			}
		}
	}
	for uuid := range external {
		w.T.Errorf("the external partition %s was taken away", uuid)
	}
	for uid := range w.Prepared {
		p, ok := records[uid]
		if !ok {
			w.T.Errorf("claim %s was answered and has no record", uid)
		}
		for _, d := range p.Devices {
			if at := fmt.Sprintf("%s %d %s", d.PCIAddress, d.Partition.Start, d.Partition.Profile); d.Kind == gpu.KindMIG && there[at] != d.Partition.UUID {
				w.T.Errorf("claim %s was answered %s, and %q is there", uid, d.Partition.UUID, there[at])
			}
			if g := state.GPUs[slices.IndexFunc(state.GPUs, func(g engine.GPU) bool { return g.Address == d.PCIAddress })]; d.Kind == gpu.KindGPU && g.MIGEnabled && !w.Sim.ExternalModes[g.Address] {
				w.T.Errorf("claim %s was answered the whole of %s, which is cut", uid, d.PCIAddress)
			}
		}
	}
}
