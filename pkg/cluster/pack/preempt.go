// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/bounded"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/waiting"
)

// Rules are the rules of a preemption.
type Rules struct {
	// Namespaces and Classes exempt pods: names of namespaces and of PriorityClasses.
	Namespaces, Classes []string
	// Violate also takes victims whose eviction a disruption budget does not allow, if there are no others.
	Violate bool
	// Together takes only victims whose devices come free at once, if nothing holds a part of them for the pod: those
	// of one claim. It also expects that each victim is created again at once, and takes what is free on the node.
	Together bool
	// Busy are nodes that victims of another preemption leave.
	Busy sets.Set[string]
	// Before are pods that wait too and that the scheduler tries first: they take what fits them.
	Before []Goal
	// Refused are pods whose eviction was refused a moment ago. Others are taken instead.
	Refused sets.Set[types.UID]
	// Ordinary are pods with marks of Kueue or of a gang that no such object manages.
	Ordinary sets.Set[types.UID]
	// Kept means that claims which no pod uses keep their devices. Otherwise these count as released in a moment.
	Kept bool
	// Now is the time of the question.
	Now time.Time
}

// Verdict is the answer of a preemption in one word.
type Verdict string

// The answers.
const (
	// Room means that the pod fits now, or once pods have left that leave already.
	Room Verdict = "room"
	// Evict means that the pod fits once the victims have left.
	Evict Verdict = "evict"
	// NoVictims means that no pods of a lower priority were found whose eviction suffices.
	NoVictims Verdict = "no victims"
)

// Preemption is the answer for a pod.
type Preemption struct {
	Verdict Verdict
	// Node is where the pod fits, or empty.
	Node string
	// Victims leave the node. Pods that share a claim are among them all or not at all.
	Victims []*corev1.Pod
	// Violations counts the victims whose eviction a disruption budget does not allow.
	Violations int
	// Devices has the devices of the pod then, and GPUs the GPUs of them.
	Devices []string
	GPUs    []GPU
	// Together means that the victims are also those of the rule Together: their devices need no reservation.
	Together bool
	// Cut means that the search ended before all possibilities were tried.
	Cut bool
}

// preemption are the rules for one pod.
type preemption struct {
	Rules
	// below is the priority of the pod: victims have a lower one.
	below int32
}

// Preempt finds the pods of lower priority whose eviction lets a pod fit on a node. Among all such sets it takes the
// first in the order of the scheduler's own preemption. The fewest evictions that a disruption budget does not allow
// come first, then the lowest highest priority, the smallest sum of priorities, the fewest pods, the latest start. No
// pod that could stay is in the set. The goal names a pod; the cluster needs the pods of all namespaces, and the
// disruption budgets.
func Preempt(ctx context.Context, c *Cluster, w Goal, r Rules, o Options) Preemption {
	out := Preemption{Verdict: NoVictims}
	if w.Pod == nil || len(c.Nodes) == 0 || !c.Complete(read.Pods) || c.Failed(read.PodDisruptionBudgets) ||
		ptr.Deref(w.Pod.Spec.PreemptionPolicy, corev1.PreemptLowerPriority) == corev1.PreemptNever {
		return out
	}
	o.preempt = &preemption{Rules: r, below: Priority(w.Pod)}
	p := newPlanner(c, o, &w)
	ctx, cancel := context.WithTimeout(ctx, p.o.Limit)
	defer cancel()
	for _, u := range p.units {
		if u.victim != nil && u.victim.leaves {
			p.begin = p.release(p.begin, u)
		}
	}
	var left []*node
	for _, name := range p.order {
		n := p.nodes[name]
		if r.Busy.Has(name) || n.Node.Node == nil || p.free[name] == nil || w.Needs.Excluded(n.Node.Node, w.Pod) != "" {
			continue
		}
		if placed, ok := p.grant(ctx, p.start(), n, w); ok {
			return Preemption{Verdict: Room, Node: name, Devices: devices(placed)}
		}
		left = append(left, n)
	}
	best, _, ok := p.search(ctx, left, w)
	out.Cut = p.cut
	if !ok {
		return out
	}
	out.Verdict, out.Node, out.Devices, out.GPUs = Evict, best.node.Name, devices(best.goal), p.gpusOf(best.goal)
	o.preempt.Together = true
	if one := newCandidate(best.node, best.set); !p.violates(one) {
		_, _, out.Together = p.evict(ctx, one, w)
	}
	out.Violations = costOf(best.set).victims.violations
	for _, u := range best.set {
		out.Victims = append(out.Victims, u.pods...)
	}
	return out
}

// Narrow returns the nodes that may have the goal's devices once all possible victims have left. It asks once for nodes
// that are alike, so it is far cheaper than a search on all of them. Nodes that were not asked about within the limit
// are among those.
func Narrow(ctx context.Context, c *Cluster, w Goal, r Rules, limit time.Duration) []*corev1.Node {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stays, rules := sets.New[types.UID](), preemption{Rules: r, below: Priority(w.Pod)}
	for _, p := range c.Pods {
		if p.DeletionTimestamp == nil && !waiting.Ended(p) && rules.spares(p) != "" {
			stays.Insert(p.UID)
		}
	}
	keeps := func(r resourceapi.ResourceClaimConsumerReference) bool { return stays.Has(r.UID) }
	kept := slices.DeleteFunc(slices.Clone(c.Claims), func(one *resourceapi.ResourceClaim) bool {
		return !slices.ContainsFunc(one.Status.ReservedFor, keeps)
	})
	possible, a := sets.New[string](), ask.Of(c.Classes, c.ServerVersion)
	for _, one := range a.Question(w.Claims, c.Rules).Group(ask.Nodes(c.Nodes, c.Slices, kept)) {
		if answer, _ := a.Allocate(ctx, one.Node, nil, w.Claims); answer != ask.No {
			possible.Insert(one.Names...)
		}
	}
	return slices.DeleteFunc(slices.Clone(c.Nodes), func(n *corev1.Node) bool { return !possible.Has(n.Name) })
}

// Priority is the priority of a pod, as the scheduler reads it.
func Priority(pod *corev1.Pod) int32 { return ptr.Deref(pod.Spec.Priority, 0) }

// Apart says which system decides about a pod's start and end besides the scheduler, or is empty. Such pods neither
// preempt nor are they victims: Kueue preempts its own, and a gang with one pod less has lost its work.
func Apart(pod *corev1.Pod) string {
	if pod.Spec.SchedulingGroup != nil {
		return "it belongs to a PodGroup"
	}
	for _, all := range []map[string]string{pod.Labels, pod.Annotations} {
		for key := range all {
			switch {
			case strings.HasPrefix(key, "kueue.x-k8s.io/"):
				return "Kueue manages it"
			case waiting.Marks(key):
				return "it belongs to a gang"
			}
		}
	}
	return ""
}

const (
	// leavesWithin is the time within which a pod leaves whose devices count as room. One with a longer grace period
	// holds them for its checkpoint, or for ever.
	leavesWithin = 2 * time.Minute
	// leaveFor is the time after a pod's grace period for which it counts as leaving. After it, its node may be gone.
	leaveFor = time.Minute
)

// victim has the facts of a unit for the choice of victims.
type victim struct {
	// highest is the highest priority of its pods, sum the sum of them. Both count from the lowest possible priority.
	highest, sum int64
	// started is when the first of the pods with the highest priority started.
	started time.Time
	// budgets are the disruption budgets of each pod.
	budgets [][]*policyv1.PodDisruptionBudget
	// slow counts the pods that may take longer than leavesWithin to leave. It is unknown of too large ones.
	slow int
	// leaves means that the devices are released without an eviction.
	leaves bool
}

// criticalPriority is the least priority of Kubernetes' own classes, system-cluster-critical and system-node-critical.
const criticalPriority = 2_000_000_000

// yield finds whether preemption may evict a unit, and what it costs.
func (p *planner) yield(u *unit, fix func(string, ...any)) {
	u.victim = &victim{leaves: !heldByOthers(u.claims)}
	for _, pod := range u.pods {
		leaving := false
		if at := pod.DeletionTimestamp; at != nil {
			wait := at.Sub(p.o.preempt.Now)
			leaving = wait > -leaveFor && wait <= leavesWithin
		}
		u.victim.leaves = u.victim.leaves && (waiting.Ended(pod) || leaving)
		if pod.DeletionTimestamp != nil || waiting.Ended(pod) {
			fix("it leaves already")
		}
		if text := p.o.preempt.spares(pod); text != "" {
			fix("%s", text)
		}
		if text := Apart(pod); text != "" && !p.o.preempt.Ordinary.Has(pod.UID) {
			fix("%s", text)
		}
		priority := int64(Priority(pod)) - math.MinInt32
		started := p.o.preempt.Now
		if pod.Status.StartTime != nil {
			started = pod.Status.StartTime.Time
		}
		v := u.victim
		if priority > v.highest || len(v.budgets) == 0 {
			v.highest, v.started = priority, started
		} else if priority == v.highest && started.Before(v.started) {
			v.started = started
		}
		v.sum += priority
		grace := ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, 0)
		if bounded.TooLarge(pod) || grace > int64(leavesWithin/time.Second) {
			v.slow++
		}
		v.budgets = append(v.budgets, p.budgetsOf(pod))
	}
	if u.victim.leaves && u.fixed == "" {
		fix("it leaves already")
	}
	if len(u.pods) > 0 && u.fixed == "" {
		if one := newCandidate(p.nodes[u.node], []*unit{u}); p.violates(one) {
			fix("a disruption budget does not allow its eviction")
		}
	}
}

// spares says why preemption never evicts a pod, its marks of Kueue or of a gang apart, or is empty.
func (r *preemption) spares(pod *corev1.Pod) string {
	switch {
	case Priority(pod) >= r.below:
		return "its priority is not lower"
	case Priority(pod) >= criticalPriority:
		return "the cluster needs it"
	case slices.Contains(r.Namespaces, pod.Namespace):
		return "its namespace is exempt"
	case slices.Contains(r.Classes, pod.Spec.PriorityClassName):
		return "its PriorityClass is exempt"
	case r.Refused.Has(pod.UID):
		return "its eviction was refused"
	}
	return ""
}

// heldByOthers reports whether a claim is reserved for other objects than pods.
func heldByOthers(claims []*resourceapi.ResourceClaim) bool {
	return slices.ContainsFunc(claims, func(c *resourceapi.ResourceClaim) bool {
		return slices.ContainsFunc(c.Status.ReservedFor, func(r resourceapi.ResourceClaimConsumerReference) bool {
			return r.APIGroup != "" || r.Resource != "pods"
		})
	})
}

// budgetsOf returns the disruption budgets that still count a pod.
func (p *planner) budgetsOf(pod *corev1.Pod) (out []*policyv1.PodDisruptionBudget) {
	for _, b := range p.c.Budgets {
		if b.Namespace != pod.Namespace {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if _, disrupted := b.Status.DisruptedPods[pod.Name]; err == nil && !disrupted &&
			selector.Matches(labels.Set(pod.Labels)) {
			out = append(out, b)
		}
	}
	return out
}

// victimCost is the cost of a set in the scheduler's own order, which does not know slow pods. Of a set that contains
// another it is not lower.
type victimCost struct {
	violations, slow int
	highest, sum     int64
	// started is when the first of the pods with the highest priority started.
	started time.Time
}

func victimsOf(set []*unit) (c victimCost) {
	allowed := map[*policyv1.PodDisruptionBudget]int32{}
	for _, u := range set {
		v := u.victim
		if v == nil {
			continue
		}
		if v.highest > c.highest || c.started.IsZero() {
			c.highest, c.started = v.highest, v.started
		} else if v.highest == c.highest && v.started.Before(c.started) {
			c.started = v.started
		}
		c.sum += v.sum
		c.slow += v.slow
		for _, budgets := range v.budgets {
			// The API server evicts no pod that several budgets count.
			violates := len(budgets) > 1
			for _, b := range budgets {
				if allowed[b]++; allowed[b] > b.Status.DisruptionsAllowed {
					violates = true
				}
			}
			if violates {
				c.violations++
			}
		}
	}
	return c
}

// compare compares all but the start, which counts after the number of pods.
func (c victimCost) compare(o victimCost) int {
	return cmp.Or(
		cmp.Compare(c.violations, o.violations), cmp.Compare(c.slow, o.slow),
		cmp.Compare(c.highest, o.highest), cmp.Compare(c.sum, o.sum),
	)
}

// violates reports whether a preemption may not evict a set because of disruption budgets, or of the claims in it.
func (p *planner) violates(c candidate) bool {
	if p.o.preempt != nil && p.o.preempt.Together && len(released(c.set)) > 1 {
		return true
	}
	return p.o.preempt != nil && !p.o.preempt.Violate && c.cost.victims.violations > 0
}

// evict proves a set of victims: without them the pod fits, also after the pods that the scheduler tries first.
func (p *planner) evict(ctx context.Context, c candidate, w Goal) (found, state, bool) {
	s := p.start()
	if p.o.preempt.Together {
		s = p.recreated(ctx, s, c)
	}
	for _, u := range c.set {
		s = p.release(s, u)
	}
	full := map[string]bool{}
	for _, other := range p.o.preempt.Before {
		key := claimsKey(other.Claims)
		if full[key] || ctx.Err() != nil || other.Needs.Excluded(c.node.Node.Node, other.Pod) != "" {
			continue
		}
		placed, ok := p.grant(ctx, s, c.node, other)
		if !ok {
			full[key] = p.freeOf(s, c.node.Name).lacks(requests(other.Pod)) == ""
			continue
		}
		s = p.with(s, p.node(s, c.node.Name).With(placed...), func(free amounts) { free.take(requests(other.Pod)) })
	}
	placed, ok := p.grant(ctx, s, c.node, w)
	return found{node: c.node, set: c.set, goal: placed}, s, ok
}

// recreated returns the state in which a successor of each victim has what is free on the node.
func (p *planner) recreated(ctx context.Context, s state, c candidate) state {
	for _, u := range c.set {
		successors := u.unallocated()
		for _, claim := range successors {
			claim.Name += "-again"
			claim.UID += "-again"
		}
		if placed, ok := p.place(ctx, p.node(s, c.node.Name), successors); ok &&
			p.freeOf(s, c.node.Name).lacks(u.needs) == "" {
			s = p.with(s, p.node(s, c.node.Name).With(placed...), func(free amounts) { free.take(u.needs) })
		}
	}
	return s
}

// VictimNames are the victims as namespace/name.
func (p Preemption) VictimNames() (out []string) {
	for _, pod := range p.Victims {
		out = append(out, ask.NameOf(pod).String())
	}
	return out
}
