// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/why"
	"gpu-dra-driver/pkg/wire"
)

// cordonTaint is on the devices of cordoned GPUs.
var cordonTaint = resourceapi.DeviceTaint{Key: wire.CordonTaint, Effect: resourceapi.DeviceTaintEffectNoSchedule}

// planner answers one question.
type planner struct {
	ask.Asker
	o Options
	c *Cluster
	// nodes are all nodes by name, without the cordons of the plan's own GPUs. order has their names, nodes with few
	// free GPUs first, so that moves leave the emptiest nodes alone.
	nodes map[string]*node
	order []string
	units []*unit
	free  map[string]amounts
	// devices and poolNode have the published devices, and the nodes of pools.
	devices  map[pool.ID]map[string]resourceapi.Device
	poolNode map[pool.ID]string
	// counters are the full counters of pools.
	counters map[pool.ID]pool.Counters
	// begin is the state of the cluster.
	begin   state
	demands map[string]*demand
	// moved are the needs of pods that move.
	moved map[*corev1.Pod]why.Needs
	// cut means that the search ended before all possibilities were tried.
	cut bool
}

// node is a node with the units that have devices there.
type node struct {
	*ask.Node
	units []*unit
	// The units on each GPU. A GPU without units is free.
	gpus map[string][]*unit
}

func newPlanner(c *Cluster, o Options, goal *Goal) *planner {
	o.Limit = cmp.Or(o.Limit, DefaultLimit)
	var asked []*resourceapi.ResourceClaim
	classes := slices.Clone(c.Classes)
	if goal != nil {
		asked, classes = slices.Clone(goal.Claims), append(classes, goal.Class)
	}
	p := &planner{
		Asker:    ask.Of(classes, c.ServerVersion),
		o:        o,
		c:        c,
		nodes:    map[string]*node{},
		free:     map[string]amounts{},
		devices:  map[pool.ID]map[string]resourceapi.Device{},
		poolNode: map[pool.ID]string{},
		counters: map[pool.ID]pool.Counters{},
		demands:  map[string]*demand{},
		moved:    map[*corev1.Pod]why.Needs{},
	}
	for _, one := range c.Claims {
		if one != nil && one.Status.Allocation != nil {
			asked = append(asked, one)
		}
	}
	question := p.Question(asked, c.Rules)
	held := sets.New(o.Held...)
	if c.Complete(read.Pods) {
		p.free = freeOn(c.Nodes, c.Pods, c.Classes)
	}
	all := ask.Nodes(c.Nodes, c.Slices, c.Claims)
	ask.Each(len(all), func(i int) { question.Load(all[i]) })
	for _, n := range all {
		loaded := n
		if len(held) > 0 {
			own := p.only(n.Name, held)
			loaded = n.Untainted(wire.ReservedTaint, own)
		}
		one := &node{Node: loaded, gpus: map[string][]*unit{}}
		p.nodes[n.Name] = one
		for _, s := range loaded.Slices {
			id := pool.ID{Driver: s.Spec.Driver, Pool: s.Spec.Pool.Name}
			if p.devices[id] == nil {
				p.devices[id] = map[string]resourceapi.Device{}
			}
			if p.counters[id] == nil {
				p.counters[id] = pool.Counters{}
			}
			p.counters[id].Add(s.Spec.SharedCounters)
			p.poolNode[id] = n.Name
			for _, d := range s.Spec.Devices {
				p.devices[id][d.Name] = d
				if s.Spec.Driver == o.Driver {
					for _, g := range pool.GPUsOf(d) {
						if _, known := one.gpus[g]; !known {
							one.gpus[g] = nil
						}
					}
				}
			}
		}
	}
	p.makeUnits()
	for _, u := range p.units {
		n := p.nodes[u.node]
		if n == nil {
			continue
		}
		n.units = append(n.units, u)
		for _, g := range p.gpusOf(u.claims) {
			if g.Node == u.node && !slices.Contains(n.gpus[g.Name], u) {
				n.gpus[g.Name] = append(n.gpus[g.Name], u)
			}
		}
	}
	p.order = slices.SortedFunc(maps.Keys(p.nodes), func(a, b string) int {
		return cmp.Or(cmp.Compare(p.nodes[a].idle(), p.nodes[b].idle()), strings.Compare(a, b))
	})
	return p
}

// idle counts the GPUs without a holder.
func (n *node) idle() (count int) {
	for _, units := range n.gpus {
		if len(units) == 0 {
			count++
		}
	}
	return count
}

// only selects the devices of the driver all of whose GPUs are in a set. Another cordon of a group's member keeps its
// taint.
func (p *planner) only(node string, in sets.Set[GPU]) func(string, resourceapi.Device) bool {
	return func(driver string, d resourceapi.Device) bool {
		gpus := pool.GPUsOf(d)
		return driver == p.o.Driver && len(gpus) > 0 && !slices.ContainsFunc(gpus, func(g string) bool {
			return !in.Has(GPU{node, g})
		})
	}
}

// any selects the devices of the driver of which one GPU is in a set: those that a cordon taints.
func (p *planner) any(node string, in sets.Set[GPU]) func(string, resourceapi.Device) bool {
	return func(driver string, d resourceapi.Device) bool {
		return driver == p.o.Driver && slices.ContainsFunc(pool.GPUsOf(d), func(g string) bool {
			return in.Has(GPU{node, g})
		})
	}
}

// gpusOf returns the GPUs of the driver that allocated claims need, sorted.
func (p *planner) gpusOf(claims []*resourceapi.ResourceClaim) []GPU {
	found := sets.New[GPU]()
	for _, c := range claims {
		for id, r := range pool.Held(c.Status.Allocation) {
			if r.Driver != p.o.Driver {
				continue
			}
			for _, g := range pool.GPUsOf(p.devices[id][r.Device]) {
				found.Insert(GPU{p.poolNode[id], g})
			}
		}
	}
	return slices.SortedFunc(maps.Keys(found),
		func(a, b GPU) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Name, b.Name)) })
}

// state is the cluster after some moves. The zero maps mean that nothing has moved.
type state struct {
	nodes map[string]*ask.Node
	free  map[string]amounts
}

func (p *planner) start() state { return p.begin }

// node returns a node in this state.
func (p *planner) node(s state, name string) *ask.Node {
	if n, changed := s.nodes[name]; changed {
		return n
	}
	return p.nodes[name].Node
}

// freeOf returns the free resources of a node in this state, or nil if they are not known.
func (p *planner) freeOf(s state, name string) amounts {
	if a, changed := s.free[name]; changed {
		return a
	}
	return p.free[name]
}

// with returns the state with another node and, if known, other free resources.
func (p *planner) with(s state, n *ask.Node, change func(amounts)) state {
	out := state{maps.Clone(s.nodes), maps.Clone(s.free)}
	if out.nodes == nil {
		out.nodes, out.free = map[string]*ask.Node{}, map[string]amounts{}
	}
	out.nodes[n.Name] = n
	if free := p.freeOf(s, n.Name); free != nil && change != nil {
		free = maps.Clone(free)
		change(free)
		out.free[n.Name] = free
	}
	return out
}

// cordoned returns the state with GPUs that no newcomer gets.
func (p *planner) cordoned(s state, gpus []GPU) state {
	set, nodes := sets.New(gpus...), sets.New[string]()
	for _, g := range gpus {
		nodes.Insert(g.Node)
	}
	for name := range nodes {
		s = p.with(s, p.node(s, name).Tainted(cordonTaint, p.any(name, set)), nil)
	}
	return s
}

// release returns the state without a unit.
func (p *planner) release(s state, u *unit) state {
	if p.nodes[u.node] == nil {
		return s
	}
	return p.with(s, p.node(s, u.node).With(u.unallocated()...), func(free amounts) { free.give(u.needs) })
}

// put returns the state with a unit on a node, if the node has the devices.
func (p *planner) put(ctx context.Context, s state, u *unit, name string) (state, []*resourceapi.ResourceClaim, bool) {
	n := p.node(s, name)
	placed, ok := p.place(ctx, n, u.unallocated())
	if !ok {
		return s, nil, false
	}
	return p.with(s, n.With(placed...), func(free amounts) { free.take(u.needs) }), placed, true
}

// place asks the allocator for claims on a node, and returns them with their allocations.
func (p *planner) place(
	ctx context.Context, n *ask.Node, claims []*resourceapi.ResourceClaim,
) ([]*resourceapi.ResourceClaim, bool) {
	answer := p.Place(ctx, n, nil, claims)
	if answer.Outcome != ask.Yes {
		return nil, false
	}
	out := make([]*resourceapi.ResourceClaim, len(claims))
	for i, c := range claims {
		placed := *c
		placed.Status.Allocation = &answer.Allocations[i]
		out[i] = &placed
	}
	return out, true
}

// allowed reports whether the pods of a unit may run on a node, apart from their devices.
func (p *planner) allowed(u *unit, n *corev1.Node, free amounts) bool {
	for _, pod := range u.pods {
		needs, known := p.moved[pod]
		if !known {
			needs = why.Moved(pod)
			p.moved[pod] = needs
		}
		if needs.Excluded(n, pod) != "" {
			return false
		}
	}
	return free.lacks(u.needs) == ""
}

// released returns the names of the units' claims.
func released(set []*unit) sets.Set[types.NamespacedName] {
	out := sets.New[types.NamespacedName]()
	for _, u := range set {
		out.Insert(u.claimNames()...)
	}
	return out
}
