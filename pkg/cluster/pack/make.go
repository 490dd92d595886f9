// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/why"
)

// Bounds of the search for a goal.
const (
	// maxSets is the number of sets of units for which the allocator is asked.
	maxSets = 5000
	// maxPlacements is the number of questions for one set of units.
	maxPlacements = 600
)

// Make plans moves after which the goal fits on a node. It returns a plan with the fewest pods. Among these it prefers
// idle pods, then the least memory. All moved pods are from that node.
func Make(ctx context.Context, c *Cluster, w Goal, o Options) Plan {
	p := newPlanner(c, o, &w)
	ctx, cancel := context.WithTimeout(ctx, p.o.Limit)
	defer cancel()
	plan := Plan{Goal: w.Text}
	var left []*node
	for _, name := range p.order {
		n := p.nodes[name]
		if w.Pod != nil && w.Needs.Excluded(n.Node.Node, w.Pod) != "" || w.Pod == nil && n.Spec.Unschedulable {
			continue
		}
		if placed, ok := p.grant(ctx, p.start(), n, w); ok {
			plan.Result, plan.Place = Fits, &Place{name, devices(placed)}
			return plan
		}
		left = append(left, n)
	}
	best, _, ok := p.search(ctx, left, w)
	if !ok {
		plan.Result, plan.Blockers = Blocked, append(p.blockers(ctx, left, w), p.causes(ctx, w)...)
		p.finish(&plan)
		return plan
	}
	plan.Result, plan.Moves, plan.Hold = Moves, best.moves, best.hold
	plan.Place = &Place{best.node.Name, devices(best.goal)}
	p.finish(&plan)
	return plan
}

// grant places the goal on a node.
func (p *planner) grant(ctx context.Context, s state, n *node, w Goal) ([]*resourceapi.ResourceClaim, bool) {
	if w.Pod != nil && p.freeOf(s, n.Name).lacks(requests(w.Pod)) != "" {
		return nil, false
	}
	return p.place(ctx, p.node(s, n.Name), w.Claims)
}

// found is a plan for a set of units.
type found struct {
	node *node
	// set are the victims of a preemption, which has no moves.
	set   []*unit
	moves []Move
	hold  []GPU
	goal  []*resourceapi.ResourceClaim
}

// queue has the candidates that were not tried yet, the cheapest first.
type queue []candidate

func (q queue) Len() int { return len(q) }

func (q queue) Less(i, j int) bool {
	c := q[i].cost.compare(q[j].cost)
	return c < 0 || c == 0 && q[i].key() < q[j].key()
}

func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *queue) Push(x any) { *q = append(*q, x.(candidate)) }

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

// search tries sets of units, the cheapest first. After a set that does not suffice come those that contain it. So the
// first one that does is the cheapest, unless the bounds end the search before.
func (p *planner) search(ctx context.Context, nodes []*node, w Goal) (found, state, bool) {
	var q queue
	seen := map[string]bool{}
	push := func(c candidate) {
		if key := c.key(); !seen[key] {
			seen[key] = true
			heap.Push(&q, c)
		}
	}
	room := map[*node]bool{}
	for _, n := range nodes {
		if len(n.movable()) == 0 || ctx.Err() != nil {
			continue
		}
		for _, c := range p.candidates(ctx, n, w.Claims) {
			push(c)
		}
	}
	for n := 0; q.Len() > 0; n++ {
		if n == maxSets || ctx.Err() != nil {
			p.cut = true
			break
		}
		c := heap.Pop(&q).(candidate)
		// A node on which the goal does not fit even if all units leave has no plan. Only nodes whose candidates come
		// up are asked, because often the first one suffices.
		if _, known := room[c.node]; !known {
			answer, _ := p.Allocate(ctx, p.node(p.start(), c.node.Name), released(c.node.movable()), w.Claims)
			room[c.node] = answer == ask.Yes
		}
		if !room[c.node] || p.violates(c) {
			continue
		}
		if len(c.set) > 0 {
			if f, end, ok := p.try(ctx, c, w); ok {
				return f, end, true
			}
		}
		for _, u := range c.node.movable() {
			if !slices.Contains(c.set, u) {
				push(newCandidate(c.node, union(c.set, []*unit{u})))
			}
		}
	}
	if !p.cut {
		return found{}, state{}, false
	}
	return p.greedy(ctx, nodes, w)
}

// greedy tries one irreducible set of each node: all units leave, and return as long as the goal fits. It is for
// clusters in which the search was cut.
func (p *planner) greedy(ctx context.Context, nodes []*node, w Goal) (found, state, bool) {
	var all []candidate
	for _, n := range nodes {
		set := n.movable()
		suffices := func(set []*unit) bool {
			if p.o.preempt != nil {
				_, _, ok := p.try(ctx, newCandidate(n, set), w)
				return ok
			}
			answer, _ := p.Allocate(ctx, p.node(p.start(), n.Name), released(set), w.Claims)
			return answer == ask.Yes
		}
		if ctx.Err() != nil {
			break
		}
		if len(set) == 0 || !suffices(set) {
			continue
		}
		dearestFirst := slices.SortedStableFunc(slices.Values(set),
			func(a, b *unit) int { return costOf([]*unit{b}).compare(costOf([]*unit{a})) })
		for _, u := range dearestFirst {
			if less := slices.DeleteFunc(slices.Clone(set), func(o *unit) bool { return o == u }); suffices(less) {
				set = less
			}
		}
		all = append(all, newCandidate(n, set))
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return a.cost.compare(b.cost) })
	for _, c := range all {
		if p.violates(c) {
			continue
		}
		if f, end, ok := p.try(ctx, c, w); ok {
			return f, end, true
		}
	}
	return found{}, state{}, false
}

// movable are the units of a node that can move.
func (n *node) movable() (out []*unit) {
	for _, u := range n.units {
		if u.fixed == "" {
			out = append(out, u)
		}
	}
	return out
}

// try proves a set of units. The goal fits without them. Each of them fits elsewhere in turn while the GPUs of the goal
// are cordoned. The goal fits at the end.
func (p *planner) try(ctx context.Context, c candidate, w Goal) (found, state, bool) {
	if p.o.preempt != nil {
		return p.evict(ctx, c, w)
	}
	n := p.node(p.start(), c.node.Name)
	for _, u := range c.set {
		n = n.With(u.unallocated()...)
	}
	first, ok := p.place(ctx, n, w.Claims)
	if !ok {
		return found{}, state{}, false
	}
	f := found{node: c.node, hold: p.gpusOf(first)}
	// The GPUs of the goal are closed meanwhile. Without that, a unit that moves could take a device that it has just
	// left, and the goal would not fit at the end.
	budget := maxPlacements
	moves, end, ok := p.relocate(ctx, p.cordoned(p.start(), f.hold), c.set, &budget)
	if !ok {
		return found{}, state{}, false
	}
	f.moves = moves
	// The cordons end with the moves.
	n = p.node(end, c.node.Name).Untainted(cordonTaint.Key, p.only(c.node.Name, sets.New(f.hold...)))
	open := p.with(end, n, nil)
	f.goal, ok = p.grant(ctx, open, c.node, w)
	return f, open, ok
}

// relocate places units elsewhere, one after the other, and tries other orders and nodes if one has no place. Each step
// is proven with the places that the later units still have.
func (p *planner) relocate(ctx context.Context, s state, units []*unit, budget *int) ([]Move, state, bool) {
	if len(units) == 0 {
		return nil, s, true
	}
	for _, u := range largestFirst(units) {
		gone := p.release(s, u)
		for name := range p.destinations(ctx, u, "") {
			if *budget--; *budget < 0 || ctx.Err() != nil {
				p.cut = true
				return nil, s, false
			}
			if !p.allowed(u, p.nodes[name].Node.Node, p.freeOf(gone, name)) {
				continue
			}
			next, placed, ok := p.put(ctx, gone, u, name)
			if !ok {
				continue
			}
			others := slices.DeleteFunc(slices.Clone(units), func(o *unit) bool { return o == u })
			if more, end, ok := p.relocate(ctx, next, others, budget); ok {
				return append([]Move{p.move(u, name, placed)}, more...), end, true
			}
		}
	}
	return nil, s, false
}

func largestFirst(units []*unit) []*unit {
	return slices.SortedStableFunc(slices.Values(units), func(a, b *unit) int {
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), a.index-b.index)
	})
}

// demand has the devices that the claims of some units ask for. The allocator answers equally for all of them.
type demand struct {
	// The nodes with devices for it before any move, as far as scanned of the planner's nodes.
	dests   []string
	scanned int
	// full are nodes that have no devices for it any more.
	full sets.Set[string]
}

// demand returns the demand of a unit.
func (p *planner) demand(u *unit) *demand {
	if u.demand == nil {
		key := claimsKey(u.claims)
		if p.demands[key] == nil {
			p.demands[key] = &demand{full: sets.New[string]()}
		}
		u.demand = p.demands[key]
	}
	return u.demand
}

// claimsKey is equal for claims that ask for the same devices.
func claimsKey(claims []*resourceapi.ResourceClaim) string {
	var key []byte
	for _, c := range claims {
		encoded, _ := c.Spec.Marshal() // A decoded object always encodes.
		key = append(append(key, encoded...), 0)
	}
	return string(key)
}

// destinations iterates over the nodes that could take a unit: its own, and those that have the devices before any
// move. Moves only make other nodes fuller, so no others are needed.
func (p *planner) destinations(ctx context.Context, u *unit, closed string) iter.Seq[string] {
	d := p.demand(u)
	return func(yield func(string) bool) {
		if u.node != closed && p.nodes[u.node] != nil && !yield(u.node) {
			return
		}
		for i := 0; ; i++ {
			for i >= len(d.dests) && d.scanned < len(p.order) && ctx.Err() == nil {
				name := p.order[d.scanned]
				d.scanned++
				if _, ok := p.place(ctx, p.nodes[name].Node, u.unallocated()); ok {
					d.dests = append(d.dests, name)
				}
			}
			if i >= len(d.dests) {
				return
			}
			if name := d.dests[i]; name != u.node && name != closed && !d.full.Has(name) && !yield(name) {
				return
			}
		}
	}
}

// move describes one step.
func (p *planner) move(u *unit, node string, placed []*resourceapi.ResourceClaim) Move {
	m := Move{
		From:        u.place(),
		To:          Place{node, devices(placed)},
		Bytes:       u.bytes,
		Utilization: u.use,
		Budgets:     u.budgets,
		Notes:       u.notes,
		unit:        u,
		placed:      placed,
	}
	for _, pod := range u.pods {
		m.Pods = append(m.Pods, ask.NameOf(pod).String())
	}
	for _, name := range u.claimNames() {
		m.Claims = append(m.Claims, name.String())
	}
	return m
}

func devices(claims []*resourceapi.ResourceClaim) (out []string) {
	for _, c := range claims {
		out = append(out, devicesOf(c.Status.Allocation)...)
	}
	return out
}

// finish adds the result to a plan: the GPUs that it wins, and what was not looked at.
func (p *planner) finish(plan *Plan) {
	after := map[string]*resourceapi.ResourceClaim{}
	for _, m := range plan.Moves {
		for _, c := range m.placed {
			after[ask.NameOf(c).String()] = c
		}
	}
	used := [2]sets.Set[GPU]{sets.New[GPU](), sets.New[GPU]()}
	for _, c := range p.c.Claims {
		if c == nil {
			continue
		}
		moved := c
		if placed := after[ask.NameOf(c).String()]; placed != nil {
			copied := *c
			copied.Status.Allocation, moved = placed.Status.Allocation, &copied
		}
		used[0].Insert(p.gpusOf([]*resourceapi.ResourceClaim{c})...)
		used[1].Insert(p.gpusOf([]*resourceapi.ResourceClaim{moved})...)
	}
	for _, name := range p.order {
		for g := range p.nodes[name].gpus {
			one := GPU{name, g}
			for i := range used {
				if !used[i].Has(one) {
					plan.Free[i]++
				}
			}
			if used[0].Has(one) && !used[1].Has(one) {
				plan.Won = append(plan.Won, one)
			}
		}
	}
	slices.SortFunc(plan.Won, func(a, b GPU) int { return strings.Compare(a.String(), b.String()) })
	if len(plan.Moves) > 0 {
		plan.Notes = append(plan.Notes, p.unseen()...)
	}
	if p.cut {
		plan.Notes = append(plan.Notes, "the search was cut off, so fewer moves may do; --time-limit gives it "+
			"more time")
	}
}

// unseen says which objects the proof lacks.
func (p *planner) unseen() (out []string) {
	if !p.c.Complete(read.Pods) || len(p.free) == 0 {
		out = append(out, "the CPU and memory of nodes were not looked at: that needs the right to list the nodes "+
			"and the pods of all namespaces")
	}
	if p.c.Failed(read.PodDisruptionBudgets) {
		out = append(out, "disruption budgets were not looked at: that needs the right to list poddisruptionbudgets")
	}
	return out
}

// blockers names the units that keep the goal from the nodes that could have it if they could move.
func (p *planner) blockers(ctx context.Context, nodes []*node, w Goal) (out []string) {
	const maxBlockers = 8
	for _, n := range nodes {
		if ctx.Err() != nil {
			break
		}
		if answer, _ := p.Allocate(ctx, p.node(p.start(), n.Name), released(n.units), w.Claims); answer != ask.Yes {
			continue
		}
		for _, u := range n.units {
			if len(out) == maxBlockers {
				return append(out, "and more")
			}
			switch {
			case u.fixed != "":
				out = append(out, fmt.Sprintf("node %s: %s: %s", n.Name, u.name(), u.fixed))
			case !p.fitsElsewhere(ctx, u):
				out = append(out, fmt.Sprintf("node %s: %s fits on no other node", n.Name, u.name()))
			}
		}
	}
	if len(nodes) == 0 {
		out = append(out, "its node selector, affinity or tolerations exclude every node")
	}
	return out
}

// causes says what keeps the goal from nodes apart from the claims of other pods, such as cordons, and devices that are
// published on demand.
func (p *planner) causes(ctx context.Context, w Goal) (out []string) {
	subject := why.Subject{Pod: w.Pod}
	c := p.c.Cluster
	if w.Pod == nil {
		subject.Claim = w.Claims[0]
	}
	if w.Class != nil {
		c.Classes = append(slices.Clone(c.Classes), w.Class)
	}
	for _, r := range why.Ask(ctx, &c, subject, why.Options{Driver: p.o.Driver, Brief: true}).Reasons {
		switch {
		case r.Text == why.CauseHeld:
		case len(r.Nodes) == 0:
			out = append(out, r.Text)
		case len(r.Nodes) == 1:
			out = append(out, "node "+r.Nodes[0]+": "+r.Text)
		default:
			out = append(out, fmt.Sprintf("%d nodes (%s): %s", len(r.Nodes), ask.List(r.Nodes), r.Text))
		}
	}
	return out
}

// fitsElsewhere reports whether another node can take a unit as the cluster is.
func (p *planner) fitsElsewhere(ctx context.Context, u *unit) bool {
	for name := range p.destinations(ctx, u, u.node) {
		if p.allowed(u, p.nodes[name].Node.Node, p.freeOf(p.start(), name)) {
			return true
		}
	}
	return false
}
