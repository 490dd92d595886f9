// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/controller"
	"gpu-dra-driver/pkg/cluster/pack"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/selector"
	"gpu-dra-driver/pkg/cluster/waiting"
	"gpu-dra-driver/pkg/cluster/why"
)

// waiter is a pod that waits for devices.
type waiter struct {
	pod   *corev1.Pod
	since time.Time
	goal  pack.Goal
	// key is equal for pods that ask for the same.
	key uint64
}

// step searches victims for at most one pod, and evicts them.
func (k *Keeper) step(ctx context.Context, now time.Time) {
	objects, ok := k.cluster.Objects()
	if !ok {
		return // It knows the cluster in a moment.
	}
	pods := read.All[*corev1.Pod](k.pods.GetStore())
	queue := k.queued(pods, now)
	k.sweep(ctx, now)
	k.follow(ctx, objects, pods, queue, now)
	if node := k.reserved(objects); node != "" {
		k.proceed(ctx, objects, pods, k.complete(objects, queue, now), node, now)
		return
	}
	lowest, found := lowestPriority(pods)
	due := func(w waiter) bool {
		return found && now.Sub(w.since) >= patience && !now.Before(k.due[w.pod.UID]) && pack.Priority(w.pod) > lowest && k.may(w.pod, now)
	}
	if !slices.ContainsFunc(queue, due) {
		return
	}
	queue = k.complete(objects, queue, now)
	for i, w := range queue {
		switch {
		case !due(w):
		case now.Before(k.alike[w.key]):
			k.due[w.pod.UID] = k.alike[w.key]
		default:
			k.serve(ctx, objects, pods, w, queue[:i], now)
			return
		}
	}
}

// lowestPriority is the lowest priority of the pods on nodes.
func lowestPriority(pods []*corev1.Pod) (lowest int32, found bool) {
	for _, p := range pods {
		if p.Spec.NodeName != "" && (!found || pack.Priority(p) < lowest) {
			lowest, found = pack.Priority(p), true
		}
	}
	return lowest, found
}

// queued returns the pods that the scheduler found no node for, in its order, and forgets others.
func (k *Keeper) queued(pods []*corev1.Pod, now time.Time) (out []waiter) {
	live := sets.New[types.UID]()
	for _, pod := range pods {
		if !waiting.Waits(pod) {
			continue
		}
		live.Insert(pod.UID)
		w := waiter{pod: pod, since: now}
		if said := waiting.SaidOf(pod); said.Unschedulable {
			w.since = said.At
		}
		out = append(out, w)
	}
	for id := range k.due {
		if !live.Has(id) {
			delete(k.due, id)
		}
	}
	for id := range k.room {
		if !live.Has(id) {
			delete(k.room, id)
		}
	}
	for key, at := range k.alike {
		if !now.Before(at) {
			delete(k.alike, key)
		}
	}
	slices.SortFunc(out, func(a, b waiter) int {
		return cmp.Or(cmp.Compare(pack.Priority(b.pod), pack.Priority(a.pod)), a.since.Compare(b.since), cmp.Compare(a.pod.UID, b.pod.UID))
	})
	return out
}

// complete adds the claims of pods, and returns those that wait for devices of the driver only.
func (k *Keeper) complete(objects controller.Objects, all []waiter, now time.Time) (out []waiter) {
	claims, classes := waiting.Index(objects.Claims), waiting.NewClasses(k.o.Driver, objects.Classes)
	for _, w := range all {
		w.goal = goalOf(objects, w.pod, claims, now)
		w.key = waiting.Key(w.pod, w.goal.Claims)
		known := w.goal.Needs.Complete()
		for _, c := range w.goal.Claims {
			for q := range selector.Requests(c.Spec.Devices.Requests) {
				known = known && classes.Selects(q.DeviceClassName) // The slices of other drivers are not known here.
			}
		}
		if known {
			out = append(out, w)
		}
	}
	return out
}

// goalOf finds the claims of a pod.
func goalOf(objects controller.Objects, pod *corev1.Pod, claims waiting.ByName, now time.Time) pack.Goal {
	c := why.Cluster{Classes: objects.Classes, Unread: why.Unread{Templates: true}}
	for _, ref := range waiting.References(pod, claims) {
		if ref.Claim != nil {
			c.Claims = append(c.Claims, ref.Claim)
		}
	}
	needs := c.Needs(why.Subject{Pod: pod}, now)
	return pack.Goal{Text: why.Subject{Pod: pod}.String(), Claims: needs.Waiting(), Pod: pod, Needs: needs}
}

// may reports whether a pod may preempt at all.
func (k *Keeper) may(pod *corev1.Pod, now time.Time) bool {
	if ptr.Deref(pod.Spec.PreemptionPolicy, corev1.PreemptLowerPriority) == corev1.PreemptNever || pack.Apart(pod) != "" || k.served(pod) {
		return false
	}
	if pod.Status.NominatedNodeName == "" {
		return true
	}
	// The scheduler has evicted others for the pod, or has found a node for it. A former leader's eviction needs its
	// time.
	return pod.Annotations[nominatedBy] == component && now.Sub(k.began) >= again
}

// served reports whether pods leave a node for a pod.
func (k *Keeper) served(pod *corev1.Pod) bool { return k.servedOn(pod) != "" }

func (k *Keeper) servedWaiter(w waiter) bool { return k.served(w.pod) }

// servedOn returns the node that pods leave for a pod, or "".
func (k *Keeper) servedOn(pod *corev1.Pod) string {
	for node, e := range k.evictions {
		if e.pod == pod.UID {
			return node
		}
	}
	return ""
}

// follow forgets evictions whose pod runs or whose time is up, and wakes the scheduler if a pod still waits.
func (k *Keeper) follow(ctx context.Context, objects controller.Objects, pods []*corev1.Pod, queue []waiter, now time.Time) {
	if len(k.evictions) == 0 {
		return
	}
	present := map[types.UID]*corev1.Pod{}
	for _, p := range pods {
		present[p.UID] = p
	}
	reserved := sets.New[types.UID]()
	for _, c := range objects.Claims {
		for _, r := range c.Status.ReservedFor {
			reserved.Insert(r.UID)
		}
	}
	for node, e := range k.evictions {
		needless := !slices.ContainsFunc(queue, func(w waiter) bool { return w.pod.UID == e.pod })
		if e.victims == nil {
			k.await(ctx, node, e, needless, now)
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
		switch {
		case !now.Before(until), needless:
			k.forget(ctx, node, e)
		case e.reservation != nil && now.Sub(e.reservation.set) >= renew:
			if err := k.annotate(ctx, node, e.reservation, now); err != nil {
				klog.FromContext(ctx).Error(err, "The GPUs that victims leave may go to other pods", "node", node)
			}
		case e.reservation != nil:
		case len(e.victims) == 0 && e.woken < mostWakes && now.Sub(e.gone) >= patience<<e.woken:
			e.woken++
			if err := k.wake(ctx, now); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "A pod waits although pods were evicted for it", "node", node)
			}
		}
	}
	if err := k.finish(ctx, queue, now); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "A pod waits although pods were evicted for it")
	}
}

// until is the least time for which an eviction is remembered once the victims are gone.
func (e *eviction) until() time.Time {
	if e.reservation != nil {
		return e.gone.Add(2 * again)
	}
	return e.gone.Add(again)
}

// forget forgets an eviction, and ends its reservation. If that fails, it is tried again.
func (k *Keeper) forget(ctx context.Context, node string, e *eviction) {
	if err := k.end(ctx, node, e); err != nil {
		klog.FromContext(ctx).Error(err, "GPUs stay reserved for a moment", "node", node)
		return
	}
	delete(k.evictions, node)
}

// await ends a reservation that is not needed any more, or that the plugin of the node does not follow.
func (k *Keeper) await(ctx context.Context, node string, e *eviction, needless bool, now time.Time) {
	if !needless && now.Sub(e.at) < taintWithin {
		return
	}
	if !needless {
		k.alone = now
		delete(k.due, e.pod)
		klog.FromContext(ctx).Info("The devices of reserved GPUs were not tainted: for an hour, pods are evicted only if the devices of "+
			"one claim suffice. Device taints need Kubernetes 1.36, or their feature gate, and the plugin needs this version",
			"node", node, "after", now.Sub(e.at))
	}
	k.forget(ctx, node, e)
}

// reserved returns a node whose reserved GPUs are all tainted, and whose victims are not evicted yet.
func (k *Keeper) reserved(objects controller.Objects) string {
	for node, e := range k.evictions {
		if e.victims == nil && tainted(objects.Slices, node, e.reservation) {
			return node
		}
	}
	return ""
}

// proceed evicts the victims for whose GPUs a reservation holds. It searches them again, because others could take
// devices before.
func (k *Keeper) proceed(ctx context.Context, objects controller.Objects, pods []*corev1.Pod, queue []waiter, node string, now time.Time) {
	e := k.evictions[node]
	at := slices.IndexFunc(queue, func(w waiter) bool { return w.pod.UID == e.pod })
	if at >= 0 {
		w := queue[at]
		answer, ok := k.search(ctx, objects, pods, w, queue[:at], pack.Rules{}, k.reservedNode(node), e.reservation.gpus, now)
		if ok && answer.Verdict == pack.Evict && sets.New(e.reservation.gpus...).HasAll(answer.GPUs...) {
			k.try(ctx, w.pod, answer, false, now)
		}
	}
	if e.victims == nil {
		k.forget(ctx, node, e)
	}
}

func (k *Keeper) reservedNode(name string) (out []*corev1.Node) {
	for _, n := range read.All[*corev1.Node](k.nodes.GetStore()) {
		if n.Name == name {
			out = append(out, n)
		}
	}
	return out
}

// part returns nodes among which victims are searched next, and the number of such parts. The scheduler looks at a
// tenth of the nodes, too. A search among all nodes of a large cluster would end at its limit.
func (k *Keeper) part(w waiter) (nodes []*corev1.Node, parts int) {
	for _, n := range read.All[*corev1.Node](k.nodes.GetStore()) {
		if k.evictions[n.Name] == nil && w.goal.Needs.Excluded(n, w.pod) == "" {
			nodes = append(nodes, n)
		}
	}
	if len(nodes) <= searched {
		return nodes, 1
	}
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	parts = (len(nodes) + searched - 1) / searched
	first := k.turn % parts * searched
	return nodes[first:min(first+searched, len(nodes))], parts
}

// search searches victims for a pod on nodes. The scheduler tries the pods before it first. It returns false if that
// cannot be judged.
func (k *Keeper) search(ctx context.Context, objects controller.Objects, pods []*corev1.Pod, w waiter, before []waiter, r pack.Rules, nodes []*corev1.Node, held []pack.GPU, now time.Time) (pack.Preemption, bool) {
	logger := klog.FromContext(ctx)
	taints, err := k.taintRules(ctx, now)
	if err != nil {
		logger.Error(err, "Cannot read DeviceTaintRules, so no pod is evicted for one that waits for devices", "pod", klog.KObj(w.pod))
		return pack.Preemption{}, false
	}
	c := &pack.Cluster{Pods: pods, AllPods: true, Budgets: read.All[*policyv1.PodDisruptionBudget](k.budgets.GetStore())}
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
	if len(pack.Unjudged(w.pod)) > 0 && !everywhere(w, read.All[*corev1.Node](k.nodes.GetStore())) {
		return pack.Preemption{}, false
	}
	r.Namespaces, r.Classes, r.Violate, r.Now = k.o.Namespaces, k.o.Classes, k.o.Violate, now
	for _, o := range before {
		// A pod that GPUs are reserved for takes no others, or leaves those.
		if o.key != w.key && len(r.Before) < mostBefore && (r.Together || !k.servedWaiter(o)) {
			r.Before = append(r.Before, o.goal)
		}
	}
	answer := pack.Preempt(ctx, c, w.goal, r, pack.Options{Driver: k.o.Driver, Limit: limit, Held: held})
	logger.V(2).Info("Searched victims for a pod that waits for devices", "pod", klog.KObj(w.pod), "answer", answer.Verdict, "node", answer.Node,
		"nodes", len(nodes), "victims", len(answer.Victims), "cut", answer.Cut, "took", time.Since(now).Round(time.Millisecond))
	return answer, true
}

// serve searches victims for a pod. It evicts them, or first reserves the GPUs that they leave one after the other.
func (k *Keeper) serve(ctx context.Context, objects controller.Objects, pods []*corev1.Pod, w waiter, before []waiter, now time.Time) {
	nodes, parts := k.part(w)
	pause := none / time.Duration(parts)
	k.due[w.pod.UID] = now.Add(pause)
	began, waits := k.room[w.pod.UID]
	r := pack.Rules{Kept: waits && now.Sub(began) >= again}
	r.Together = !k.alone.IsZero() && now.Sub(k.alone) < without
	answer, ok := k.search(ctx, objects, pods, w, before, r, nodes, nil, now)
	if !ok {
		return
	}
	if answer.Verdict != pack.Room {
		k.turn++ // Where pods leave that make room, it is looked at again.
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
		return
	}
	k.try(ctx, w.pod, answer, !r.Together && slices.ContainsFunc(before, k.servedWaiter), now)
}

// try evicts the victims of an answer, or first reserves the GPUs if they do not come free at once, or if another pod
// is served that comes first.
func (k *Keeper) try(ctx context.Context, pod *corev1.Pod, answer pack.Preemption, second bool, now time.Time) {
	k.due[pod.UID] = now.Add(refused)
	var err error
	if answer.Together && !second || k.evictions[answer.Node] != nil {
		err = k.evict(ctx, pod, answer, now)
	} else if err = k.ask(ctx, answer); err == nil {
		err = k.reserve(ctx, pod, answer, now)
	}
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Cannot evict the pods of lower priority; trying again", "pod", klog.KObj(pod), "node", answer.Node)
		k.events.Eventf(pod, corev1.EventTypeWarning, "PreemptionFailed", "Cannot evict the pods of lower priority on node %s: trying again", answer.Node)
	}
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
	if found := lacking.FindStringSubmatch(waiting.SaidOf(w.pod).Message); found != nil {
		count, err := strconv.Atoi(found[1])
		return err == nil && count == usable && w.pod.Spec.SchedulerName == corev1.DefaultSchedulerName
	}
	return false
}

// lacking is the scheduler's count of nodes that lack devices.
var lacking = regexp.MustCompile(`\b([0-9]+) cannot allocate all claims`)

// taintRules reads the DeviceTaintRules, unless that was done a moment ago.
func (k *Keeper) taintRules(ctx context.Context, now time.Time) ([]*resourceapi.DeviceTaintRule, error) {
	if !k.rules.at.IsZero() && now.Sub(k.rules.at) < refused {
		return k.rules.all, nil
	}
	all, _, err := read.TaintRules(ctx, k.dynamic)
	if err != nil {
		return nil, err
	}
	k.rules = rules{at: now}
	for i := range all {
		k.rules.all = append(k.rules.all, &all[i])
	}
	return k.rules.all, nil
}
