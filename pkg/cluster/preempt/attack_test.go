// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"gpu-dra-driver/internal/testing/whytest"
	"gpu-dra-driver/pkg/cluster/bounded"
	"gpu-dra-driver/pkg/cluster/read"
)

// says is the scheduler's message about a pod.
func says(message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Conditions[0].Message = "0/2 nodes are available: " + message }
}

// replaces is the UID of the controller whose pods replace each other.
func replaces(owner types.UID) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: string(owner), UID: owner, Controller: new(true)}}
	}
}

// change puts a changed pod into the cache.
func (e *env) change(p *corev1.Pod, change func(*corev1.Pod)) {
	e.t.Helper()
	p = p.DeepCopy()
	change(p)
	trimmed, err := kept.Trim(p)
	e.put(err)
	e.put(e.pods.Update(trimmed))
}

// TestKeeper_PodOfHigherPriorityCannotStart_IsNotFirst has pods that wait for volumes, CPU and the like, beside one
// that waits for devices: one pod is evicted for that one, and none for them.
func TestKeeper_PodOfHigherPriorityCannotStart_IsNotFirst(t *testing.T) {
	for name, stuck := range map[string]func(*corev1.Pod){
		"an unbound volume":   says("pod has unbound immediate PersistentVolumeClaims. not found"),
		"a strict spread":     says("2 node(s) didn't match pod topology spread constraints."),
		"no CPU":              says("2 Insufficient cpu."),
		"ports":               says("2 node(s) didn't have free ports for the requested pod ports."),
		"an error":            func(p *corev1.Pod) { p.Status.Conditions[0].Reason = corev1.PodReasonSchedulerError },
		"Kueue's label":       func(p *corev1.Pod) { p.Labels = map[string]string{"kueue.x-k8s.io/queue-name": "q"} },
		"a gang's annotation": func(p *corev1.Pod) { p.Annotations = map[string]string{"scheduling.k8s.io/group-name": "g"} },
		"no such scheduler": func(p *corev1.Pod) {
			p.Spec.SchedulerName, p.Status.Conditions = "gone", nil
			p.CreationTimestamp = metav1.NewTime(noon.Add(-time.Minute))
		},
	} {
		for _, priority := range []int32{10, 20} {
			e := newEnv(t, Options{})
			for _, node := range []string{"a", "b"} {
				e.node(node)
				e.add("on-"+node, node, 1)
			}
			e.add("stuck", "", priority, func(p *corev1.Pod) {
				p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(noon.Add(-time.Hour))
			}, stuck)
			e.add("high", "", 10)
			for range 50 {
				e.after(tick)
			}
			if len(e.evicted) != 1 {
				t.Errorf("%s, priority %d: evicted %q, want one pod", name, priority, e.evicted)
			}
		}
	}
}

// TestKeeper_PodBeforeNeverStarts_CountsForFiveMinutes has a pod that the scheduler tries first, and that may evict none.
func TestKeeper_PodBeforeNeverStarts_CountsForFiveMinutes(t *testing.T) {
	e := newEnv(t, Options{})
	e.node("a")
	e.add("low", "a", 1)
	e.add("first", "", 20, func(p *corev1.Pod) { p.Spec.PreemptionPolicy = new(corev1.PreemptNever) })
	e.add("high", "", 10)
	for range aheadFor/tick - 1 {
		e.after(tick)
	}
	e.expect()
	for range none / tick {
		e.after(tick)
	}
	e.expect("low")
}

// TestKeeper_RunningPodKeepsItOut_EvictsElsewhere has a pod with required anti-affinity on a node with a victim.
func TestKeeper_RunningPodKeepsItOut_EvictsElsewhere(t *testing.T) {
	e := newEnv(t, Options{})
	e.node("a", 2)
	e.add("cheap", "a", 1)
	e.add("guard", "a", 30, func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "high"}},
			}},
		}}
	})
	e.node("b")
	e.add("dear", "b", 5)
	e.add("high", "", 10, says("1 cannot allocate all claims, 1 node(s) didn't satisfy existing pods anti-affinity rules."),
		func(p *corev1.Pod) { p.Labels = map[string]string{"app": "high"} })
	e.after(0)
	e.expect("dear")
}

// TestKeeper_SchedulerNamesAnotherReason_EvictsNone has the scheduler's word that no node lacks devices only.
func TestKeeper_SchedulerNamesAnotherReason_EvictsNone(t *testing.T) {
	for _, message := range []string{
		"2 node(s) didn't satisfy existing pods anti-affinity rules.", "2 node(s) had untolerated taint(s).", "2 Insufficient cpu.", "",
	} {
		e := newEnv(t, Options{})
		e.node("a")
		e.add("low", "a", 1)
		e.add("high", "", 10, says(message))
		for range 70 {
			e.after(tick)
		}
		e.expect()
	}
}

// TestKeeper_EvictionsDoNotHelp_BackOffByOwner has a pod that never starts, whose victim is there again each time. In
// the second case its controller replaces it each time.
func TestKeeper_EvictionsDoNotHelp_BackOffByOwner(t *testing.T) {
	for _, replaced := range []bool{false, true} {
		e := newEnv(t, Options{})
		e.node("a")
		e.add("low-0", "a", 1)
		e.add("high-0", "", 10, replaces("rs"))
		const step = 5 * time.Second
		var at []time.Duration
		for since := time.Duration(0); since < 2*time.Hour; since += step {
			before := len(e.evicted)
			e.after(step)
			if n := len(e.evicted); n > before {
				at = append(at, since)
				e.add(fmt.Sprint("low-", n), "a", 1)
				if replaced {
					e.end(fmt.Sprint("high-", n-1))
					e.add(fmt.Sprint("high-", n), "", 10, replaces("rs"))
				}
			}
		}
		if len(at) < 6 || len(at) > 8 {
			t.Errorf("replaced %v: pods were evicted at %v", replaced, at)
		}
		for i := range len(at) - 1 {
			if pause := at[i+1] - at[i]; pause < time.Minute<<i {
				t.Errorf("replaced %v: the pause after eviction %d is %s", replaced, i+1, pause)
			}
		}
	}
}

// TestKeeper_PodStarts_ForgetsVainEvictions has a pod that starts at last, and then waits again.
func TestKeeper_PodStarts_ForgetsVainEvictions(t *testing.T) {
	e := newEnv(t, Options{})
	e.node("a")
	e.add("low", "a", 1)
	high := e.add("high", "", 10, replaces("rs"))
	e.vain[ownerOf(high)] = vain{5, e.now}
	e.after(0)
	e.expect("low")
	e.change(high, func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Phase = "a", corev1.PodRunning })
	e.after(tick)
	if len(e.vain) > 0 {
		t.Errorf("after the pod has started: %v", e.vain)
	}
}

// TestKeeper_PodChangesDuringTheSearch_EvictsNone has an API server that refuses the nomination: the pod was bound, changed
// or deleted meanwhile.
func TestKeeper_PodChangesDuringTheSearch_EvictsNone(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, refusal := range map[string]error{
		"changed": apierrors.NewConflict(pods, "high", errors.New("it has changed")), "deleted": apierrors.NewNotFound(pods, "high"),
		"no answer": errors.New("connection refused"),
	} {
		e := newEnv(t, Options{})
		e.node("a")
		e.add("low", "a", 1)
		e.add("high", "", 10, func(p *corev1.Pod) { p.ResourceVersion = "7" })
		var patch string
		e.client.PrependReactor("patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			patch = string(a.(clienttesting.PatchAction).GetPatch())
			return true, nil, refusal
		})
		e.after(0)
		e.expect()
		if !strings.Contains(patch, `"resourceVersion":"7"`) || !strings.Contains(patch, `"uid":"high"`) {
			t.Errorf("%s: the patch is %s", name, patch)
		}
		if said := <-e.events.Events; !strings.HasPrefix(said, "Warning PreemptionFailed") {
			t.Errorf("%s: %s", name, said)
		}
	}
}

// TestKeeper_PodsThatNeverFit_DoNotStarveOthers has 50 of them with a higher priority, in the namespace of a pod with a
// victim that comes later.
func TestKeeper_PodsThatNeverFit_DoNotStarveOthers(t *testing.T) {
	e := newEnv(t, Options{})
	e.node("a")
	e.add("low", "a", 1)
	for gpus := int64(2); gpus < 52; gpus++ {
		e.addFor(fmt.Sprint("large-", gpus), "", 20, gpus)
	}
	for range 50 {
		e.after(tick)
	}
	e.expect()
	e.add("high", "", 10)
	e.after(tick)
	e.expect("low")
}

// TestKeeper_VictimStaysForAYear_ForgottenAfterTenMinutes has a victim with a grace period of a year.
func TestKeeper_VictimStaysForAYear_ForgottenAfterTenMinutes(t *testing.T) {
	e := leaving(t, noon.AddDate(1, 0, 0))
	for range rememberFor/tick - 2 {
		e.after(tick)
	}
	e.expect("low")
	for range 2 * none / tick {
		e.after(tick)
	}
	e.expect("low", "other")
}

// TestKeeper_EvictionRefused_NextVictim has a cheapest victim that the API server never evicts. Errors that can be those
// of a moment count when they are repeated, and an API server that is overloaded says nothing about the victim.
func TestKeeper_EvictionRefused_NextVictim(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, c := range map[string]struct {
		refusal error
		tried   int // The attempts in five minutes; 0 for one each time.
	}{
		"a disruption budget":       {byBudget(), 2},
		"a webhook that denies":     {apierrors.NewForbidden(pods, "refused", errors.New("no")), 2},
		"a webhook's own code":      {apierrors.NewTooManyRequests(`admission webhook "w" denied the request`, 1), 2},
		"an admission policy":       {apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "refused", nil), 2},
		"a webhook that fails":      {apierrors.NewInternalError(errors.New("failed calling webhook")), 3},
		"too many requests":         {apierrors.NewTooManyRequests("slow down", 1), 0},
		"a server without a leader": {apierrors.NewTimeoutError("no quorum", 1), 0},
		"no answer":                 {errors.New("connection refused"), 0},
	} {
		e := newEnv(t, Options{})
		e.node("a", 2)
		e.add("refused", "a", 1)
		e.add("next", "a", 2)
		e.add("high", "", 10)
		e.refuses["refused"] = c.refusal
		var tried []time.Duration
		for since := time.Duration(0); since < refusedFor; since += tick {
			before := len(e.client.Actions())
			e.after(tick)
			if slices.ContainsFunc(e.client.Actions()[before:], func(a clienttesting.Action) bool { return a.GetSubresource() == "eviction" }) {
				tried = append(tried, since)
			}
		}
		if c.tried == 0 {
			if e.expect(); len(tried) < 9 {
				t.Errorf("%s: evictions were tried after %v", name, tried)
			}
			continue
		}
		if e.expect("next"); len(tried) != c.tried || tried[len(tried)-1] > time.Duration(c.tried-2)*refused+tick {
			t.Errorf("%s: evictions were tried after %v", name, tried)
		}
	}
}

// TestKeeper_OverloadedServer_DeletesNone has the right to violate disruption budgets.
func TestKeeper_OverloadedServer_DeletesNone(t *testing.T) {
	e := newEnv(t, Options{Violate: true})
	e.node("a")
	low := e.add("low", "a", 1)
	e.add("high", "", 10)
	e.refuses["low"] = apierrors.NewTooManyRequests("slow down", 1)
	e.after(0)
	if _, err := e.client.CoreV1().Pods(low.Namespace).Get(t.Context(), low.Name, metav1.GetOptions{}); err != nil {
		t.Errorf("the pod was deleted: %v", err)
	}
}

// serveGroups lets the API server have Workloads of Kueue and PodGroups, and the controller read them.
func (e *env) serveGroups(objects ...runtime.Object) *dynamicfake.FakeDynamicClient {
	kinds := map[schema.GroupVersionResource]string{}
	for _, group := range []string{"scheduling.k8s.io", "scheduling.x-k8s.io", "scheduling.sigs.k8s.io", "scheduling.volcano.sh"} {
		kinds[schema.GroupVersionResource{Group: group, Version: "v1beta1", Resource: "podgroups"}] = "PodGroupList"
	}
	for _, version := range []string{"v1beta1", "v1beta2"} {
		kinds[workloads.WithVersion(version)] = "WorkloadList"
	}
	e.client.Resources = nil
	for r := range kinds {
		e.client.Resources = append(e.client.Resources, &metav1.APIResourceList{GroupVersion: r.GroupVersion().String()})
	}
	groups := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, objects...)
	e.o.Groups = groups
	return groups
}

// managing is a Workload or PodGroup in the namespace of the pods.
func managing(group, kind, name string, labels map[string]string) runtime.Object {
	u := &unstructured.Unstructured{}
	u.SetAPIVersion(group + "/v1beta1")
	u.SetKind(kind)
	u.SetNamespace(whytest.Namespace)
	u.SetName(name)
	u.SetLabels(labels)
	return u
}

// TestKeeper_VictimHasMarkOfAManager_ExemptOnlyIfThatExists has a victim whose own label or field says that Kueue or a gang
// manages it.
func TestKeeper_VictimHasMarkOfAManager_ExemptOnlyIfThatExists(t *testing.T) {
	label := func(key, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Labels = map[string]string{key: value} }
	}
	owned := func(p *corev1.Pod) {
		label("kueue.x-k8s.io/podset", "main")(p)
		replaces("job")(p)
	}
	const kueue = "kueue.x-k8s.io"
	byUID := func(uid string) runtime.Object {
		return managing(kueue, "Workload", "w", map[string]string{"kueue.x-k8s.io/job-uid": uid})
	}
	for name, c := range map[string]struct {
		mark    func(*corev1.Pod)
		manager runtime.Object
	}{
		"a pod of Kueue":          {label(kueue+"/queue-name", "q"), byUID("low")},
		"a Job of Kueue":          {owned, byUID("job")},
		"a group of Kueue":        {label(kueue+"/pod-group-name", "g"), managing(kueue, "Workload", "g", nil)},
		"a Workload by name":      {func(p *corev1.Pod) { p.Annotations = map[string]string{kueue + "/workload": "w"} }, managing(kueue, "Workload", "w", nil)},
		"Volcano":                 {func(p *corev1.Pod) { p.Annotations = map[string]string{"scheduling.k8s.io/group-name": "g"} }, managing("scheduling.volcano.sh", "PodGroup", "g", nil)},
		"coscheduling":            {label("scheduling.x-k8s.io/pod-group", "g"), managing("scheduling.x-k8s.io", "PodGroup", "g", nil)},
		"an earlier coscheduling": {label("pod-group.scheduling.sigs.k8s.io", "g"), managing("scheduling.sigs.k8s.io", "PodGroup", "g", nil)},
		"Kubernetes' own": {
			func(p *corev1.Pod) { p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("g")} },
			managing("scheduling.k8s.io", "PodGroup", "g", nil),
		},
		"an empty name":          {label("scheduling.x-k8s.io/pod-group", ""), nil},
		"no name of an object":   {func(p *corev1.Pod) { p.Annotations = map[string]string{kueue + "/workload": "../.."} }, nil},
		"an owner without a UID": {func(p *corev1.Pod) { owned(p); p.OwnerReferences[0].UID = "a, b" }, nil},
	} {
		for _, exists := range []bool{false, true} {
			if exists && c.manager == nil {
				continue
			}
			other := managing(kueue, "Workload", "other", map[string]string{"kueue.x-k8s.io/job-uid": "other"})
			objects := []runtime.Object{other}
			if exists {
				objects = append(objects, c.manager)
			}
			e := newEnv(t, Options{})
			e.serveGroups(objects...)
			e.node("a")
			e.add("low", "a", 1, c.mark)
			e.add("high", "", 10)
			e.after(0)
			if got := len(e.evicted) == 0; got != exists {
				t.Errorf("%s: the manager exists: %v; evicted: %q", name, exists, e.evicted)
			}
		}
	}
}

// TestKeeper_ManagersUnknown_ExemptIfTheyMayExist has an API server without the kinds, one that does not answer, and more
// pods with marks than one search looks up.
func TestKeeper_ManagersUnknown_ExemptIfTheyMayExist(t *testing.T) {
	marked := func(p *corev1.Pod) { p.Labels = map[string]string{"kueue.x-k8s.io/queue-name": "q"} }
	start := func(pods int) *env {
		e := newEnv(t, Options{})
		e.serveGroups()
		for i := range pods {
			node := fmt.Sprintf("n%03d", i)
			e.node(node)
			e.add("low-"+node, node, 1, marked)
		}
		e.add("high", "", 10)
		return e
	}
	e := start(1)
	e.client.Resources = nil
	e.after(0)
	e.expect("low-n000")

	e = start(1)
	e.o.Groups = nil
	e.after(0)
	e.expect("low-n000")

	e = start(1)
	fails := true
	e.serveGroups().PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return fails, nil, apierrors.NewForbidden(workloads, "", errors.New("no right"))
	})
	e.after(0)
	for range again/tick - 1 {
		e.after(tick)
	}
	e.expect()
	fails = false
	for range none / tick {
		e.after(tick)
	}
	e.expect("low-n000")

	e = start(mostAsked + 10)
	groups := e.serveGroups()
	e.after(0)
	if asked := len(groups.Actions()); asked > 2*mostAsked {
		t.Errorf("one search made %d requests", asked)
	}
	if len(e.evicted) != 1 {
		t.Errorf("evicted: %q", e.evicted)
	}
}

// TestKeeper_VictimMakesItselfExempt_IsEvicted has what a tenant can write into an own pod so that it looks like another kind.
func TestKeeper_VictimMakesItselfExempt_IsEvicted(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"a Node as its controller": func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "a", UID: "a", Controller: new(true)}}
		},
		"the annotation of static pods": func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} },
		"labels that no cache keeps": func(p *corev1.Pod) {
			p.Labels = map[string]string{}
			for i := range 1000 {
				p.Labels[fmt.Sprint("label-", i)] = strings.Repeat("x", 60)
			}
		},
		"a grace period of a year":  func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(365 * 24 * 3600)) },
		"a priority below all":      func(p *corev1.Pod) { p.Spec.Priority = new(int32(math.MinInt32)) },
		"preemption never":          func(p *corev1.Pod) { p.Spec.PreemptionPolicy = new(corev1.PreemptNever) },
		"a critical class, by name": func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-node-critical" },
		"another scheduler":         func(p *corev1.Pod) { p.Spec.SchedulerName = "own" },
		"a start in the future":     func(p *corev1.Pod) { p.Status.StartTime = new(metav1.NewTime(noon.AddDate(1, 0, 0))) },
	} {
		e := newEnv(t, Options{})
		e.node("a")
		p := e.add("low", "a", 1, change)
		kept, err := kept.Trim(p)
		e.put(err)
		e.put(e.pods.Update(bounded.Keep(kept)))
		e.add("high", "", 10)
		e.after(0)
		if e.expect("low"); t.Failed() {
			t.Fatal(name)
		}
	}
}

// TestKeeper_PodElsewhereNamesTheClaim_VictimIsEvicted has a pod that a tenant bound to another node, and that waits there for
// the claim of a victim for ever.
func TestKeeper_PodElsewhereNamesTheClaim_VictimIsEvicted(t *testing.T) {
	for _, first := range []bool{false, true} {
		e := newEnv(t, Options{})
		e.node("a")
		low := e.add("low", "a", 1)
		e.node("b", 1)
		e.add("busy", "b", 20)
		other := low.DeepCopy()
		other.Name, other.UID, other.Spec.NodeName, other.Status.Phase = "other", "other", "b", corev1.PodPending
		_, err := e.client.CoreV1().Pods(other.Namespace).Create(t.Context(), other, metav1.CreateOptions{})
		e.put(err)
		trimmed, err := kept.Trim(other)
		e.put(err)
		e.put(e.pods.Add(trimmed))
		users := append(e.Claims[0].Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "other", UID: "other"})
		if first {
			slices.Reverse(users)
		}
		e.Claims[0].Status.ReservedFor = users
		e.add("high", "", 10)
		e.after(0)
		slices.Sort(e.evicted)
		e.expect("low", "other")
	}
}

// TestKeeper_BarePodsReplaceEachOther_BackOff has a program that makes a pod without a controller again whenever its eviction
// did not help.
func TestKeeper_BarePodsReplaceEachOther_BackOff(t *testing.T) {
	e := newEnv(t, Options{})
	e.node("a")
	e.add("low-0", "a", 1)
	e.add("high-0", "", 10)
	for since := time.Duration(0); since < time.Hour; since += 5 * time.Second {
		before := len(e.evicted)
		e.after(5 * time.Second)
		if n := len(e.evicted); n > before {
			e.add(fmt.Sprint("low-", n), "a", 1)
			e.end(fmt.Sprint("high-", n-1))
			e.add(fmt.Sprint("high-", n), "", 10)
		}
	}
	if n := len(e.evicted); n > 7 {
		t.Errorf("%d evictions in an hour", n)
	}
}

// TestKeeper_AnotherNamespaceNamesTheController_NoBackOff has pods of a tenant whose evictions do not help, and that name the
// controller of another namespace as theirs.
func TestKeeper_AnotherNamespaceNamesTheController_NoBackOff(t *testing.T) {
	e := newEnv(t, Options{})
	e.node("a")
	e.add("low-0", "a", 1)
	e.add("forger", "", 10, replaces("rs"))
	e.after(0)
	e.add("low-1", "a", 1)
	for range 2 * again / tick {
		e.after(tick)
	}
	e.end("forger")
	before := len(e.evicted)
	e.add("high", "", 10, replaces("rs"), func(p *corev1.Pod) { p.Namespace = "zeta" })
	e.Claims[len(e.Claims)-1].Namespace = "zeta"
	if e.free("a") {
		e.add("low-2", "a", 1)
	}
	for range 3 {
		e.after(tick)
	}
	if len(e.evicted) == before {
		t.Errorf("nothing was evicted for it after %q", e.evicted)
	}
}

// TestKeeper_NamespacesPodsComeAndGo_OthersGetTheirTurn has a tenant that makes its pods again after each search, so that its
// namespace looks new.
func TestKeeper_NamespacesPodsComeAndGo_OthersGetTheirTurn(t *testing.T) {
	e := newEnv(t, Options{})
	e.node("a")
	e.add("low", "a", 1)
	e.add("high", "", 10, func(p *corev1.Pod) { p.Namespace = "zeta" })
	e.Claims[len(e.Claims)-1].Namespace = "zeta"
	for gpus := int64(2); gpus < 12 && len(e.evicted) == 0; gpus++ {
		name := fmt.Sprint("large-", gpus)
		e.addFor(name, "", 20, gpus)
		e.after(tick)
		e.end(name)
		k := e.Keeper
		k.queued(read.All[*corev1.Pod](e.pods), e.now) // A step in which the namespace has no pod that waits.
	}
	e.expect("low")
	if e.now.Sub(noon) > 3*tick {
		t.Errorf("it took %s", e.now.Sub(noon))
	}
}

// TestKeeper_PodsBeforeReplaceEachOther_CountForFiveMinutes has pods of a higher priority that never start. Each is
// replaced before its five minutes are over. Some have a controller, and some a scheduler that does not exist.
func TestKeeper_PodsBeforeReplaceEachOther_CountForFiveMinutes(t *testing.T) {
	never := func(p *corev1.Pod) { p.Spec.PreemptionPolicy = new(corev1.PreemptNever) }
	for name, c := range map[string]struct {
		every  time.Duration
		change func(*corev1.Pod)
	}{
		"of a controller": {time.Minute, replaces("rs")},
		"without one":     {time.Minute, func(*corev1.Pod) {}},
		"never tried":     {2 * time.Second, func(p *corev1.Pod) { p.Spec.SchedulerName, p.Status.Conditions = "gone", nil }},
	} {
		e := newEnv(t, Options{})
		e.node("a")
		e.add("low", "a", 1)
		e.add("high", "", 10)
		last := ""
		for since := time.Duration(0); since < aheadFor+2*none && len(e.evicted) == 0; since += tick {
			if since%c.every == 0 {
				e.end(last)
				last = fmt.Sprint("first-", since)
				e.add(last, "", 20, never, c.change, func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(e.now) })
			}
			e.after(tick)
		}
		if len(e.evicted) != 1 {
			t.Errorf("%s: evicted %q in %s", name, e.evicted, e.now.Sub(noon))
		}
	}
}

// TestKeeper_AlikePodFitsNowhere_OthersAreServed has a pod of another namespace that asks for the same, and that the pods of its
// namespace keep from all nodes.
func TestKeeper_AlikePodFitsNowhere_OthersAreServed(t *testing.T) {
	e := newEnv(t, Options{})
	e.node("a", 2)
	e.add("low", "a", 1)
	e.add("guard", "a", 30, func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "barred"}},
			}},
		}}
	})
	e.add("barred", "", 10, func(p *corev1.Pod) { p.Labels = map[string]string{"app": "barred"} })
	e.after(0)
	e.add("high", "", 10, func(p *corev1.Pod) { p.Namespace = "zeta" })
	e.Claims[len(e.Claims)-1].Namespace = "zeta"
	for range 2 * none / tick {
		e.after(tick)
	}
	e.expect("low")
}

// TestKeeper_ClocksDiffer_OneEviction has an API server whose clock differs from the controller's by half a minute: the victim's
// end is in the past, or late.
func TestKeeper_ClocksDiffer_OneEviction(t *testing.T) {
	for _, skew := range []time.Duration{-30 * time.Second, 30 * time.Second} {
		e := leaving(t, noon.Add(30*time.Second+skew))
		for range 35 {
			e.after(tick)
		}
		e.end("low")
		for range 15 {
			e.after(tick)
		}
		e.expect("low")
	}
}
