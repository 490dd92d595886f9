// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
)

// Empty plans moves of all pods with devices of a node to other nodes. The blockers are those that stay.
func Empty(ctx context.Context, c *Cluster, name string, o Options) Plan {
	p := newPlanner(c, o, nil)
	ctx, cancel := context.WithTimeout(ctx, p.o.Limit)
	defer cancel()
	plan := Plan{Node: name, Result: Moves}
	n := p.nodes[name]
	if n == nil {
		plan.Result, plan.Blockers = Blocked, []string{"node " + name + " is not among the nodes"}
		return plan
	}
	for g := range n.gpus {
		plan.Hold = append(plan.Hold, GPU{name, g})
	}
	slices.SortFunc(plan.Hold, func(a, b GPU) int { return strings.Compare(a.Name, b.Name) })
	end := p.cordoned(p.start(), plan.Hold)
	for _, u := range largestFirst(n.units) {
		if u.fixed != "" {
			plan.Blockers = append(plan.Blockers, fmt.Sprintf("%s: %s", u.name(), u.fixed))
			continue
		}
		moves, next, ok := p.settle(ctx, end, end, []*unit{u}, name)
		if !ok {
			plan.Blockers = append(plan.Blockers, u.name()+" fits on no other node")
			continue
		}
		end, plan.Moves = next, append(plan.Moves, moves...)
	}
	switch {
	case len(plan.Blockers) > 0:
		plan.Result = Blocked
	case len(plan.Moves) == 0:
		plan.Result = Fits
	}
	p.finish(&plan, end, nil)
	return plan
}

// Defragment plans moves that empty GPUs of which only a part is used: their pods move to other GPUs in use. GPUs that few
// and idle pods use are first. No free GPU is used for it, so each GPU that is emptied is won.
func Defragment(ctx context.Context, c *Cluster, o Options) Plan {
	p := newPlanner(c, o, nil)
	ctx, cancel := context.WithTimeout(ctx, p.o.Limit)
	defer cancel()
	plan := Plan{Result: Moves}
	type partly struct {
		gpu   GPU
		units []*unit
		cost  cost
	}
	var all []partly
	for _, name := range p.order {
		for g, units := range p.nodes[name].gpus {
			one := GPU{name, g}
			switch {
			case len(units) == 0:
				plan.Hold = append(plan.Hold, one)
			case p.part(one, units):
				all = append(all, partly{one, units, costOf(units)})
			}
		}
	}
	slices.SortFunc(all, func(a, b partly) int {
		return cmp.Or(a.cost.compare(b.cost), strings.Compare(a.gpu.String(), b.gpu.String()))
	})
	p.base = p.cordoned(p.start(), plan.Hold)
	end := p.base
	// The places of moved units are other than the planner knows, so a GPU that took one stays as it is.
	taken, gone := map[GPU]bool{}, map[*unit]bool{}
	for _, one := range all {
		if ctx.Err() != nil {
			p.cut = true
			break
		}
		if taken[one.gpu] || slices.ContainsFunc(one.units, func(u *unit) bool { return gone[u] }) {
			continue
		}
		moves, next, ok := p.settle(ctx, end, p.cordoned(end, []GPU{one.gpu}), one.units, "")
		if !ok {
			continue
		}
		end, plan.Hold = next, append(plan.Hold, one.gpu)
		for i := range moves {
			gone[moves[i].unit] = true
			for _, g := range p.gpusOf(moves[i].placed) {
				taken[g] = true
			}
		}
		moves[len(moves)-1].Frees = &one.gpu
		plan.Moves = append(plan.Moves, moves...)
	}
	slices.SortFunc(plan.Hold, func(a, b GPU) int { return strings.Compare(a.String(), b.String()) })
	if len(plan.Moves) == 0 {
		plan.Result = Fits
		for _, one := range all {
			for _, u := range one.units {
				if u.fixed != "" && len(plan.Blockers) < 8 {
					plan.Result = Blocked
					plan.Blockers = append(plan.Blockers, fmt.Sprintf("GPU %s: %s: %s", one.gpu, u.name(), u.fixed))
				}
			}
		}
	}
	p.finish(&plan, end, nil)
	return plan
}

// settle gives each unit the first place with room, the largest first. Later questions begin with the committed state or a
// fuller one, so a node that lacks devices in that state is not asked for them again. No unit goes to the closed node.
func (p *planner) settle(ctx context.Context, committed, s state, units []*unit, closed string) (moves []Move, _ state, ok bool) {
next:
	for _, u := range largestFirst(units) {
		s = p.release(s, u)
		for name := range p.destinations(ctx, u, closed) {
			if !p.allowed(u, p.nodes[name].Node.Node, p.freeOf(s, name)) {
				continue
			}
			more, placed, ok := p.put(ctx, s, u, name)
			if ok {
				s, moves = more, append(moves, p.move(u, name, placed))
				continue next
			}
			if p.node(s, name) == p.node(committed, name) && ctx.Err() == nil {
				p.demand(u).full.Insert(name)
			}
		}
		return nil, s, false
	}
	return moves, s, true
}

// part reports whether units use a GPU in part, and can all move.
func (p *planner) part(g GPU, units []*unit) bool {
	for _, u := range units {
		if len(p.gpusOf(u.claims)) > 1 {
			return false // It would win no more than it needs elsewhere.
		}
		for _, c := range u.claims {
			for _, name := range devicesOf(c.Status.Allocation) {
				if name == g.Name && !p.sharedOn(g, u) {
					return false
				}
			}
		}
	}
	return true
}

// sharedOn reports whether a unit has less than the whole memory of a GPU.
func (p *planner) sharedOn(g GPU, u *unit) bool {
	for id, devices := range p.devices {
		if d, ok := devices[g.Name]; ok && p.poolNode[id] == g.Node {
			memory := d.Capacity["memory"].Value
			return u.bytes < memory.Value()
		}
	}
	return false
}

// Pods returns the pods of the moves, as namespace/name.
func (p Plan) Pods() (out []string) {
	for _, m := range p.Moves {
		out = append(out, m.Pods...)
	}
	return out
}
