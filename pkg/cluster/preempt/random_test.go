// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/internal/testing/whytest"
)

// constraint is the reason besides devices for which the scheduler places a pod nowhere, or not on all nodes.
type constraint string

const (
	devicesOnly constraint = ""
	volume      constraint = "an unbound volume"
	spread      constraint = "a strict spread"
	cpu         constraint = "too much CPU"
	noScheduler constraint = "a scheduler that does not exist"
	labelled    constraint = "Kueue's label"
	gated       constraint = "a scheduling gate"
	// hidden is a reason that the scheduler does not name.
	hidden constraint = "a hidden reason"
)

// tenant is a pod of the random test, with the facts that the keeper is to find out.
type tenant struct {
	pod   *corev1.Pod
	claim *resourceapi.ResourceClaim
	gpus  int
	constraint
	// exempt says that it may not be evicted.
	exempt bool
	// owned means that a controller replaces it.
	owned bool
	// refusal is the answer of the API server to its eviction.
	refusal error
	since   time.Time
	// excused is the time until which it need not be served: the API server failed, or an eviction has not helped.
	excused time.Time
	// waited is for how long a victim was possible, and no pod was evicted.
	waited time.Duration
}

func (a *tenant) priority() int32 { return *a.pod.Spec.Priority }
func (a *tenant) waits() bool     { return a.pod.Spec.NodeName == "" && a.pod.DeletionTimestamp == nil }

// world is a random cluster with a small model of the scheduler, and of controllers that replace pods.
type world struct {
	*env
	*rand.Rand
	seed    uint64
	tenants []*tenant
	made    int
	devices map[string][]resourceapi.DeviceRequestAllocationResult
	// fails means that the API server fails at times, and late that the scheduler is.
	fails, late bool
	// held are the reserved GPUs at the begin of a step, because the client is locked while it reacts.
	held []string
	// nominated is the pod whose nomination was written last in this step.
	nominated *tenant
	// attempts are the evictions by owner, and placed counts those whose pod started.
	attempts map[types.UID]*attempted
	count    [2]int
}

// attempted are the evictions for the pods of an owner.
type attempted struct {
	at   time.Time
	by   *tenant
	vain int
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func (w *world) chance(percent int) bool { return w.IntN(100) < percent }

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		seed: seed, Rand: rand.New(rand.NewPCG(seed, 52)), devices: map[string][]resourceapi.DeviceRequestAllocationResult{},
		attempts: map[types.UID]*attempted{},
	}
	w.env = newEnv(t, Options{Namespaces: []string{"exempt"}, Classes: []string{"exempt"}, Violate: w.chance(20)})
	w.deaf, w.fails, w.late = w.chance(10), w.chance(20), w.chance(30)
	w.client.PrependReactor("*", "pods", w.react)
	for i := range 1 + w.IntN(4) {
		w.node(fmt.Sprint("n", i), 1+w.IntN(4))
	}
	for _, s := range w.Slices {
		for _, d := range s.Spec.Devices {
			if kind := d.Attributes["type"].StringValue; kind != nil && *kind == "gpu" {
				w.devices[*s.Spec.NodeName] = append(w.devices[*s.Spec.NodeName], resourceapi.DeviceRequestAllocationResult{
					Request: "gpu", Driver: slicetest.Driver, Pool: s.Spec.Pool.Name, Device: d.Name,
				})
			}
		}
	}
	return w
}

// arrive adds a random pod that waits.
func (w *world) arrive(gpus int) *tenant {
	a := &tenant{gpus: gpus, owned: w.chance(70), since: w.now}
	name := fmt.Sprint("p", w.made)
	w.made++
	a.claim = whytest.Claim(name, whytest.GPUs, int64(gpus))
	p := whytest.Pod(name, a.claim)
	a.pod = p
	p.Namespace, p.CreationTimestamp = pick(w.Rand, "a", "a", "b", "c"), metav1.NewTime(w.now)
	p.Spec.Priority, p.Spec.SchedulerName, p.Status.Phase = new(int32(w.IntN(3+min(w.made, 20)/4))), corev1.DefaultSchedulerName, corev1.PodPending
	p.Spec.TerminationGracePeriodSeconds = new(pick(w.Rand, int64(0), 1, 1, 30, 100, 3600, 365*24*3600))
	p.Labels = map[string]string{"app": pick(w.Rand, "x", "y")}
	if w.chance(30) {
		a.constraint = pick(w.Rand, volume, spread, cpu, noScheduler, labelled, gated, hidden)
	}
	switch a.constraint {
	case spread:
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{WhenUnsatisfiable: corev1.DoNotSchedule, TopologyKey: corev1.LabelHostname}}
	case noScheduler:
		p.Spec.SchedulerName = "gone"
	case labelled:
		p.Labels["kueue.x-k8s.io/queue-name"] = "q" // No Workload exists, so it does not exempt.
	case gated:
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}}
	}
	if w.chance(10) {
		p.Spec.PreemptionPolicy = new(corev1.PreemptNever)
	}
	if w.chance(15) { // It keeps others away from its node.
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}},
				Namespaces: []string{"a", "b", "c", "exempt"},
			}},
		}}
		p.Labels["app"] = "y"
	}
	if w.chance(15) {
		a.exempt = true
		switch w.IntN(4) {
		case 0:
			p.Namespace = "exempt"
		case 1:
			p.Spec.PriorityClassName = "exempt"
		case 2: // It does not exempt, because static pods have no claims.
			p.Annotations, a.owned, a.exempt = map[string]string{corev1.MirrorPodAnnotationKey: "static"}, false, false
		case 3:
			*p.Spec.Priority = 2_000_000_000
		}
	}
	if pods := (schema.GroupResource{Resource: "pods"}); w.chance(25) {
		a.refusal = pick[error](w.Rand, byBudget(), apierrors.NewForbidden(pods, name, errors.New("no")),
			apierrors.NewInternalError(errors.New("failed calling webhook")), apierrors.NewBadRequest(`admission webhook "w" denied the request`),
			apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, name, nil))
	}
	if a.owned {
		replaces(types.UID("rs-" + name))(p)
	}
	w.enter(a)
	return a
}

// enter adds a pod that waits.
func (w *world) enter(a *tenant) {
	a.claim.Namespace = a.pod.Namespace
	w.tenants, w.Claims = append(w.tenants, a), append(w.Claims, a.claim)
	w.set(a)
}

// set puts a new version of a pod into the cache.
func (w *world) set(a *tenant) {
	w.made++
	a.pod = a.pod.DeepCopy()
	a.pod.ResourceVersion = fmt.Sprint(w.made)
	trimmed, err := kept.Trim(a.pod.DeepCopy())
	w.put(err)
	w.put(w.pods.Update(trimmed))
}

// leave removes a pod and its claim.
func (w *world) leave(a *tenant) {
	w.put(w.pods.Delete(a.pod))
	w.tenants = slices.DeleteFunc(w.tenants, func(o *tenant) bool { return o == a })
	w.Claims = slices.DeleteFunc(w.Claims, func(c *resourceapi.ResourceClaim) bool { return c.UID == a.claim.UID })
}

// replace has the controller of a pod create another one.
func (w *world) replace(a *tenant) {
	if !a.owned {
		return
	}
	name := fmt.Sprint("p", w.made)
	w.made++
	b := *a
	b.claim = whytest.Claim(name, whytest.GPUs, int64(a.gpus))
	b.pod = a.pod.DeepCopy()
	b.pod.Name, b.pod.UID, b.pod.Spec.ResourceClaims = name, types.UID(name), whytest.Pod(name, b.claim).Spec.ResourceClaims
	b.pod.Spec.NodeName, b.pod.DeletionTimestamp, b.pod.CreationTimestamp = "", nil, metav1.NewTime(w.now)
	b.pod.Status, b.since, b.waited = corev1.PodStatus{Phase: corev1.PodPending}, w.now, 0
	w.enter(&b)
}

// free returns the GPUs of a node that are neither in use nor reserved.
func (w *world) free(node string, reserved []string) (out []resourceapi.DeviceRequestAllocationResult) {
	used := map[string]bool{}
	for _, a := range w.tenants {
		if a.pod.Spec.NodeName == node {
			for _, r := range a.claim.Status.Allocation.Devices.Results {
				used[r.Device] = true
			}
		}
	}
	for _, d := range w.devices[node] {
		if !used[d.Device] && !slices.Contains(reserved, node+"/"+d.Device) {
			out = append(out, d)
		}
	}
	return out
}

// repelled reports whether anti-affinity keeps a pod away from a node: its own, or that of a running pod.
func (w *world) repelled(a *tenant, node string) bool {
	return slices.ContainsFunc(w.tenants, func(o *tenant) bool {
		return o.pod.Spec.NodeName == node &&
			(a.pod.Labels["app"] == "x" && o.pod.Spec.Affinity != nil || o.pod.Labels["app"] == "x" && a.pod.Spec.Affinity != nil)
	})
}

// bind starts a pod on the first node with room.
func (w *world) bind(a *tenant, reserved []string) bool {
	if a.constraint != devicesOnly && a.constraint != labelled {
		return false
	}
	for _, n := range w.Nodes {
		if found := w.free(n.Name, reserved); len(found) >= a.gpus && !w.repelled(a, n.Name) {
			c := a.claim.DeepCopy()
			c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: found[:a.gpus]}}
			c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: a.pod.Name, UID: a.pod.UID}}
			w.Claims[slices.Index(w.Claims, a.claim)], a.claim = c, c
			a.pod.Spec.NodeName, a.pod.Status = n.Name, corev1.PodStatus{Phase: corev1.PodRunning, StartTime: new(metav1.NewTime(w.now))}
			w.set(a)
			return true
		}
	}
	return false
}

// inOrder are the pods that wait, in the order of the scheduler.
func (w *world) inOrder() (out []*tenant) {
	for _, a := range w.tenants {
		if a.waits() {
			out = append(out, a)
		}
	}
	slices.SortStableFunc(out, func(a, b *tenant) int {
		return cmp.Or(cmp.Compare(b.priority(), a.priority()), a.since.Compare(b.since))
	})
	return out
}

// schedule tries all pods, as the scheduler does after each event.
func (w *world) schedule() {
	if w.held = nil; !w.deaf {
		w.held = w.reserved()
	}
	for _, a := range w.inOrder() {
		if w.bind(a, w.held) || a.constraint == noScheduler || a.constraint == gated {
			continue
		}
		away := 0
		for _, n := range w.Nodes {
			if w.repelled(a, n.Name) {
				away++
			}
		}
		var all []string
		say := func(count int, text string) {
			if count > 0 {
				all = append(all, fmt.Sprint(count, text))
			}
		}
		switch nodes := len(w.Nodes); a.constraint {
		case volume:
			all = []string{"pod has unbound immediate PersistentVolumeClaims. not found"}
		case cpu:
			say(nodes, " Insufficient cpu")
		case spread:
			say(1, " node(s) didn't match pod topology spread constraints")
			say(nodes-1, " cannot allocate all claims")
		default:
			say(away, " node(s) didn't satisfy existing pods anti-affinity rules")
			say(nodes-away, " cannot allocate all claims")
		}
		message := fmt.Sprintf("0/%d nodes are available: %s.", len(w.Nodes), strings.Join(all, ", "))
		if len(a.pod.Status.Conditions) > 0 && a.pod.Status.Conditions[0].Message == message {
			continue
		}
		since := metav1.NewTime(w.now)
		if len(a.pod.Status.Conditions) > 0 {
			since = a.pod.Status.Conditions[0].LastTransitionTime
		}
		a.pod.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, LastTransitionTime: since, Message: message,
		}}
		w.set(a)
	}
}

// named returns a pod, or nil.
func (w *world) named(namespace, name string) *tenant {
	at := slices.IndexFunc(w.tenants, func(a *tenant) bool { return a.pod.Namespace == namespace && a.pod.Name == name })
	if at < 0 {
		return nil
	}
	return w.tenants[at]
}

// react is the API server.
func (w *world) react(action clienttesting.Action) (bool, runtime.Object, error) {
	pods := schema.GroupResource{Resource: "pods"}
	switch act := action.(type) {
	case clienttesting.PatchActionImpl:
		return true, &corev1.Pod{}, w.nominate(w.named(act.Namespace, act.Name), act.GetPatch())
	case clienttesting.CreateActionImpl:
		one := act.GetObject().(*policyv1.Eviction)
		a := w.named(act.Namespace, one.Name)
		switch {
		case a == nil:
			return true, nil, apierrors.NewNotFound(pods, one.Name)
		case w.fails && w.chance(10):
			w.excuse()
			return true, nil, pick[error](w.Rand, apierrors.NewTooManyRequests("slow down", 1), apierrors.NewTimeoutError("no quorum", 1), errors.New("connection refused"))
		case a.refusal != nil:
			if apierrors.IsInternalError(a.refusal) {
				w.excuse()
			}
			return true, nil, a.refusal
		case len(one.DeleteOptions.DryRun) == 0:
			w.evict(a)
		}
		return true, nil, nil
	case clienttesting.DeleteActionImpl:
		if a := w.named(act.Namespace, act.Name); a != nil && len(act.DeleteOptions.DryRun) == 0 {
			w.evict(a)
		}
		return true, nil, nil
	}
	return false, nil, nil
}

// excuse forgives all pods for a time after the API server has failed.
func (w *world) excuse() {
	for _, a := range w.tenants {
		a.excused = later(a.excused, w.now.Add(again))
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// nominate is the fence before an eviction: the pod can have changed during the search.
func (w *world) nominate(a *tenant, patch []byte) error {
	pods := schema.GroupResource{Resource: "pods"}
	w.nominated = nil
	if a == nil {
		return apierrors.NewNotFound(pods, "gone")
	}
	switch w.IntN(20) {
	case 0:
		w.leave(a)
		w.replace(a)
		return apierrors.NewNotFound(pods, a.pod.Name)
	case 1: // Another pod ends, and the scheduler is faster.
		if at := slices.IndexFunc(w.tenants, func(o *tenant) bool { return o.pod.Spec.NodeName != "" && o.gpus >= a.gpus }); at >= 0 {
			w.leave(w.tenants[at])
		}
		if !w.bind(a, w.held) {
			w.set(a)
		}
	case 2:
		a.excused = later(a.excused, w.now.Add(again))
		return apierrors.NewForbidden(pods, a.pod.Name, errors.New("a policy"))
	}
	var sent struct {
		Metadata struct{ UID, ResourceVersion string }
		Status   struct{ NominatedNodeName string }
	}
	w.put(json.Unmarshal(patch, &sent))
	if sent.Metadata.UID != string(a.pod.UID) || sent.Metadata.ResourceVersion != "" && sent.Metadata.ResourceVersion != a.pod.ResourceVersion {
		a.excused = later(a.excused, w.now.Add(again))
		return apierrors.NewConflict(pods, a.pod.Name, errors.New("it has changed"))
	}
	w.nominated = a
	return nil
}

// evict checks an eviction, and starts it.
func (w *world) evict(victim *tenant) {
	by := w.nominated
	node := victim.pod.Spec.NodeName
	if by == nil {
		w.t.Fatalf("seed %d, %s: %s is evicted for a pod that was not nominated", w.seed, w.now.Sub(noon), victim.pod.Name)
	}
	fail := func(format string, args ...any) {
		w.t.Errorf("seed %d, %s: %s of priority %d is evicted for %s of priority %d, "+format,
			append([]any{w.seed, w.now.Sub(noon), victim.pod.Name, victim.priority(), by.pod.Name, by.priority()}, args...)...)
	}
	switch {
	case !by.waits():
		fail("which does not wait")
	case victim.exempt:
		fail("although it is exempt")
	case victim.priority() >= by.priority():
		fail("which is not higher")
	case by.constraint != devicesOnly && by.constraint != hidden && by.constraint != labelled:
		fail("which has %s", by.constraint)
	case by.pod.Spec.PreemptionPolicy != nil:
		fail("which preempts never")
	case w.repelled(by, node):
		fail("which is kept away from the node")
	case victim.pod.DeletionTimestamp != nil:
		fail("although it leaves already")
	}
	owner := by.pod.UID
	if c := metav1.GetControllerOf(by.pod); c != nil {
		owner = c.UID
	}
	last := w.attempts[owner]
	if last == nil || last.at != w.now || last.by != by {
		next := &attempted{at: w.now, by: by}
		w.count[0]++
		if last != nil && last.by.pod.Spec.NodeName == "" {
			next.vain = last.vain + 1
			if pause := w.now.Sub(last.at); pause < min(again<<last.vain, longestVain) {
				fail("%s after another one that did not help; %d before it", pause, last.vain)
			}
		}
		w.attempts[owner] = next
	}
	grace := time.Duration(*victim.pod.Spec.TerminationGracePeriodSeconds) * time.Second
	// The keeper waits for slow victims for ten minutes, and then for as long as the back-off says.
	until := w.now.Add(again<<w.attempts[owner].vain + again)
	by.excused = later(by.excused, later(until, w.now.Add(min(grace+again, rememberFor)+again)))
	victim.pod.DeletionTimestamp = new(metav1.NewTime(w.now.Add(grace)))
	w.set(victim)
	w.replace(victim)
}

// overdue checks that no pod with a possible victim waits for long.
func (w *world) overdue(step time.Duration) {
	order := w.inOrder()
	for i, a := range order {
		eligible := a.constraint == devicesOnly && a.pod.Spec.PreemptionPolicy == nil && !w.now.Before(a.excused) && w.now.Sub(a.since) > patience
		if eligible {
			eligible = w.possible(a, order[:i])
		}
		if a.waited += step; !eligible {
			a.waited = 0
		}
		if a.waited > 2*time.Minute {
			w.t.Errorf("seed %d, %s: pod %s waits for %s although pods could be evicted for it", w.seed, w.now.Sub(noon), a.pod.Name, a.waited)
			a.excused = w.now.Add(time.Hour)
			w.describe()
		}
	}
}

// describe logs the pods.
func (w *world) describe() {
	for _, a := range w.tenants {
		w.t.Logf("%s/%s on node %q, priority %d, %d GPUs, %q, exempt %v, its eviction %v, waits since %s, next search at %s: %v", a.pod.Namespace, a.pod.Name,
			a.pod.Spec.NodeName, a.priority(), a.gpus, a.constraint, a.exempt, a.refusal, a.since.Sub(noon), w.due[a.pod.UID].Sub(noon), a.pod.Status.Conditions)
	}
}

// possible reports whether pods could be evicted for a pod on a node, so that neither pods that leave nor those before
// it matter.
func (w *world) possible(a *tenant, before []*tenant) bool {
	found, most := false, 0
	for _, n := range w.Nodes {
		if w.repelled(a, n.Name) {
			if a.pod.Spec.Affinity != nil {
				return false // Where its own constraints hold is not known.
			}
			continue
		}
		now := len(w.free(n.Name, nil))
		soon, all := now, now
		for _, o := range w.tenants {
			if o.pod.Spec.NodeName != n.Name {
				continue
			}
			switch at := o.pod.DeletionTimestamp; {
			case at != nil && at.Sub(w.now) <= 2*time.Minute:
				soon += o.gpus
			case at == nil && !o.exempt && o.refusal == nil && o.priority() < a.priority():
				all += o.gpus
			}
		}
		if soon >= a.gpus {
			return false
		}
		if all < a.gpus || w.evictions[n.Name] != nil || w.deaf && a.gpus > 1 {
			continue
		}
		found, most = true, max(most, all)
	}
	if found {
		for _, o := range before {
			// The keeper counts a pod before another one for five minutes, from their first search on.
			counts := o.constraint == devicesOnly || o.constraint == hidden || o.constraint == labelled || o.constraint == spread
			if counts && o.gpus <= most && min(w.now.Sub(o.since), w.now.Sub(a.since)) < aheadFor+2*again {
				return false
			}
		}
	}
	return found
}

// run has the cluster live for ten minutes.
func (w *world) run() {
	for range 3 + w.IntN(8) {
		w.arrive(1 + w.IntN(3))
	}
	w.schedule()
	hopeless := pick(w.Rand, 0, 0, 0, 2, 5, 40)
	for i := range hopeless {
		a := w.arrive(5 + i)
		a.constraint, a.pod.Spec.SchedulingGates, a.pod.Spec.SchedulerName = hidden, nil, corev1.DefaultSchedulerName
		*a.pod.Spec.Priority = 9
		w.set(a)
	}
	var step time.Duration
	for since := time.Duration(0); since < 10*time.Minute; since += step {
		if step = tick; since > 3*time.Minute && hopeless < 10 {
			step = 5 * tick
		}
		w.now = w.now.Add(step)
		for _, a := range slices.Clone(w.tenants) {
			switch at := a.pod.DeletionTimestamp; {
			case at != nil && !at.After(w.now):
				w.leave(a)
			case at != nil:
			case w.IntN(1000) < 3 || a.constraint == hidden && a.gpus < 5 && w.IntN(1000) < 30: // Its work is done, or its owner deletes it.
				w.leave(a)
				w.replace(a)
			case w.IntN(1000) < 3 && (a.constraint == volume || a.constraint == cpu):
				a.constraint = devicesOnly
			}
		}
		if w.chance(7) && len(w.tenants) < 25+hopeless {
			w.arrive(1 + w.IntN(3))
		}
		if !w.late || w.chance(60) {
			w.schedule()
		}
		for _, one := range w.attempts {
			if one.vain >= 0 && one.by.pod.Spec.NodeName != "" {
				w.count[1]++
				one.vain = -1
			}
		}
		w.nominated = nil
		w.loop.Step(w.t.Context(), w.now)
		w.client.ClearActions()
		for len(w.events.Events) > 0 {
			<-w.events.Events
		}
		w.overdue(step)
		for node, e := range w.evictions {
			if w.now.Sub(e.at) > rememberFor+again {
				w.t.Errorf("seed %d, %s: node %s is kept for the eviction of %s ago", w.seed, w.now.Sub(noon), node, w.now.Sub(e.at))
			}
		}
		if w.t.Failed() {
			return
		}
	}
}

// TestKeeper_RandomAttacks_EachEvictionHelpsOrIsNotRepeated has tenants with other constraints than devices, pods that
// never fit or start, anti-affinity, long grace periods, refused evictions and labels that exempt. Pods are deleted or bound
// during the search, and nominations fail. Every eviction places its pod, or is followed by the back-off. No pod with a
// possible victim waits for more than two minutes.
func TestKeeper_RandomAttacks_EachEvictionHelpsOrIsNotRepeated(t *testing.T) {
	evicted, placed := 0, 0
	for seed := range seedtest.Each(t, 200) {
		w := newWorld(t, seed)
		w.run()
		if t.Failed() {
			return
		}
		evicted, placed = evicted+w.count[0], placed+w.count[1]
	}
	if t.Logf("%d evictions, %d of which placed their pod", evicted, placed); !testing.Short() && (evicted < 100 || placed*3 < evicted) {
		t.Error("too few evictions placed their pod")
	}
}
