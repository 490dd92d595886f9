// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"context"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/pool"
)

// candidate is a set of units of one node whose move may let the goal fit there.
type candidate struct {
	node *node
	// set is sorted by index.
	set  []*unit
	cost cost
}

func newCandidate(n *node, set []*unit) candidate { return candidate{n, set, costOf(set)} }

func (c candidate) key() string {
	var b strings.Builder
	b.WriteString(c.node.Name)
	for _, u := range c.set {
		fmt.Fprintf(&b, " %d", u.index)
	}
	return b.String()
}

// union returns the sorted units of both sets.
func union(a, b []*unit) []*unit {
	out := slices.Concat(a, b)
	slices.SortFunc(out, func(x, y *unit) int { return x.index - y.index })
	return slices.Compact(out)
}

// Bounds of the search on one node.
const (
	// maxSubsetUnits is the largest number of units around one device of which all subsets are tried.
	maxSubsetUnits = 12
	// maxUnions is the number of combinations of devices.
	maxUnions = 4096
)

// choice is a device for a request, with the minimal sets of units that must leave it.
type choice struct {
	sets [][]*unit
	// repeatable means that two devices of a claim can be shares of it.
	repeatable bool
}

// candidates returns sets of units such that each way to make room for the goal contains one: for each choice of
// devices the units that must leave these devices. Requests that do not name a number of devices have the empty set.
func (p *planner) candidates(ctx context.Context, n *node, claims []*resourceapi.ResourceClaim) []candidate {
	none := []candidate{newCandidate(n, nil)}
	type slot struct {
		choices []choice
		count   int64
	}
	var slots []slot
	for _, c := range claims {
		for _, q := range p.Requests(c.Spec.Devices) {
			switch {
			case q.Alternative() || !q.Admin() && q.Devices() == 0:
				return none
			case q.Admin():
				continue
			}
			choices := p.choices(ctx, n, q)
			if len(choices) == 0 {
				return nil
			}
			slots = append(slots, slot{choices, q.Devices()})
		}
	}
	found := map[string]candidate{}
	// choose tries each choice for each device of a request: at is the slot, left its devices to choose, and from its
	// first choice. Choices of one slot only ascend, because their order makes no other set of units.
	var choose func(at int, left int64, from int, set []*unit)
	choose = func(at int, left int64, from int, set []*unit) {
		if len(found) >= maxUnions {
			p.cut = true
			return
		}
		if left == 0 {
			if at++; at < len(slots) {
				choose(at, slots[at].count, 0, set)
				return
			}
			c := newCandidate(n, set)
			found[c.key()] = c
			return
		}
		for i := from; i < len(slots[at].choices); i++ {
			one := slots[at].choices[i]
			next := i + 1
			if one.repeatable {
				next = i
			}
			for _, more := range one.sets {
				choose(at, left-1, next, union(set, more))
			}
		}
	}
	if len(slots) == 0 {
		return none
	}
	choose(0, slots[0].count, 0, nil)
	out := make([]candidate, 0, len(found))
	for _, c := range found {
		out = append(out, c)
	}
	return out
}

// choices returns the devices of a node that match a request once units have left, the cheapest first.
func (p *planner) choices(ctx context.Context, n *node, q ask.Request) (out []choice) {
	if q.Class == nil {
		return nil
	}
	expressions := q.Expressions()
	holders := p.holders(n)
	for i, s := range n.Slices {
		id := pool.ID{Driver: s.Spec.Driver, Pool: s.Spec.Pool.Name}
		for j, d := range s.Spec.Devices {
			failed, err := p.Failing(ctx, expressions, n.Slices[i].Candidate(j))
			if failed != "" || err != nil || len(ask.Untolerated(d, q.Tolerations)) > 0 {
				continue
			}
			if sets := p.leaving(holders[id], id, d, q); len(sets) > 0 {
				out = append(out, choice{sets, ptr.Deref(d.AllowMultipleAllocations, false) && fitsTwice(d, q)})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b choice) int { return costOf(a.sets[0]).compare(costOf(b.sets[0])) })
	return out
}

// holding is a device or share that a unit has.
type holding struct {
	unit   *unit
	result *resourceapi.DeviceRequestAllocationResult
}

// holders returns the units with devices of a node's pools, by pool and device.
func (p *planner) holders(n *node) map[pool.ID]map[string][]holding {
	out := map[pool.ID]map[string][]holding{}
	for _, u := range n.units {
		for _, c := range u.claims {
			for id, r := range pool.Held(c.Status.Allocation) {
				if out[id] == nil {
					out[id] = map[string][]holding{}
				}
				out[id][r.Device] = append(out[id][r.Device], holding{u, r})
			}
		}
	}
	return out
}

// leaving returns the minimal sets of units without which a request could get a device. It looks at one device only;
// the allocator decides about all.
func (p *planner) leaving(held map[string][]holding, id pool.ID, d resourceapi.Device, q ask.Request) [][]*unit {
	near := map[string][]holding{}
	var units []*unit
	for name, all := range held {
		if name != d.Name && !shareCounters(p.devices[id][name], d) {
			continue
		}
		near[name] = all
		for _, h := range all {
			if h.unit.fixed == "" && !slices.Contains(units, h.unit) {
				units = append(units, h.unit)
			}
		}
	}
	total := p.counters[id]
	fits := func(gone []*unit) bool { return couldGet(near, total, p.devices[id], d, q, gone) }
	if fits(nil) {
		return [][]*unit{nil}
	}
	slices.SortFunc(units, func(a, b *unit) int { return a.index - b.index })
	if len(units) == 0 || !fits(units) {
		return nil
	}
	// Units without which no set suffices are in each of the sets.
	var needed, others []*unit
	for _, u := range units {
		if fits(slices.DeleteFunc(slices.Clone(units), func(o *unit) bool { return o == u })) {
			others = append(others, u)
		} else {
			needed = append(needed, u)
		}
	}
	if fits(needed) {
		return [][]*unit{needed}
	}
	if len(others) > maxSubsetUnits {
		p.cut = true
		return [][]*unit{units}
	}
	var minimal []uint
	var out [][]*unit
	for size := 1; size <= len(others); size++ {
		for mask := uint(1); mask < 1<<len(others); mask++ {
			if bits.OnesCount(mask) != size || slices.ContainsFunc(minimal, func(m uint) bool { return m&mask == m }) {
				continue
			}
			gone := slices.Clone(needed)
			for i, u := range others {
				if mask&(1<<i) != 0 {
					gone = append(gone, u)
				}
			}
			if fits(gone) {
				minimal, out = append(minimal, mask), append(out, union(gone, nil))
			}
		}
	}
	slices.SortStableFunc(out, func(a, b []*unit) int { return costOf(a).compare(costOf(b)) })
	return out
}

// shareCounters reports whether two devices consume a counter in common.
func shareCounters(a, b resourceapi.Device) bool {
	for _, x := range a.ConsumesCounters {
		for _, y := range b.ConsumesCounters {
			if x.CounterSet != y.CounterSet {
				continue
			}
			for name := range x.Counters {
				if _, both := y.Counters[name]; both {
					return true
				}
			}
		}
	}
	return false
}

// couldGet reports whether a request could get a device beside the holders near it that are not gone.
func couldGet(
	near map[string][]holding, total pool.Counters, devices map[string]resourceapi.Device, d resourceapi.Device,
	q ask.Request, gone []*unit,
) bool {
	stays := func(h holding) bool { return !slices.Contains(gone, h.unit) }
	shared, used := ptr.Deref(d.AllowMultipleAllocations, false), false
	for _, h := range near[d.Name] {
		if !stays(h) {
			continue
		}
		if used = true; !shared || h.result.ShareID == nil {
			return false
		}
	}
	for name, c := range d.Capacity {
		if !shared {
			break
		}
		left := c.Value.DeepCopy()
		for _, h := range near[d.Name] {
			if taken, ok := h.result.ConsumedCapacity[name]; ok && stays(h) {
				left.Sub(taken)
			}
		}
		if left.Cmp(ask.Needed(q, name, c)) < 0 {
			return false
		}
	}
	if used {
		return true // Its counters are taken already.
	}
	for _, use := range d.ConsumesCounters {
		for counter, need := range use.Counters {
			value, published := total[use.CounterSet][counter]
			if !published {
				return false
			}
			left := value.DeepCopy()
			left.Sub(need.Value)
			for name, all := range near {
				if slices.ContainsFunc(all, stays) {
					take(&left, devices[name], use.CounterSet, counter)
				}
			}
			if left.Sign() < 0 {
				return false
			}
		}
	}
	return true
}

// take takes what a device consumes of a counter.
func take(left *resource.Quantity, d resourceapi.Device, set, counter string) {
	for _, use := range d.ConsumesCounters {
		if consumed, ok := use.Counters[counter]; ok && use.CounterSet == set {
			left.Sub(consumed.Value)
		}
	}
}

// fitsTwice reports whether two requests fit on a shared device beside each other.
func fitsTwice(d resourceapi.Device, q ask.Request) bool {
	for name, c := range d.Capacity {
		need := ask.Needed(q, name, c)
		need.Add(need)
		if c.Value.Cmp(need) < 0 {
			return false
		}
	}
	return true
}
