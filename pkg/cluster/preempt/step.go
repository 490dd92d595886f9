// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/act"
	"gpu-dra-driver/pkg/cluster/controller"
	"gpu-dra-driver/pkg/cluster/pack"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/selector"
	"gpu-dra-driver/pkg/cluster/waiting"
	"gpu-dra-driver/pkg/cluster/why"
)

// waiter is a pod that waits for devices.
type waiter struct {
	pod  *corev1.Pod
	said waiting.Said
	goal pack.Goal
	// key is equal for pods that ask for the same.
	key uint64
}

// Reconcile implements act.Actor. It searches victims for at most one pod.
func (k *Keeper) Reconcile(
	ctx context.Context, objects controller.Objects, now time.Time,
) (writes []act.Write, more bool) {
	queue := k.queued(objects.Pods, now)
	if old := k.sweep(objects, now); len(old) > 0 {
		return old, true
	}
	writes = k.follow(ctx, objects, queue, now)
	if node := k.reserved(objects); node != "" {
		return append(writes, k.proceed(ctx, objects, k.complete(objects, queue, now), node, now)...), false
	}
	lowest := lowestPriority(objects.Pods)
	due := func(w waiter) bool {
		return now.Sub(w.said.At) >= patience && !now.Before(k.due[w.pod.UID]) && pack.Priority(w.pod) > lowest &&
			k.may(w, now) && (len(k.vain) == 0 || !now.Before(k.vain[ownerOf(w.pod)].until))
	}
	if !slices.ContainsFunc(queue, due) || k.yields(ctx, now) {
		return writes, false
	}
	queue = k.complete(objects, queue, now)
	next := -1
	for i, w := range queue {
		switch {
		case !due(w):
		case now.Before(k.alike[w.key]):
			k.due[w.pod.UID] = k.alike[w.key]
		case next < 0 || cmp.Or(k.turns.Compare(w.pod.Namespace, queue[next].pod.Namespace),
			k.searched[w.pod.UID].Compare(k.searched[queue[next].pod.UID])) < 0:
			next = i
		}
	}
	if next >= 0 {
		k.turns.Take(queue[next].pod.Namespace)
		k.searched[queue[next].pod.UID] = now
		writes = append(writes, k.serve(ctx, objects, queue[next], queue[:next], now)...)
	}
	return writes, false
}

// lowestPriority is the lowest priority of the pods on nodes. No pod has a higher one than the default.
func lowestPriority(pods []*corev1.Pod) int32 {
	lowest := int32(math.MaxInt32)
	for _, p := range pods {
		if p.Spec.NodeName != "" {
			lowest = min(lowest, pack.Priority(p))
		}
	}
	return lowest
}

// queued returns the pods that the scheduler found no node for, in its order, and forgets others.
func (k *Keeper) queued(pods []*corev1.Pod, now time.Time) (out []waiter) {
	live, namespaces := sets.New[types.UID](), map[string]bool{}
	for _, pod := range pods {
		if !waiting.Waits(pod) {
			if pod.Spec.NodeName != "" {
				delete(k.first, k.ahead[pod.UID].owner)
			}
			continue
		}
		live.Insert(pod.UID)
		namespaces[pod.Namespace] = true
		out = append(out, waiter{pod: pod, said: waiting.SaidOf(pod)})
	}
	k.turns.Keep(namespaces)
	maps.DeleteFunc(k.vain, func(_ string, v vain) bool { return now.Sub(v.until) > longestVain })
	maps.DeleteFunc(k.refusals, func(_ types.UID, r refusal) bool { return !now.Before(r.until) })
	maps.DeleteFunc(k.first, func(_ string, since time.Time) bool { return now.Sub(since) >= rememberFor })
	maps.DeleteFunc(k.ahead, func(id types.UID, _ ahead) bool { return !live.Has(id) })
	for _, all := range []map[types.UID]time.Time{k.due, k.room, k.searched} {
		maps.DeleteFunc(all, func(id types.UID, _ time.Time) bool { return !live.Has(id) })
	}
	maps.DeleteFunc(k.turn, func(id types.UID, _ int) bool { return !live.Has(id) })
	maps.DeleteFunc(k.alike, func(_ uint64, at time.Time) bool { return !now.Before(at) })
	slices.SortFunc(out, func(a, b waiter) int {
		return cmp.Or(cmp.Compare(pack.Priority(b.pod), pack.Priority(a.pod)), a.said.At.Compare(b.said.At),
			cmp.Compare(a.pod.UID, b.pod.UID))
	})
	return out
}

// complete adds the claims of pods, and returns those that wait for devices of the driver only.
func (k *Keeper) complete(objects controller.Objects, all []waiter, now time.Time) (out []waiter) {
	claims, classes := waiting.Index(objects.Claims), waiting.NewClasses(k.o.Driver, objects.Classes)
	selects := map[string]bool{} // To read a selector is most of the work of a step.
	for _, w := range all {
		w.goal = goalOf(objects, w.pod, claims, now)
		w.key = waiting.Key(w.pod, w.goal.Claims)
		known := w.goal.Needs.Complete()
		for _, c := range w.goal.Claims {
			for q := range selector.Requests(c.Spec.Devices.Requests) {
				class := q.DeviceClassName
				if _, read := selects[class]; !read {
					selects[class] = classes.Selects(class)
				}
				known = known && selects[class] // The slices of other drivers are not known here.
			}
		}
		if known {
			out = append(out, w)
		}
	}
	return out
}

// errNoTemplates means that claims of templates exist, so no template is read.
var errNoTemplates = errors.New("templates are not read")

// goalOf finds the claims of a pod.
func goalOf(objects controller.Objects, pod *corev1.Pod, claims waiting.ByName, now time.Time) pack.Goal {
	c := why.Cluster{
		Claims:  waiting.Made(pod, claims),
		Classes: objects.Classes,
		States:  read.States{read.ResourceClaimTemplates: errNoTemplates},
	}
	needs := c.Needs(why.Subject{Pod: pod}, now)
	return pack.Goal{Text: why.Subject{Pod: pod}.String(), Claims: needs.Waiting(), Pod: pod, Needs: needs}
}

// may reports whether a pod may preempt at all.
func (k *Keeper) may(w waiter, now time.Time) bool {
	pod := w.pod
	never := ptr.Deref(pod.Spec.PreemptionPolicy, corev1.PreemptLowerPriority) == corev1.PreemptNever
	if never || k.served(w) || !waitsForDevices(w, now) {
		return false
	}
	if pod.Status.NominatedNodeName == "" {
		return true
	}
	// The scheduler has evicted others for the pod, or has found a node for it. A former leader's eviction needs its
	// time.
	ours := func(f metav1.ManagedFieldsEntry) bool { return f.Manager == component }
	return slices.ContainsFunc(pod.ManagedFields, ours) && now.Sub(k.began) >= again
}

// waitsForDevices reports whether a pod waits for devices only, on at least one node, by the scheduler's own word. Such
// pods are served, and take what fits them before those of lower priority. One that the scheduler has not tried yet is
// one of them for a moment.
func waitsForDevices(w waiter, now time.Time) bool {
	untried := !w.said.Tried && now.Sub(w.said.At) < patience
	return pack.Apart(w.pod) == "" && (w.said.Unschedulable && w.said.Lacks() > 0 || untried)
}

// before returns the pods that the scheduler tries before another one, and that take devices first. A pod that stayed
// one of them for a time may never start, and neither may those that replace it.
func (k *Keeper) before(w waiter, first []waiter, together bool, now time.Time) (out []pack.Goal) {
	for _, o := range first {
		a, known := k.ahead[o.pod.UID]
		if !known {
			a.owner = ownerOf(o.pod)
			if k.first[a.owner].IsZero() {
				k.first[a.owner] = now
			}
			a.since = k.first[a.owner]
			k.ahead[o.pod.UID] = a
		}
		// A pod that GPUs are reserved for takes no others, or leaves those.
		if o.key != w.key && len(out) < mostBefore && (together || !k.served(o)) &&
			waitsForDevices(o, now) && now.Sub(a.since) < aheadFor {
			out = append(out, o.goal)
		}
	}
	return out
}

// ownerOf is equal for pods without a node that replace each other: pods of one controller, or alike ones without a
// controller. Others can name a controller, but not in its namespace.
func ownerOf(pod *corev1.Pod) string {
	if owner := metav1.GetControllerOf(pod); owner != nil {
		return pod.Namespace + "/" + string(owner.UID)
	}
	return fmt.Sprint(pod.Namespace, "/", waiting.Key(pod, nil))
}

// served reports whether pods leave a node for a pod.
func (k *Keeper) served(w waiter) bool { return k.servedOn(w) != "" }

// servedOn returns the node that pods leave for a pod, or "".
func (k *Keeper) servedOn(w waiter) string {
	for node, e := range k.evictions {
		if e.pod == w.pod.UID {
			return node
		}
	}
	return ""
}

// follow forgets evictions whose pod runs or whose time is up, and wakes the scheduler if a pod still waits.
func (k *Keeper) follow(
	ctx context.Context, objects controller.Objects, queue []waiter, now time.Time,
) (writes []act.Write) {
	if len(k.evictions) == 0 {
		return nil
	}
	present := map[types.UID]*corev1.Pod{}
	for _, p := range objects.Pods {
		present[p.UID] = p
	}
	reserved := users(objects.Claims)
	for node, e := range k.evictions {
		at := slices.IndexFunc(queue, func(w waiter) bool { return w.pod.UID == e.pod })
		needless := at < 0
		if e.victims == nil {
			late := now.Sub(e.at) >= taintWithin
			if late && !needless && !e.ends {
				k.alone = now
				delete(k.due, e.pod)
				klog.FromContext(ctx).Info("The devices of reserved GPUs were not tainted: for an hour, pods are "+
					"evicted only if the devices of one claim suffice. Device taints need Kubernetes 1.36, or their "+
					"feature gate, and the plugin needs this version", "node", node, "after", now.Sub(e.at))
			}
			if late || needless {
				e.ends = true
				writes = append(writes, k.forget(node, e)...)
			}
			continue
		}
		// A pod that has not left a minute after its grace period may never leave.
		until := e.at.Add(again)
		for id := range e.victims {
			victim := present[id]
			if victim == nil && !reserved.Has(id) {
				delete(e.victims, id)
			}
			if victim != nil && victim.DeletionTimestamp != nil && victim.DeletionTimestamp.Add(again).After(until) {
				until = victim.DeletionTimestamp.Add(again)
			}
		}
		if len(e.victims) == 0 && e.gone.IsZero() {
			e.gone = now
		}
		if !e.gone.IsZero() && e.until().After(until) {
			until = e.until()
		}
		if longest := e.at.Add(rememberFor); until.After(longest) {
			until = longest
		}
		switch {
		case !now.Before(until), needless:
			k.judge(e, present[e.pod])
			writes = append(writes, k.forget(node, e)...)
		case e.reservation != nil && now.Sub(e.reservation.set) >= renew:
			writes = append(writes, on(node, renewal{k, node, e.reservation})...)
		case e.reservation != nil:
		case len(e.victims) == 0 && e.woken < mostWakes && now.Sub(e.gone) >= patience<<e.woken:
			e.woken++
			writes = append(writes, k.wake(queue[at].pod, now)...)
		}
	}
	return append(writes, k.finish(queue, now)...)
}

// users returns the consumers of claims.
func users(claims []*resourceapi.ResourceClaim) sets.Set[types.UID] {
	out := sets.New[types.UID]()
	for _, c := range claims {
		for _, r := range c.Status.ReservedFor {
			out.Insert(r.UID)
		}
	}
	return out
}

// judge remembers an eviction whose pod did not start, or forgets the earlier ones of its owner.
func (k *Keeper) judge(e *eviction, pod *corev1.Pod) {
	switch {
	case e.judged:
	case pod != nil && pod.Spec.NodeName != "":
		delete(k.vain, e.owner)
	default:
		count := k.vain[e.owner].count
		k.vain[e.owner] = vain{count + 1, e.at.Add(min(again<<min(count, 6), longestVain))}
	}
	e.judged = true
}

// until is the least time for which an eviction is remembered once the victims are gone.
func (e *eviction) until() time.Time {
	if e.reservation != nil {
		return e.gone.Add(2 * again)
	}
	return e.gone.Add(again)
}

// reserved returns a node whose reserved GPUs are all tainted, and whose victims are not evicted yet.
func (k *Keeper) reserved(objects controller.Objects) string {
	for node, e := range k.evictions {
		if e.victims == nil && !e.ends && tainted(objects.Slices, node, e.reservation) {
			return node
		}
	}
	return ""
}

// proceed evicts the victims for whose GPUs a reservation holds, or ends the reservation. It searches them again,
// because others could take devices before.
func (k *Keeper) proceed(
	ctx context.Context, objects controller.Objects, queue []waiter, node string, now time.Time,
) []act.Write {
	e := k.evictions[node]
	if at := slices.IndexFunc(queue, func(w waiter) bool { return w.pod.UID == e.pod }); at >= 0 {
		w := queue[at]
		nodes := slices.DeleteFunc(slices.Clone(objects.Nodes), func(n *corev1.Node) bool { return n.Name != node })
		answer, ok := k.search(ctx, objects, w, queue[:at], pack.Rules{}, nodes, e.reservation.gpus, now)
		if ok && answer.Verdict == pack.Evict && sets.New(e.reservation.gpus...).HasAll(answer.GPUs...) {
			return k.attempt(w.pod, answer, false, now)
		}
	}
	return k.forget(node, e)
}

// part returns nodes among which victims are searched next, and the number of such parts. The scheduler looks at a
// tenth of the nodes, too. A search among all nodes of a large cluster would end at its limit.
func (k *Keeper) part(ctx context.Context, objects controller.Objects, w waiter) (nodes []*corev1.Node, parts int) {
	repelled := waiting.Repelled(w.pod, objects.Pods, objects.Nodes)
	for _, n := range objects.Nodes {
		if k.evictions[n.Name] == nil && !repelled.Has(n.Name) && w.goal.Needs.Excluded(n, w.pod) == "" {
			nodes = append(nodes, n)
		}
	}
	if len(nodes) > searched {
		if c, ok := k.clusterOf(ctx, objects, w, nodes); ok {
			nodes = pack.Narrow(ctx, c, w.goal, k.rulesOf(pack.Rules{}), limit)
		}
	}
	if len(nodes) <= searched {
		return nodes, 1
	}
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	parts = (len(nodes) + searched - 1) / searched
	first := k.turn[w.pod.UID] % parts * searched
	return nodes[first:min(first+searched, len(nodes))], parts
}

// clusterOf returns the cluster with the given nodes only. It returns false if it cannot be judged.
func (k *Keeper) clusterOf(
	ctx context.Context, objects controller.Objects, w waiter, nodes []*corev1.Node,
) (*pack.Cluster, bool) {
	taints, err := k.rules.All(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err,
			"Cannot read DeviceTaintRules, so no pod is evicted for one that waits for devices",
			"pod", klog.KObj(w.pod))
		return nil, false
	}
	c := &pack.Cluster{Pods: objects.Pods, Budgets: read.All[*policyv1.PodDisruptionBudget](k.budgets.GetStore())}
	c.States = read.States{read.Pods: nil}
	c.Nodes = nodes
	c.Claims, c.Classes, c.Rules = objects.Claims, objects.Classes, taints
	names := sets.New[string]()
	for _, n := range nodes {
		names.Insert(n.Name)
	}
	for _, s := range objects.Slices {
		if names.Has(s.Node) {
			c.Slices = append(c.Slices, s)
		}
	}
	if objects.Server.Minor != 0 {
		c.ServerVersion = objects.Server.String()
	}
	return c, true
}

// rulesOf adds the settings and the refusals to the rules of a search.
func (k *Keeper) rulesOf(r pack.Rules) pack.Rules {
	r.Namespaces, r.Classes, r.Violate, r.Refused = k.o.Namespaces, k.o.Classes, k.o.Violate, sets.New[types.UID]()
	for id, one := range k.refusals {
		if one.spared {
			r.Refused.Insert(id)
		}
	}
	return r
}

// search searches victims for a pod on nodes. The scheduler tries the pods before it first. It returns false if that
// cannot be judged.
func (k *Keeper) search(
	ctx context.Context, objects controller.Objects, w waiter, before []waiter, r pack.Rules, nodes []*corev1.Node,
	held []pack.GPU, now time.Time,
) (pack.Preemption, bool) {
	c, ok := k.clusterOf(ctx, objects, w, nodes)
	if !ok || len(waiting.Unjudged(w.pod)) > 0 && !everywhere(w, objects.Nodes) {
		return pack.Preemption{}, false
	}
	r = k.rulesOf(r)
	r.Now, r.Before = now, k.before(w, before, r.Together, now)
	r.Ordinary = k.ordinary(ctx, objects, w.pod, nodes, now)
	answer := pack.Preempt(ctx, c, w.goal, r, pack.Options{Driver: k.o.Driver, Limit: limit, Held: held})
	klog.FromContext(ctx).V(2).Info("Searched victims for a pod that waits for devices", "pod", klog.KObj(w.pod),
		"answer", answer.Verdict, "node", answer.Node, "nodes", len(nodes), "victims", len(answer.Victims),
		"cut", answer.Cut, "took", time.Since(now).Round(time.Millisecond))
	return answer, true
}

// serve searches victims for a pod. It evicts them, or first reserves the GPUs that they leave one after the other.
func (k *Keeper) serve(
	ctx context.Context, objects controller.Objects, w waiter, before []waiter, now time.Time,
) []act.Write {
	nodes, parts := k.part(ctx, objects, w)
	pause := none / time.Duration(parts)
	k.due[w.pod.UID] = now.Add(pause)
	began, waits := k.room[w.pod.UID]
	r := pack.Rules{Kept: waits && now.Sub(began) >= again}
	r.Together = !k.alone.IsZero() && now.Sub(k.alone) < without
	answer, ok := k.search(ctx, objects, w, before, r, nodes, nil, now)
	if !ok {
		return nil
	}
	if answer.Verdict != pack.Room {
		k.turn[w.pod.UID]++ // Where pods leave that make room, it is looked at again.
	}
	switch {
	case answer.Verdict != pack.Room:
		delete(k.room, w.pod.UID)
	case !waits:
		k.room[w.pod.UID] = now
	}
	if answer.Verdict != pack.Evict {
		if answer.Verdict == pack.NoVictims {
			k.alike[w.key] = now.Add(pause)
		}
		return nil
	}
	return k.attempt(w.pod, answer, !r.Together && slices.ContainsFunc(before, k.served), now)
}

// attempt returns the eviction of the victims of an answer. The GPUs are reserved first if they do not come free at
// once, or if another pod is served that comes first.
func (k *Keeper) attempt(pod *corev1.Pod, answer pack.Preemption, second bool, now time.Time) []act.Write {
	k.due[pod.UID] = now.Add(refused)
	return []act.Write{{
		About:  corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Effect: attempt{k, pod, answer, (!answer.Together || second) && k.evictions[answer.Node] == nil},
	}}
}

// everywhere reports whether the scheduler found devices missing, and nothing else, on all nodes that the pod can use.
// Then its volumes, ports and other constraints hold on each of them.
func everywhere(w waiter, nodes []*corev1.Node) bool {
	usable := 0
	for _, n := range nodes {
		if w.goal.Needs.Excluded(n, w.pod) == "" {
			usable++
		}
	}
	return w.said.Lacks() == usable && w.pod.Spec.SchedulerName == corev1.DefaultSchedulerName
}
