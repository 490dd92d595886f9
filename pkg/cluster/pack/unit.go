// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/waiting"
)

// unit is a set of pods and claims that move together: a pod with its claims, or all pods that share a claim.
type unit struct {
	index  int
	pods   []*corev1.Pod
	claims []*resourceapi.ResourceClaim
	// node is the node of the pods.
	node string
	// fixed says why the unit cannot move, or is empty.
	fixed   string
	budgets []string
	notes   []string
	// idle is 0 for idle pods, 1 for those that were not measured and 2 for busy ones.
	idle  int
	use   *float64
	bytes int64
	needs amounts

	demand *demand
	// victim has the facts for preemption; nil for moves.
	victim *victim
}

// busyAt is the utilization from which a pod counts as busy. Below it the GPU runs nothing but a rare request.
const busyAt = 0.05

// name is the first pod's name, or the claim's if there is no pod.
func (u *unit) name() string {
	if len(u.pods) > 0 {
		return ask.NameOf(u.pods[0]).String()
	}
	return "claim " + ask.NameOf(u.claims[0]).String()
}

func (u *unit) claimNames() (out []types.NamespacedName) {
	for _, c := range u.claims {
		out = append(out, ask.NameOf(c))
	}
	return out
}

// unallocated returns the unit's claims without their allocations, to release them on a node.
func (u *unit) unallocated() (out []*resourceapi.ResourceClaim) {
	for _, c := range u.claims {
		bare := *c
		bare.Status = resourceapi.ResourceClaimStatus{}
		out = append(out, &bare)
	}
	return out
}

// place is where the unit is now.
func (u *unit) place() Place {
	p := Place{Node: u.node}
	for _, c := range u.claims {
		p.Devices = append(p.Devices, devicesOf(c.Status.Allocation)...)
	}
	return p
}

func devicesOf(a *resourceapi.AllocationResult) (out []string) {
	for _, r := range pool.Held(a) {
		out = append(out, r.Device)
	}
	return out
}

// makeUnits joins pods and claims that must move together. Claims without devices of nodes are left out.
func (p *planner) makeUnits() {
	pods := map[types.NamespacedName]*corev1.Pod{}
	for _, one := range p.c.Pods {
		pods[ask.NameOf(one)] = one
	}
	// A unit is a connected part of the graph of claims and their consumers.
	unitOf, podUnit := map[types.NamespacedName]*unit{}, map[types.NamespacedName]*unit{}
	consumers := map[*unit][]types.NamespacedName{}
	for _, c := range p.c.Claims {
		if c == nil || len(devicesOf(c.Status.Allocation)) == 0 {
			continue
		}
		u := &unit{claims: []*resourceapi.ResourceClaim{c}}
		for _, r := range c.Status.ReservedFor {
			if r.APIGroup != "" || r.Resource != "pods" {
				continue
			}
			name := types.NamespacedName{Namespace: c.Namespace, Name: r.Name}
			if other := podUnit[name]; other != nil && other != u {
				other.claims = append(other.claims, u.claims...)
				for _, moved := range u.claimNames() {
					unitOf[moved] = other
				}
				for _, moved := range consumers[u] {
					podUnit[moved] = other
				}
				consumers[other] = append(consumers[other], consumers[u]...)
				u = other
			}
			podUnit[name] = u
			consumers[u] = append(consumers[u], name)
		}
		unitOf[ask.NameOf(c)] = u
	}
	seen := map[*unit]bool{}
	for _, c := range p.c.Claims {
		if c == nil {
			continue
		}
		if u := unitOf[ask.NameOf(c)]; u != nil && !seen[u] {
			seen[u] = true
			p.complete(u, pods)
			u.index = len(p.units)
			p.units = append(p.units, u)
		}
	}
}

// complete fills in the pods of a unit, its cost, and the reason for which it cannot move.
func (p *planner) complete(u *unit, pods map[types.NamespacedName]*corev1.Pod) {
	fix := func(format string, args ...any) {
		if u.fixed == "" {
			u.fixed = fmt.Sprintf(format, args...)
		}
	}
	for _, c := range u.claims {
		if len(c.Status.ReservedFor) == 0 {
			fix("no pod uses claim %s; delete it if it is not needed", ask.NameOf(c))
		}
		for _, r := range c.Status.ReservedFor {
			name := types.NamespacedName{Namespace: c.Namespace, Name: r.Name}
			pod := pods[name]
			switch {
			case r.APIGroup != "" || r.Resource != "pods":
				fix("%s %s uses claim %s, and its pods start together", strings.TrimSuffix(r.Resource, "s"), r.Name,
					ask.NameOf(c))
			case pod == nil || pod.UID != r.UID:
				fix("pod %s of claim %s is not among the pods that you may list", name, c.Name)
			case !slices.Contains(u.pods, pod):
				u.pods = append(u.pods, pod)
			}
		}
		u.bytes += p.bytes(c)
	}
	if len(u.pods) == 0 {
		u.node = p.nodeOf(u.claims[0])
		if p.o.preempt != nil {
			// Its devices are released in a moment.
			u.victim = &victim{leaves: !p.o.preempt.Kept && !heldByOthers(u.claims)}
		}
		return
	}
	u.node = u.pods[0].Spec.NodeName
	if p.o.preempt != nil { // A tenant can bind a pod to another node, where it waits for the claim.
		u.node = cmp.Or(p.nodeOf(u.claims[0]), u.node)
	}
	u.needs = amounts{}
	var use float64
	for _, pod := range u.pods {
		if pod.Spec.NodeName == u.node {
			u.needs.add(requests(pod))
		} else if p.o.preempt == nil {
			fix("the pods of claim %s are on several nodes", ask.NameOf(u.claims[0]))
		}
		measured, ok := p.c.Use[ask.NameOf(pod)]
		switch {
		case !ok:
			u.idle = max(u.idle, 1)
		case measured >= busyAt:
			u.idle = 2
		}
		use += measured
	}
	if mean := use / float64(len(u.pods)); u.idle != 1 {
		u.use = &mean
	}
	if p.o.preempt != nil {
		p.yield(u, fix)
		return
	}
	for _, pod := range u.pods {
		p.permit(u, pod, fix)
	}
	u.budgets = slices.Compact(slices.Sorted(slices.Values(u.budgets)))
	if len(u.pods) > 1 && !p.o.Shared {
		fix("%d pods share claim %s (--include shared moves them)", len(u.pods), ask.NameOf(u.claims[0]))
	}
	for _, c := range u.claims {
		if owner := metav1.GetControllerOf(c); owner == nil && len(u.pods) == 1 {
			if !p.o.Shared {
				fix("it names claim %s, which keeps its devices until no pod uses it (--include shared moves it)",
					c.Name)
			}
			u.notes = append(u.notes,
				fmt.Sprintf("claim %s keeps its devices if the new pod comes before the old one is gone", c.Name))
		}
	}
	p.countBudgets(u, fix)
}

// permit finds why a pod cannot move, and what its eviction does beyond a restart.
func (p *planner) permit(u *unit, pod *corev1.Pod, fix func(string, ...any)) {
	owner := metav1.GetControllerOf(pod)
	kind := ""
	if owner != nil {
		kind = owner.Kind
	}
	switch {
	case pod.DeletionTimestamp != nil:
		fix("it is being deleted already; ask again once it is gone")
	case waiting.Ended(pod):
		fix("it has ended; its claims are released in a moment")
	case kind == "Node" || pod.Annotations[corev1.MirrorPodAnnotationKey] != "":
		fix("it is a static pod of its node")
	case kind == "DaemonSet":
		fix("its DaemonSet would start it on its node again")
	case kind == "Job" && !p.o.Jobs:
		fix("its Job would start over (--include jobs moves it)")
	case kind == "Job":
		u.notes = append(u.notes, "the Job's pod starts over, and the eviction can count against backoffLimit")
	case slices.Contains(recreating, kind):
	case !p.o.Unmanaged && owner == nil:
		fix("no controller would create it again (--include unmanaged moves it)")
	case !p.o.Unmanaged:
		fix("whether its %s %s creates it again is not known (--include unmanaged moves it)", kind, owner.Name)
	case owner == nil:
		u.notes = append(u.notes, "no controller creates it again")
	}
	if unknown := waiting.Unjudged(pod); len(unknown) > 0 {
		text := strings.Join(unknown, ", ")
		if !p.o.Unchecked {
			fix("its constraints are not all known here: %s (--include unchecked moves it)", text)
		}
		u.notes = append(u.notes, "not looked at: "+text)
	}
}

// recreating are the kinds of controllers that replace an evicted pod.
var recreating = []string{"ReplicaSet", "StatefulSet", "ReplicationController"}

// countBudgets finds the disruption budgets of a unit. A unit cannot move if one allows fewer evictions than it has
// pods.
func (p *planner) countBudgets(u *unit, fix func(string, ...any)) {
	if p.c.Failed(read.PodDisruptionBudgets) {
		return
	}
	counted := map[*policyv1.PodDisruptionBudget]int32{}
	for _, pod := range u.pods {
		var mine []*policyv1.PodDisruptionBudget
		for _, b := range p.c.Budgets {
			selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
			if err == nil && b.Namespace == pod.Namespace && selector.Matches(labels.Set(pod.Labels)) {
				mine = append(mine, b)
				u.budgets = append(u.budgets, ask.NameOf(b).String())
			}
		}
		if len(mine) > 1 {
			fix("%d disruption budgets count it, and the API server evicts no such pod", len(mine))
		}
		for _, b := range mine {
			if counted[b]++; counted[b] > b.Status.DisruptionsAllowed {
				fix("its disruption budget %s allows %d evictions now", b.Name, b.Status.DisruptionsAllowed)
			}
		}
	}
	u.budgets = slices.Compact(slices.Sorted(slices.Values(u.budgets)))
}

// bytes is the memory of a claim's devices, or of its shares.
func (p *planner) bytes(c *resourceapi.ResourceClaim) (sum int64) {
	for id, r := range pool.Held(c.Status.Allocation) {
		if r.Driver != p.o.Driver {
			continue
		}
		if consumed, ok := r.ConsumedCapacity["memory"]; ok {
			sum += consumed.Value()
			continue
		}
		d := p.devices[id][r.Device]
		memory := d.Capacity["memory"].Value
		sum += memory.Value()
	}
	return sum
}

// nodeOf is the node of a claim's first device.
func (p *planner) nodeOf(c *resourceapi.ResourceClaim) string {
	r := c.Status.Allocation.Devices.Results[0]
	return p.poolNode[pool.ID{Driver: r.Driver, Pool: r.Pool}]
}

// cost orders sets of units, the cheapest first: few pods, idle pods, little memory. For preemption the scheduler's own
// order comes first.
type cost struct {
	victims    victimCost
	pods, idle int
	bytes      int64
}

func costOf(set []*unit) (c cost) {
	c.victims = victimsOf(set)
	for _, u := range set {
		c.pods += len(u.pods)
		c.idle += u.idle * len(u.pods)
		c.bytes += u.bytes
	}
	return c
}

func (c cost) compare(o cost) int {
	return cmp.Or(c.victims.compare(o.victims), cmp.Compare(c.pods, o.pods),
		o.victims.started.Compare(c.victims.started),
		cmp.Compare(c.idle, o.idle), cmp.Compare(c.bytes, o.bytes))
}
