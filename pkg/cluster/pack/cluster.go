// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pack

import (
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
	p.finish(&plan)
	return plan
}

// settle gives each unit the first place with room, the largest first. Later questions begin with the committed state
// or a fuller one, so a node that lacks devices in that state is not asked for them again. No unit goes to the closed
// node.
func (p *planner) settle(
	ctx context.Context, committed, s state, units []*unit, closed string,
) (moves []Move, _ state, ok bool) {
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
