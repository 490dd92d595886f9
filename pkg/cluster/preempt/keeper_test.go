// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/internal/testing/whytest"
	"gpu-dra-driver/pkg/cluster/act"
	"gpu-dra-driver/pkg/cluster/controller"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/wire"
)

// kept are the parts of pods that the controller keeps.
var kept = read.PodUses{Explain: true, Preempt: true}

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// env is a cluster of nodes of one GPU each, with the keeper of its leader.
type env struct {
	t testing.TB
	*whytest.Fleet
	*Keeper
	loop   *act.Loop
	pods   cache.Store
	client *fake.Clientset
	events *record.FakeRecorder
	now    time.Time
	wakes  int
	// evicted are the pods in the order of their evictions, and refuses those that the API server does not evict.
	evicted []string
	refuses map[string]error
	// slow means that evicted pods stay.
	slow bool
	// deaf means that no plugin taints reserved GPUs, and fails that Nodes cannot be written.
	deaf, fails bool
	// packed are the slices as the controller knows them, for reservations as packedAs says.
	packed   []*pool.Slice
	packedAs string
}

func newEnv(t testing.TB, o Options) *env {
	t.Helper()
	e := &env{
		t: t, Fleet: whytest.New(), client: fake.NewClientset(), events: record.NewFakeRecorder(10000), now: noon,
		refuses: map[string]error{}, pods: cache.NewStore(cache.MetaNamespaceKeyFunc),
	}
	o.Driver = slicetest.Driver
	kinds := map[schema.GroupVersionResource]string{}
	for _, v := range read.RuleVersions {
		kinds[read.RuleResource(v)] = "DeviceTaintRuleList"
	}
	rules := read.NewRules(dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds))
	e.Keeper = New(e.client, rules, e, e.events, o)
	e.began, e.loop = noon.Add(-time.Hour), act.New(e, e.Keeper, pace)
	e.client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		create, ok := a.(clienttesting.CreateActionImpl)
		if !ok || a.GetSubresource() != "eviction" {
			return false, nil, nil
		}
		eviction := create.GetObject().(*policyv1.Eviction)
		if err := e.refuses[eviction.Name]; err != nil {
			return true, nil, err
		}
		if len(eviction.DeleteOptions.DryRun) == 0 {
			e.evicted = append(e.evicted, eviction.Name)
			if !e.slow {
				e.end(eviction.Name)
			}
		}
		return true, nil, nil
	})
	e.client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return e.fails, nil, apierrors.NewInternalError(errors.New("no quorum"))
	})
	return e
}

// nodes are the Nodes as the API server has them.
func (e *env) nodes() (out []*corev1.Node) {
	e.t.Helper()
	all, err := e.client.CoreV1().Nodes().List(e.t.Context(), metav1.ListOptions{})
	e.put(err)
	for i := range all.Items {
		out = append(out, &all.Items[i])
	}
	return out
}

// reserved are the GPUs that Nodes reserve.
func (e *env) reserved() (out []string) {
	e.t.Helper()
	for _, n := range e.nodes() {
		for _, g := range wire.ReservationsOf(slicetest.Driver, n.Annotations) {
			out = append(out, n.Name+"/"+g)
		}
	}
	return out
}

// Objects has the slices of plugins that follow reservations.
func (e *env) Objects() (controller.Objects, bool) {
	reserved := e.reserved()
	if as := fmt.Sprint(e.deaf, len(e.Slices), reserved); as != e.packedAs {
		e.packed, e.packedAs = e.publish(reserved), as
	}
	return controller.Objects{
		Slices: e.packed, Claims: e.Claims, Classes: e.Classes, Nodes: e.nodes(), Pods: read.All[*corev1.Pod](e.pods),
	}, true
}

func (e *env) publish(reserved []string) []*pool.Slice {
	var published []*resourceapi.ResourceSlice
	for _, s := range e.Slices {
		s = s.DeepCopy()
		for i, d := range s.Spec.Devices {
			if slices.ContainsFunc(pool.GPUsOf(d), func(g string) bool { return slices.Contains(reserved, *s.Spec.NodeName+"/"+g) }) && !e.deaf {
				s.Spec.Devices[i].Taints = append(d.Taints, resourceapi.DeviceTaint{Key: wire.ReservedTaint, Effect: resourceapi.DeviceTaintEffectNoSchedule})
			}
		}
		published = append(published, s)
	}
	packed, err := whytest.Pack(published)
	if err != nil {
		e.t.Fatal(err)
	}
	return packed
}

func (e *env) Wake(context.Context) error { e.wakes++; return nil }

func (e *env) node(name string, gpus ...int) {
	e.t.Helper()
	count := 1
	if len(gpus) > 0 {
		count = gpus[0]
	}
	n, err := e.Add(name, "l40s-4", count)
	if err != nil {
		e.t.Fatal(err)
	}
	n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("32"), "pods": resource.MustParse("110")}
	_, err = e.client.CoreV1().Nodes().Create(e.t.Context(), n.DeepCopy(), metav1.CreateOptions{})
	e.put(err)
}

func (e *env) put(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// add puts a pod with a claim into the cluster. Without a node it waits.
func (e *env) add(name, node string, priority int32, change ...func(*corev1.Pod)) *corev1.Pod {
	e.t.Helper()
	return e.addFor(name, node, priority, 1, change...)
}

// addFor puts a pod with a claim for several GPUs into the cluster.
func (e *env) addFor(name, node string, priority int32, gpus int64, change ...func(*corev1.Pod)) *corev1.Pod {
	e.t.Helper()
	c := whytest.Claim(name, whytest.GPUs, gpus)
	if node == "" {
		e.Claims = append(e.Claims, c)
	} else if !e.Start(c, node) {
		e.t.Fatalf("node %s has no room for %s", node, name)
	}
	p := whytest.Pod(name, c)
	p.Spec.NodeName, p.Spec.Priority, p.Spec.SchedulerName = node, &priority, corev1.DefaultSchedulerName
	p.Status.Phase = corev1.PodRunning
	if node == "" {
		p.Status.Phase = corev1.PodPending
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, LastTransitionTime: metav1.NewTime(e.now.Add(-time.Minute)),
			Message: "0/1 nodes are available: 1 cannot allocate all claims.",
		}}
	}
	for _, f := range change {
		f(p)
	}
	_, err := e.client.CoreV1().Pods(p.Namespace).Create(e.t.Context(), p, metav1.CreateOptions{})
	e.put(err)
	trimmed, err := kept.Trim(p)
	e.put(err)
	e.put(e.pods.Add(trimmed))
	return p
}

// end removes a pod and its claim.
func (e *env) end(name string) {
	key := whytest.Namespace + "/" + name
	found, ok, _ := e.pods.GetByKey(key)
	if !ok {
		return
	}
	e.put(e.pods.Delete(found))
	// The client is locked while it reacts.
	e.put(e.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), whytest.Namespace, name))
	e.Claims = slices.DeleteFunc(e.Claims, func(c *resourceapi.ResourceClaim) bool { return c.Name == name })
}

// after does a step once time has passed.
func (e *env) after(d time.Duration) {
	e.now = e.now.Add(d)
	e.loop.Step(e.t.Context(), e.now)
}

func (e *env) expect(victims ...string) {
	e.t.Helper()
	if !slices.Equal(e.evicted, victims) {
		e.t.Errorf("evicted: %q; expected %q", e.evicted, victims)
	}
}

func TestKeeper_PodOfHigherPriority_EvictsAndTellsBoth(t *testing.T) {
	e := newEnv(t, Options{})
	e.node("a")
	e.add("low", "a", 1)
	pod := e.add("high", "", 10)
	e.after(0)
	e.expect("low")
	said := []string{<-e.events.Events, <-e.events.Events}
	if said[0] != "Normal Preempted Preempted by pod high on node a" || !strings.HasPrefix(said[1], "Normal Preempting 1 pod of lower priority leaves node a") {
		t.Errorf("Events: %q", said)
	}
	now, err := e.client.CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil || now.Status.NominatedNodeName != "a" {
		t.Errorf("nominated: %q, %v", now.Status.NominatedNodeName, err)
	}
}

// TestKeeper_ClaimWithoutPodsStays_EvictsAfterAMinute has an allocated claim that no pod uses.
func TestKeeper_ClaimWithoutPodsStays_EvictsAfterAMinute(t *testing.T) {
	e := newEnv(t, Options{})
	e.node("a")
	if !e.Start(whytest.Claim("unused", whytest.GPUs, 1), "a") {
		t.Fatal("no room")
	}
	e.Claims[0].Status.ReservedFor = nil
	e.node("b")
	e.add("low", "b", 1)
	e.add("high", "", 10)
	e.after(0)
	for range 2 {
		e.after(none)
	}
	e.expect()
	e.after(none)
	e.expect("low")
}

// TestKeeper_AnotherPodTookTheDevices_NoEvictionForAMinute also has the scheduler woken, less often each time.
func TestKeeper_AnotherPodTookTheDevices_NoEvictionForAMinute(t *testing.T) {
	e := newEnv(t, Options{})
	e.node("a")
	e.add("low", "a", 1)
	e.add("high", "", 10)
	e.after(0)
	for range 5 {
		e.after(tick)
	}
	if e.wakes != 1 {
		t.Errorf("the scheduler was woken %d times", e.wakes)
	}
	e.add("newcomer", "a", 1)
	for range 53 {
		e.after(tick)
	}
	e.expect("low")
	if e.wakes != mostWakes {
		t.Errorf("the scheduler was woken %d times in a minute", e.wakes)
	}
	e.after(2 * tick)
	e.after(tick)
	e.expect("low", "newcomer")
}

// several has a node of two GPUs with two pods, and one that waits for both.
func several(t *testing.T) *env {
	e := newEnv(t, Options{})
	e.node("a", 2)
	e.add("one", "a", 1)
	e.add("two", "a", 2)
	e.addFor("high", "", 10, 2)
	e.slow = true
	return e
}

func (e *env) wantReserved(when string, gpus int) {
	e.t.Helper()
	if got := e.reserved(); len(got) != gpus {
		e.t.Errorf("%s: reserved: %q", when, got)
	}
}

// TestKeeper_VictimsOfSeveralClaims_GPUsAreReservedUntilAllAreGone also has victims that leave one after the other.
func TestKeeper_VictimsOfSeveralClaims_GPUsAreReservedUntilAllAreGone(t *testing.T) {
	e := several(t)
	e.after(0)
	e.expect()
	e.wantReserved("before the eviction", 2)
	first := e.nodes()[0]
	e.after(tick)
	slices.Sort(e.evicted)
	e.expect("one", "two")
	e.end("one")
	for range 40 {
		e.after(tick)
	}
	e.wantReserved("one victim stays", 2)
	later := e.nodes()[0]
	for key, until := range first.Annotations {
		if later.Annotations[key] <= until {
			t.Errorf("the reservation still ends at %s", until)
		}
	}
	e.end("two")
	for range 2*rounds - 1 {
		e.after(tick)
	}
	e.wantReserved("while the scheduler tries all pods", 2)
	if e.wakes != rounds {
		t.Errorf("the scheduler was woken %d times", e.wakes)
	}
	e.after(2 * tick)
	e.wantReserved("after it", 0)
	for range patience / tick {
		e.after(tick)
	}
	if e.wakes != rounds+1 {
		t.Errorf("the scheduler was woken %d times", e.wakes)
	}
	e.end("high")
	e.after(tick)
	if len(e.evictions) > 0 {
		t.Errorf("evictions: %v", e.evictions)
	}
}

// TestKeeper_NoPluginTaintsReservedGPUs_EvictsForOneClaimOnly has a plugin or an API server that knows no reservation.
func TestKeeper_NoPluginTaintsReservedGPUs_EvictsForOneClaimOnly(t *testing.T) {
	e := several(t)
	e.deaf = true
	for range 60 {
		e.after(tick)
	}
	e.expect()
	e.wantReserved("after a minute", 0)
	e.add("single", "", 5)
	e.after(tick)
	e.after(tick)
	e.expect("one")
}

// TestKeeper_ReservationIsNeedless_Ends has a pod that is gone before the eviction, and one after it. The API server
// refuses the first writes.
func TestKeeper_ReservationIsNeedless_Ends(t *testing.T) {
	for _, steps := range []int{1, 2} {
		e := several(t)
		for range steps {
			e.after(tick)
		}
		e.wantReserved("while the pod waits", 2)
		e.end("high")
		e.fails = true
		e.after(tick)
		e.wantReserved("the API server refuses", 2)
		e.fails = false
		e.after(tick)
		e.wantReserved("the pod is gone", 0)
	}
}

// TestKeeper_ReservationOfAFormerLeader_Ends has a Node that a former leader wrote.
func TestKeeper_ReservationOfAFormerLeader_Ends(t *testing.T) {
	e := newEnv(t, Options{})
	e.node("a")
	e.put(e.write(t.Context(), "a", []string{"gpu-0000-01-00-0"}, "2026-01-01T12:02:00Z"))
	e.wantReserved("before", 1)
	e.after(renew)
	e.wantReserved("after", 0)
}

// byBudget is the answer of an API server about a pod that a disruption budget protects.
func byBudget() error {
	err := apierrors.NewTooManyRequests("a budget", 0)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause}}
	return err
}

// leaving has two nodes with victims, of which the cheaper one leaves at a time.
func leaving(t *testing.T, at time.Time) *env {
	e := newEnv(t, Options{})
	e.node("a")
	e.node("b")
	slow := e.add("low", "a", 1)
	e.add("other", "b", 2)
	e.add("high", "", 10)
	e.slow = true
	e.after(0)
	e.expect("low")
	e.change(slow, func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.NewTime(at)) })
	return e
}

// TestKeeper_VictimsLeaveSlowly_NoOtherEviction has a victim with a grace period of five minutes, and another node.
func TestKeeper_VictimsLeaveSlowly_NoOtherEviction(t *testing.T) {
	e := leaving(t, noon.Add(5*time.Minute))
	for range 350 {
		e.after(tick)
	}
	e.expect("low")
	for range 40 {
		e.after(tick)
	}
	e.expect("low", "other")
}

func TestKeeper_PodThatMayNotPreempt_EvictsNone(t *testing.T) {
	never := corev1.PreemptNever
	for name, change := range map[string]func(*corev1.Pod){
		"Never": func(p *corev1.Pod) { p.Spec.PreemptionPolicy = &never },
		"new": func(p *corev1.Pod) {
			p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(noon.Add(-time.Second))
		},
		"not tried": func(p *corev1.Pod) { p.Status.Conditions = nil },
		"the scheduler fails": func(p *corev1.Pod) {
			p.Status.Conditions[0].Reason = corev1.PodReasonSchedulerError
		},
		"gate":  func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} },
		"Kueue": func(p *corev1.Pod) { p.Labels = map[string]string{"kueue.x-k8s.io/queue-name": "q"} },
		"gang":  func(p *corev1.Pod) { p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{} },
		"volume": func(p *corev1.Pod) {
			p.Status.Conditions[0].Message = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}}}
		},
		"nominated by the scheduler": func(p *corev1.Pod) {
			p.Status.NominatedNodeName = "a"
			p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kube-scheduler", FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:nominatedNodeName":{}}}`)}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, Options{})
			e.node("a")
			e.add("low", "a", 1)
			e.add("high", "", 10, change)
			e.after(0)
			e.expect()
		})
	}
}

// TestKeeper_SchedulerPreempts_EvictsNone has an API server with the feature gates of the scheduler. Without an answer,
// the last one holds.
func TestKeeper_SchedulerPreempts_EvictsNone(t *testing.T) {
	answer, asked := "", 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if r.URL.Path != "/metrics" || answer == "" {
			w.WriteHeader(http.StatusForbidden)
		}
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	e := newEnv(t, Options{Metrics: client.Discovery().RESTClient()})
	e.node("a")
	const metric = `kubernetes_feature_enabled{name="%s",stage="BETA"} %d` + "\n"
	victims := 0
	for i, c := range []struct {
		answer string
		evicts bool
	}{
		{"", true},
		{fmt.Sprintf(metric, "DRAExtendedResource", 1), true},
		{fmt.Sprintf(metric+metric, gate, 0, "DynamicResourceAllocation", 1), true},
		{fmt.Sprintf(metric+metric, gate, 1, "DynamicResourceAllocation", 1), false},
		{"", false},
		{"process_start_time_seconds 1\n", false}, // It has no gates, so it does not say that one is off.
		{fmt.Sprintf(metric, gate, 0), true},
	} {
		answer = c.answer
		e.end(fmt.Sprint("high-", i-1))
		if e.free("a") {
			e.add(fmt.Sprint("low-", i), "a", 1)
		}
		e.add(fmt.Sprint("high-", i), "", 10)
		e.after(gateFor)
		e.after(tick)
		if c.evicts {
			victims++
		}
		if len(e.evicted) != victims || asked != i+1 {
			t.Errorf("case %d: evicted %q after %d requests", i, e.evicted, asked)
		}
	}
}

// TestKeeper_LeaderIsNew_PodOfTheFormerOneHasItsMinute has a pod that a former leader nominated.
func TestKeeper_LeaderIsNew_PodOfTheFormerOneHasItsMinute(t *testing.T) {
	e := newEnv(t, Options{})
	e.began = noon
	e.node("a")
	e.add("low", "a", 1)
	e.add("high", "", 10, func(p *corev1.Pod) {
		p.Status.NominatedNodeName = "a"
		p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: component, FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:nominatedNodeName":{}}}`)}}
	})
	e.after(again - tick)
	e.expect()
	e.after(tick)
	e.expect("low")
}

func TestKeeper_VolumesHoldOnAllNodes_Evicts(t *testing.T) {
	e := newEnv(t, Options{})
	e.node("a")
	e.add("low", "a", 1)
	e.add("high", "", 10, func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}}}
		p.Status.Conditions[0].Message = "0/3 nodes are available: 1 cannot allocate all claims, 2 node(s) had untolerated taint(s)."
	})
	e.after(0)
	e.expect("low")
}

// TestKeeper_EvictionRefused_NoneIsEvicted has two victims, the second of which the API server does not evict.
func TestKeeper_EvictionRefused_NoneIsEvicted(t *testing.T) {
	for _, violate := range []bool{false, true} {
		e := newEnv(t, Options{Violate: violate})
		n, err := e.Add("a", "l40s-4", 1)
		e.put(err)
		n.Status.Allocatable = corev1.ResourceList{"pods": resource.MustParse("110")}
		_, err = e.client.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{})
		e.put(err)
		first := e.add("first", "a", 1)
		second := first.DeepCopy()
		second.Name, second.UID = "second", "second"
		_, err = e.client.CoreV1().Pods(second.Namespace).Create(t.Context(), second, metav1.CreateOptions{})
		e.put(err)
		trimmed, err := kept.Trim(second)
		e.put(err)
		e.put(e.pods.Add(trimmed))
		e.Claims[0].Status.ReservedFor = append(e.Claims[0].Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "second", UID: "second"})
		e.refuses["second"] = byBudget()
		e.add("high", "", 10)
		e.after(0)
		if violate {
			e.expect("first")
			if _, err := e.client.CoreV1().Pods(whytest.Namespace).Get(t.Context(), "second", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("the pod was not deleted: %v", err)
			}
			continue
		}
		e.expect()
		if said := <-e.events.Events; !strings.HasPrefix(said, "Warning PreemptionFailed") {
			t.Errorf("Event: %s", said)
		}
	}
}

// TestKeeper_NamespaceWithManyPods_OthersGetTheirTurn has pods of higher priority in one namespace, which fit nowhere.
func TestKeeper_NamespaceWithManyPods_OthersGetTheirTurn(t *testing.T) {
	e := newEnv(t, Options{})
	e.node("a")
	e.add("low", "a", 1)
	for gpus := int64(2); gpus < 8; gpus++ {
		e.addFor(fmt.Sprint("large-", gpus), "", 20, gpus)
	}
	e.add("high", "", 10, func(p *corev1.Pod) { p.Namespace = "zeta" })
	e.Claims[len(e.Claims)-1].Namespace = "zeta"
	e.after(0)
	e.expect()
	e.after(tick)
	e.expect("low")
}

// TestKeeper_LargeCluster_SearchesEachPartInTurn has the only victim on the last node; a disruption budget protects the
// others. A second pod takes turns with the one that could have it.
func TestKeeper_LargeCluster_SearchesEachPartInTurn(t *testing.T) {
	e := newEnv(t, Options{})
	e.put(e.budgets.GetStore().Add(&policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: whytest.Namespace, Name: "b"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}},
	}))
	for i := range searched + 2 {
		name := fmt.Sprintf("n%03d", i)
		e.node(name)
		if i <= searched {
			e.add("p-"+name, name, 1, func(p *corev1.Pod) { p.Labels = map[string]string{"app": "db"} })
		} else {
			e.add("low", name, 3)
		}
	}
	e.add("high", "", 10)
	e.add("other", "", 2)
	e.after(0)
	e.after(tick)
	e.expect()
	e.after(none/2 - tick)
	e.expect("low")
}

// TestKeeper_LargeCluster_LooksOnlyWhereVictimsMaySuffice has the only victim on the last node. The pods of the others
// have a higher priority.
func TestKeeper_LargeCluster_LooksOnlyWhereVictimsMaySuffice(t *testing.T) {
	e := newEnv(t, Options{})
	for i := range searched + 1 {
		name := fmt.Sprintf("n%03d", i)
		e.node(name)
		e.add("p-"+name, name, 20)
	}
	last := fmt.Sprintf("n%03d", searched)
	e.end("p-" + last)
	e.add("low", last, 1)
	e.add("high", "", 10)
	e.after(0)
	e.expect("low")
}

// TestKeeper_RandomOrder_EachEvictionPlacesItsPod has the scheduler's order by priority after each step: evictions end, and no
// pod is evicted for one that does not get its GPU.
func TestKeeper_RandomOrder_EachEvictionPlacesItsPod(t *testing.T) {
	evictions := 0
	for seed := range seedtest.Each(t, 15) {
		r := rand.New(rand.NewPCG(seed, 7))
		e := newEnv(t, Options{})
		for i := range 4 {
			e.node(fmt.Sprintf("n%d", i))
			e.add(fmt.Sprintf("p%d", i), fmt.Sprintf("n%d", i), int32(r.IntN(4)))
		}
		placed := 4
		priorities := map[string]int32{}
		for i := range 3 {
			priorities[fmt.Sprintf("q%d", i)] = int32(r.IntN(6))
			e.add(fmt.Sprintf("q%d", i), "", priorities[fmt.Sprintf("q%d", i)])
		}
		for range 130 {
			before := len(e.evicted)
			e.after(tick)
			if len(e.evicted) > before+1 {
				t.Fatalf("seed %d: %q were evicted for one GPU", seed, e.evicted[before:])
			}
			if len(e.evicted) == before {
				continue
			}
			placed--
			// The scheduler takes the pod of the highest priority.
			var best *corev1.Pod
			for _, p := range read.All[*corev1.Pod](e.pods) {
				if p.Spec.NodeName == "" && (best == nil || *p.Spec.Priority > *best.Spec.Priority) {
					best = p
				}
			}
			id := best.UID
			if !slices.ContainsFunc(e.served(), func(o types.UID) bool { return o == id || priorities[string(o)] == *best.Spec.Priority }) {
				t.Fatalf("seed %d: pods were evicted for %q, and %s comes first", seed, e.served(), best.Name)
			}
			e.end(best.Name)
			for _, n := range e.Nodes {
				if e.free(n.Name) {
					e.add(best.Name, n.Name, *best.Spec.Priority)
					placed++
					break
				}
			}
		}
		if placed != 4 {
			t.Errorf("seed %d: %d GPUs are in use", seed, placed)
		}
		evictions += len(e.evicted)
	}
	if !testing.Short() && evictions < 10 {
		t.Errorf("%d evictions", evictions)
	}
}

// served are the pods for which others were evicted.
func (e *env) served() (out []types.UID) {
	for _, one := range e.evictions {
		out = append(out, one.pod)
	}
	return out
}

func (e *env) free(node string) bool {
	return !slices.ContainsFunc(read.All[*corev1.Pod](e.pods), func(p *corev1.Pod) bool { return p.Spec.NodeName == node })
}
