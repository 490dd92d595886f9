// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pack_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/whytest"
	"gpu-dra-driver/pkg/cluster/pack"
	"gpu-dra-driver/pkg/cluster/why"
	"gpu-dra-driver/pkg/wire"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// of gives a running pod a priority and the minutes since its start.
func of(priority int32, minutes int) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Priority = &priority
		started := metav1.NewTime(noon.Add(-time.Duration(minutes) * time.Minute))
		p.Status.StartTime = &started
	}
}

// slow gives a pod an hour to leave.
func slow(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(3600)) }

// waits returns the goal of a pod with a priority that waits for a claim.
func (e *env) waits(c *resourceapi.ResourceClaim, priority int32, change ...func(*corev1.Pod)) pack.Goal {
	p := whytest.Pod(c.Name, c)
	p.Spec.Priority = &priority
	for _, f := range change {
		f(p)
	}
	cluster := e.Cluster
	cluster.Claims = append(slices.Clone(e.Claims), c)
	s := why.Subject{Pod: p}
	needs := cluster.Needs(s, noon)
	return pack.Goal{Text: s.String(), Claims: needs.Waiting(), Pod: p, Needs: needs}
}

func (e *env) preempt(w pack.Goal, r pack.Rules) pack.Preemption {
	e.t.Helper()
	r.Now = noon
	return pack.Preempt(context.Background(), e.cluster(), w, r, options)
}

// expect checks the victims of a pod.
func (e *env) expect(w pack.Goal, r pack.Rules, verdict pack.Verdict, victims ...string) {
	e.t.Helper()
	got := e.preempt(w, r)
	var names []string
	for _, p := range got.Victims {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	if got.Verdict != verdict || !slices.Equal(names, victims) {
		e.t.Errorf("the answer is %s with victims %v on node %q; expected %s with %v", got.Verdict, names, got.Node, verdict, victims)
	}
}

// TestPreempt_Choice_IsTheSchedulersOrder has one node of a GPU each for what the order compares.
func TestPreempt_Choice_IsTheSchedulersOrder(t *testing.T) {
	for name, victims := range map[string][2][]func(*corev1.Pod){
		"the lowest priority": {{of(5, 1)}, {of(4, 9)}},
		"the latest start":    {{of(4, 9)}, {of(4, 1)}},
		"a short grace":       {{of(1, 1), slow}, {of(4, 9)}},
		"no endless grace": {{of(1, 1), func(p *corev1.Pod) {
			p.Spec.TerminationGracePeriodSeconds = new(int64(math.MaxInt64))
		}}, {of(4, 9)}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			e.node("a", "l40s-4", 1)
			e.node("b", "l40s-4", 1)
			e.start("first", "a", gpus, victims[0]...)
			e.start("second", "b", gpus, victims[1]...)
			e.expect(e.waits(whytest.Claim("new", gpus, 1), 10), pack.Rules{}, pack.Evict, "second")
		})
	}
}

// TestPreempt_EvictionRefused_TakesTheNextVictim has two pods, of which the cheaper one is not evicted.
func TestPreempt_EvictionRefused_TakesTheNextVictim(t *testing.T) {
	e := newEnv(t)
	e.node("a", "l40s-4", 2)
	first := e.start("first", "a", gpus, of(1, 1))
	e.start("second", "a", gpus, of(2, 1))
	w := e.waits(whytest.Claim("new", gpus, 1), 10)
	e.expect(w, pack.Rules{}, pack.Evict, "first")
	e.expect(w, pack.Rules{Refused: sets.New(first.UID)}, pack.Evict, "second")
}

func TestPreempt_PodThatMayNotBeAVictim_IsNone(t *testing.T) {
	at := metav1.NewTime(noon)
	for name, c := range map[string]struct {
		victim  func(*corev1.Pod)
		rules   pack.Rules
		verdict pack.Verdict
	}{
		"equal priority":  {of(10, 1), pack.Rules{}, pack.NoVictims},
		"higher priority": {of(11, 1), pack.Rules{}, pack.NoVictims},
		"namespace":       {of(1, 1), pack.Rules{Namespaces: []string{whytest.Namespace}}, pack.NoVictims},
		"class":           {func(p *corev1.Pod) { p.Spec.PriorityClassName = "kept" }, pack.Rules{Classes: []string{"kept"}}, pack.NoVictims},
		"busy node":       {of(1, 1), pack.Rules{Busy: sets.New("a")}, pack.NoVictims},
		"Kueue":           {func(p *corev1.Pod) { p.Labels["kueue.x-k8s.io/queue-name"] = "q" }, pack.Rules{}, pack.NoVictims},
		"PodGroup":        {func(p *corev1.Pod) { p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{} }, pack.Rules{}, pack.NoVictims},
		"Volcano":         {func(p *corev1.Pod) { p.Annotations = map[string]string{"scheduling.k8s.io/group-name": "g"} }, pack.Rules{}, pack.NoVictims},
		"leaves":          {func(p *corev1.Pod) { p.DeletionTimestamp = &at }, pack.Rules{}, pack.Room},
		"ended":           {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, pack.Rules{}, pack.Room},
		"leaves in two minutes": {func(p *corev1.Pod) {
			soon := metav1.NewTime(noon.Add(2 * time.Minute))
			p.DeletionTimestamp = &soon
		}, pack.Rules{}, pack.Room},
		"leaves in an hour": {func(p *corev1.Pod) {
			late := metav1.NewTime(noon.Add(time.Hour))
			p.DeletionTimestamp = &late
		}, pack.Rules{}, pack.NoVictims},
		"does not leave": {func(p *corev1.Pod) {
			long := metav1.NewTime(noon.Add(-time.Hour))
			p.DeletionTimestamp = &long
		}, pack.Rules{}, pack.NoVictims},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			e.node("a", "l40s-4", 1)
			e.start("holder", "a", gpus, c.victim)
			e.expect(e.waits(whytest.Claim("new", gpus, 1), 10), c.rules, c.verdict)
		})
	}
}

// TestPreempt_CriticalPods_EvictNone has the priorities of Kubernetes' own classes: the higher one waits.
func TestPreempt_CriticalPods_EvictNone(t *testing.T) {
	for priority, verdict := range map[int32]pack.Verdict{1_999_999_999: pack.Evict, 2_000_000_000: pack.NoVictims} {
		e := newEnv(t)
		e.node("a", "l40s-4", 1)
		e.start("holder", "a", gpus, of(priority, 1))
		var victims []string
		if verdict == pack.Evict {
			victims = []string{"holder"}
		}
		e.expect(e.waits(whytest.Claim("new", gpus, 1), 2_000_001_000), pack.Rules{}, verdict, victims...)
	}
}

// TestPreempt_DevicePluginIsGone_ResourceIsServed has pods with nvidia.com/gpu on a node whose kubelet still counts zero of it.
func TestPreempt_DevicePluginIsGone_ResourceIsServed(t *testing.T) {
	byResource := func(p *corev1.Pod) {
		p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}, Requests: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")},
		}}}
	}
	for name, c := range map[string]struct {
		counted string
		verdict pack.Verdict
		victims []string
	}{
		"never a device plugin": {"", pack.Evict, []string{"holder"}},
		"a former one":          {"0", pack.Evict, []string{"holder"}},
		"one that serves":       {"2", pack.NoVictims, nil},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			e.Classes[0].Spec.ExtendedResourceName = new("nvidia.com/gpu")
			n := e.node("a", "l40s-4", 1)
			if c.counted != "" {
				n.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse(c.counted)
			}
			e.start("holder", "a", gpus, byResource)
			w := e.waits(whytest.Claim("new", gpus, 1), 10, byResource, func(p *corev1.Pod) { p.Spec.ResourceClaims = nil })
			e.expect(w, pack.Rules{Together: true}, c.verdict, c.victims...)
		})
	}
}

// TestPreempt_ClaimWithoutPods_LeavesUnlessItStays has an allocated claim that no pod uses, and a pod on another node.
func TestPreempt_ClaimWithoutPods_LeavesUnlessItStays(t *testing.T) {
	e := newEnv(t)
	e.node("a", "l40s-4", 1)
	e.start("unused", "a", gpus)
	e.pods, e.Claims[0].Status.ReservedFor = nil, nil
	e.node("b", "l40s-4", 1)
	e.start("holder", "b", gpus)
	w := e.waits(whytest.Claim("new", gpus, 1), 10)
	e.expect(w, pack.Rules{}, pack.Room)
	e.expect(w, pack.Rules{Kept: true}, pack.Evict, "holder")
}

func TestPreempt_PolicyNever_HasNoVictims(t *testing.T) {
	e := newEnv(t)
	e.node("a", "l40s-4", 1)
	e.start("holder", "a", gpus)
	never := corev1.PreemptNever
	e.expect(e.waits(whytest.Claim("new", gpus, 1), 10, func(p *corev1.Pod) { p.Spec.PreemptionPolicy = &never }), pack.Rules{}, pack.NoVictims)
}

func TestPreempt_DisruptionBudget_HoldsUnlessTheValueSaysSo(t *testing.T) {
	e := newEnv(t)
	e.node("a", "l40s-4", 1)
	e.start("holder", "a", gpus, of(1, 1))
	e.budgets = []*policyv1.PodDisruptionBudget{{
		ObjectMeta: metav1.ObjectMeta{Namespace: whytest.Namespace, Name: "b"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "holder"}}},
	}}
	w := e.waits(whytest.Claim("new", gpus, 1), 10)
	e.expect(w, pack.Rules{}, pack.NoVictims)
	e.expect(w, pack.Rules{Violate: true}, pack.Evict, "holder")
	e.budgets[0].Status.DisruptionsAllowed = 1
	e.expect(w, pack.Rules{}, pack.Evict, "holder")
}

// TestPreempt_CPUOfTheNode_CountsAfterTheVictims has two nodes whose devices suffice, and CPU only on one.
func TestPreempt_CPUOfTheNode_CountsAfterTheVictims(t *testing.T) {
	cpu := func(amount string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(amount)}}}}
		}
	}
	e := newEnv(t)
	for _, name := range []string{"a", "b"} {
		e.node(name, "l40s-4", 1)
		e.start("on-"+name, name, gpus, of(1, 1), cpu("8"))
	}
	e.pods = append(e.pods, whytest.Pod("other"))
	e.pods[2].Spec.NodeName = "a"
	cpu("16")(e.pods[2])
	e.expect(e.waits(whytest.Claim("new", gpus, 1), 10, cpu("32")), pack.Rules{}, pack.Evict, "on-b")
	e.expect(e.waits(whytest.Claim("new", gpus, 1), 10, cpu("33")), pack.Rules{}, pack.NoVictims)
}

func TestPreempt_SharedClaim_AllItsPodsOrNone(t *testing.T) {
	for _, second := range []int32{2, 10} {
		e := newEnv(t)
		e.node("a", "l40s-4", 1)
		p := e.start("first", "a", gpus, of(1, 1))
		other := p.DeepCopy()
		other.Name, other.UID = "second", "second"
		other.Spec.Priority = &second
		e.pods = append(e.pods, other)
		e.Claims[0].Status.ReservedFor = append(e.Claims[0].Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "second", UID: "second"})
		w := e.waits(whytest.Claim("new", gpus, 1), 10)
		if second < 10 {
			e.expect(w, pack.Rules{}, pack.Evict, "first", "second")
		} else {
			e.expect(w, pack.Rules{}, pack.NoVictims)
		}
	}
}

// TestPreempt_AnotherPodIsFirst_TakesItsPartOfTheNode has a pod that the scheduler tries first and that fits too.
func TestPreempt_AnotherPodIsFirst_TakesItsPartOfTheNode(t *testing.T) {
	e := newEnv(t)
	e.node("a", "l40s-4", 1)
	e.start("one", "a", gpus, of(1, 1))
	first := pack.Rules{Before: []pack.Goal{e.waits(whytest.Claim("before", gpus, 1), 20)}}
	w := e.waits(whytest.Claim("new", gpus, 1), 10)
	e.expect(w, first, pack.NoVictims)
	e.node("b", "l40s-4", 2)
	e.start("two", "b", gpus, of(2, 1))
	e.start("three", "b", gpus, of(3, 1))
	e.expect(w, first, pack.Evict, "three", "two")
	e.expect(w, pack.Rules{}, pack.Evict, "one")
}

// TestPreempt_Together_DevicesOfOneClaimAndNoneForASuccessor has pods that wait for one and for two GPUs.
func TestPreempt_Together_DevicesOfOneClaimAndNoneForASuccessor(t *testing.T) {
	e := newEnv(t)
	e.node("a", "l40s-4", 2)
	e.start("one", "a", gpus, of(1, 1))
	e.start("two", "a", gpus, of(2, 1))
	single, double := e.waits(whytest.Claim("single", gpus, 1), 10), e.waits(whytest.Claim("double", gpus, 2), 10)
	together := pack.Rules{Together: true}
	e.expect(single, together, pack.Evict, "one")
	e.expect(double, pack.Rules{}, pack.Evict, "one", "two")
	e.expect(double, together, pack.NoVictims)
	// One GPU is free. The successor of the victim takes it.
	e.Claims, e.pods = e.Claims[:1], e.pods[:1]
	e.expect(double, pack.Rules{}, pack.Evict, "one")
	e.expect(double, together, pack.NoVictims)
	if one, two := e.preempt(single, pack.Rules{}), e.preempt(double, pack.Rules{}); one.Verdict == pack.Evict || two.Together || len(two.GPUs) != 2 {
		t.Errorf("the answers are %+v and %+v", one, two)
	}
}

// TestPreempt_WholeGPUOfShares_EvictsAllTheirPods has a GPU with three shares, and one with two partitions and a pod of high priority.
func TestPreempt_WholeGPUOfShares_EvictsAllTheirPods(t *testing.T) {
	e := newEnv(t)
	e.node("a", "l40s-4", 1)
	for i := range 3 {
		c := whytest.Claim(fmt.Sprintf("share-%d", i), gpus, 1, func(q *resourceapi.ExactDeviceRequest) {
			q.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("10Gi")}}
		})
		if _, ok := e.try(c, "a", of(int32(i), 1)); !ok {
			t.Fatal("no room")
		}
	}
	w := e.waits(whytest.Claim("new", gpus, 1), 10)
	e.expect(w, pack.Rules{}, pack.Evict, "share-0", "share-1", "share-2")
	if got := e.preempt(w, pack.Rules{}); got.Together || len(got.GPUs) != 1 {
		t.Errorf("the answer is %+v", got)
	}
	e.node("b", "hgx-h100", 1)
	e.start("part", "b", whytest.Small, of(1, 1))
	e.start("kept", "b", whytest.Medium, of(20, 1))
	e.expect(w, pack.Rules{}, pack.Evict, "share-0", "share-1", "share-2")
}

// TestPreempt_ReservedGPUs_CountForTheirPodOnly has a node whose GPUs are reserved.
func TestPreempt_ReservedGPUs_CountForTheirPodOnly(t *testing.T) {
	e := newEnv(t)
	e.node("a", "l40s-4", 2)
	e.start("one", "a", gpus, of(1, 1))
	e.start("two", "a", gpus, of(2, 1))
	w := e.waits(whytest.Claim("double", gpus, 2), 10)
	first := e.preempt(w, pack.Rules{})
	for _, s := range e.Slices {
		for i := range s.Spec.Devices {
			s.Spec.Devices[i].Taints = append(s.Spec.Devices[i].Taints, resourceapi.DeviceTaint{Key: wire.ReservedTaint, Effect: resourceapi.DeviceTaintEffectNoSchedule})
		}
	}
	e.expect(w, pack.Rules{}, pack.NoVictims)
	o := options
	o.Held = first.GPUs
	if got := pack.Preempt(t.Context(), e.cluster(), w, pack.Rules{Now: noon}, o); got.Verdict != pack.Evict || len(got.Victims) != 2 {
		t.Errorf("the answer is %+v", got)
	}
}

// key is the cost of victims in the scheduler's order, computed without the planner.
func (e *env) key(victims []*corev1.Pod) (out [6]int64) {
	out[2], out[5] = -1<<40, 1<<60
	disrupted := map[string]int32{}
	for _, p := range victims {
		for _, b := range e.budgets {
			if b.Spec.Selector.MatchLabels["app"] == p.Labels["app"] {
				if disrupted[b.Name]++; disrupted[b.Name] > b.Status.DisruptionsAllowed {
					out[0]++
				}
			}
		}
		priority, started := int64(pack.Priority(p)), p.Status.StartTime.Unix()
		if priority > out[2] {
			out[2], out[5] = priority, started
		} else if priority == out[2] {
			out[5] = min(out[5], started)
		}
		if p.Spec.TerminationGracePeriodSeconds != nil {
			out[1]++
		}
		out[3] += priority + 1<<31
		out[4]++
	}
	out[5] = -out[5]
	return out
}

// fitsWithout reports whether the allocator places the claims on a node without the pods' claims.
func (e *env) fitsWithout(w pack.Goal, node string, victims []*corev1.Pod) bool {
	all := e.Claims
	defer func() { e.Claims = all }()
	e.Claims = slices.DeleteFunc(slices.Clone(all), func(c *resourceapi.ResourceClaim) bool {
		return slices.ContainsFunc(victims, func(p *corev1.Pod) bool { return p.Name == c.Name })
	})
	at := slices.IndexFunc(e.Nodes, func(n *corev1.Node) bool { return n.Name == node })
	return len(e.schedule(w, e.Nodes[at], w.Claims)) > 0
}

// TestPreempt_RandomClusters_TheBestVictimsPlaceThePod compares with all sets of pods of lower priority, and carries the
// evictions out: pods that were evicted wait in turn, until nothing is evicted any more.
func TestPreempt_RandomClusters_TheBestVictimsPlaceThePod(t *testing.T) {
	evictions := 0
	for seed := range seedtest.Each(t, 100) {
		r := rand.New(rand.NewPCG(seed, 35))
		e := newEnv(t)
		e.node("a", "hgx-h100", 2)
		e.node("b", "hgx-h100", 1)
		random := func(name string) *resourceapi.ResourceClaim {
			return whytest.Claim(name, []string{gpus, gpus, small, medium}[r.IntN(4)], 1+int64(r.IntN(5))/4)
		}
		for i := range 9 + r.IntN(4) {
			p, ok := e.try(random(fmt.Sprintf("p%d", i)), e.Nodes[r.IntN(2)].Name, of(int32(r.IntN(5)-2), r.IntN(4)))
			if ok && r.IntN(4) == 0 {
				slow(p)
			}
			if ok && r.IntN(4) == 0 {
				b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}}
				b.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": p.Name}}
				b.Status.DisruptionsAllowed = int32(r.IntN(2))
				e.budgets = append(e.budgets, b)
			}
		}
		rules := pack.Rules{Violate: r.IntN(2) == 0}
		waiting := []pack.Goal{e.waits(random("new"), int32(r.IntN(6)-2))}
		for round := 0; len(waiting) > 0; round++ {
			if round > 30 {
				t.Fatalf("seed %d: evictions go round in circles", seed)
			}
			slices.SortStableFunc(waiting, func(a, b pack.Goal) int { return int(pack.Priority(b.Pod)) - int(pack.Priority(a.Pod)) })
			w := waiting[0]
			waiting = waiting[1:]
			got := e.preempt(w, rules)
			best, found := [6]int64{}, false
			room := ""
			for _, n := range e.Nodes {
				var lower []*corev1.Pod
				for _, p := range e.pods {
					if p.Spec.NodeName == n.Name && pack.Priority(p) < pack.Priority(w.Pod) {
						lower = append(lower, p)
					}
				}
				if e.fitsWithout(w, n.Name, nil) {
					room = n.Name
				}
				for mask := 1; mask < 1<<len(lower); mask++ {
					var set []*corev1.Pod
					for i, p := range lower {
						if mask&(1<<i) != 0 {
							set = append(set, p)
						}
					}
					k := e.key(set)
					if (!found || slices.Compare(k[:], best[:]) < 0) && (rules.Violate || k[0] == 0) && e.fitsWithout(w, n.Name, set) {
						best, found = k, true
					}
				}
			}
			switch {
			case room != "" && got.Verdict != pack.Room, room == "" && found != (got.Verdict == pack.Evict):
				t.Fatalf("seed %d: the answer is %s; room on %q, victims %v", seed, got.Verdict, room, found)
			case got.Verdict == pack.Evict && e.key(got.Victims) != best:
				t.Fatalf("seed %d: victims %v cost %v; others cost %v", seed, got.VictimNames(), e.key(got.Victims), best)
			case got.Verdict == pack.Evict && !e.fitsWithout(w, got.Node, got.Victims):
				t.Fatalf("seed %d: the pod does not fit without %v", seed, got.VictimNames())
			}
			for _, v := range got.Victims {
				if pack.Priority(v) >= pack.Priority(w.Pod) {
					t.Fatalf("seed %d: a victim has priority %d, the pod %d", seed, pack.Priority(v), pack.Priority(w.Pod))
				}
				evictions++
				e.pods = slices.DeleteFunc(e.pods, func(p *corev1.Pod) bool { return p == v })
				at := slices.IndexFunc(e.Claims, func(c *resourceapi.ResourceClaim) bool { return c.Name == v.Name })
				c := e.Claims[at]
				e.Claims = slices.Delete(e.Claims, at, at+1)
				again := whytest.Claim(c.Name, "", 1)
				again.Spec = c.Spec
				waiting = append(waiting, e.waits(again, pack.Priority(v)))
			}
			if got.Node != "" {
				if _, ok := e.try(w.Claims[0].DeepCopy(), got.Node, of(pack.Priority(w.Pod), 0)); !ok {
					t.Fatalf("seed %d: node %s has no room after the evictions", seed, got.Node)
				}
			}
		}
	}
	if !testing.Short() && evictions < 30 {
		t.Errorf("only %d pods were evicted in all clusters", evictions)
	}
	t.Logf("%d evictions", evictions)
}

// BenchmarkPreempt searches victims for four GPUs in clusters of nodes of eight H100.
func BenchmarkPreempt(b *testing.B) {
	for _, nodes := range []int{500, 5000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			c := large(b, nodes)
			for i, p := range c.Pods {
				of(int32(i%7), i%50)(p)
			}
			priority := int32(100)
			w := pack.Goal{Pod: &corev1.Pod{Spec: corev1.PodSpec{Priority: &priority}}}
			w.Claims = []*resourceapi.ResourceClaim{whytest.Claim("new", gpus, 4)}
			before := processorTime(b)
			for b.Loop() {
				got := pack.Preempt(context.Background(), c, w, pack.Rules{Now: noon}, options)
				if got.Verdict != pack.Evict {
					b.Fatal(got)
				}
				b.ReportMetric(float64(len(got.Victims)), "victims")
			}
			b.ReportMetric(float64(processorTime(b)-before)/float64(b.N)/1e6, "cpu-ms/op")
		})
	}
}

// TestNarrow_NoTime_KeepsNodesThatWereNotAskedAbout has a node that the pod does not fit on in any case.
func TestNarrow_NoTime_KeepsNodesThatWereNotAskedAbout(t *testing.T) {
	e := newEnv(t)
	e.node("a", "l40s-4", 1)
	e.start("stays", "a", gpus, of(20, 1))
	w := e.waits(whytest.Claim("new", gpus, 1), 10)
	if got := pack.Narrow(t.Context(), e.cluster(), w, pack.Rules{}, time.Minute); len(got) > 0 {
		t.Errorf("%d nodes, want none", len(got))
	}
	if got := pack.Narrow(t.Context(), e.cluster(), w, pack.Rules{}, 0); len(got) != 1 {
		t.Errorf("%d nodes, want the one that was not asked about", len(got))
	}
}
