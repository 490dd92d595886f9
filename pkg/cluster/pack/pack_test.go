// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pack_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/internal/testing/whytest"
	"gpu-dra-driver/pkg/cluster/pack"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/show/view"
	"gpu-dra-driver/pkg/wire"
)

const (
	gpus   = whytest.GPUs
	small  = whytest.Small
	medium = whytest.Medium
)

// env is a cluster in memory with pods, and the scheduler's allocator beside it.
type env struct {
	t testing.TB
	*whytest.Fleet
	pods    []*corev1.Pod
	budgets []*policyv1.PodDisruptionBudget
	use     map[types.NamespacedName]float64
}

func newEnv(t testing.TB) *env {
	return &env{t: t, Fleet: whytest.New(), use: map[types.NamespacedName]float64{}}
}

func (e *env) node(name, profile string, count int) *corev1.Node {
	e.t.Helper()
	n, err := e.Add(name, profile, count)
	if err != nil {
		e.t.Fatal(err)
	}
	n.Status.Allocatable = corev1.ResourceList{
		"cpu": resource.MustParse("32"), "memory": resource.MustParse("256Gi"), "pods": resource.MustParse("110"),
	}
	return n
}

// start runs a pod of a ReplicaSet with a claim of its own on a node.
func (e *env) start(name, node, class string, change ...func(*corev1.Pod)) *corev1.Pod {
	e.t.Helper()
	p, ok := e.try(whytest.Claim(name, class, 1), node, change...)
	if !ok {
		e.t.Fatalf("node %s has no room for %s", node, name)
	}
	return p
}

func (e *env) try(c *resourceapi.ResourceClaim, node string, change ...func(*corev1.Pod)) (*corev1.Pod, bool) {
	if !e.put(c, node) {
		return nil, false
	}
	p := whytest.Pod(c.Name, c)
	controller := true
	c.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: p.Name, UID: p.UID, Controller: &controller}}
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "of-" + c.Name, UID: "r", Controller: &controller}}
	p.Labels = map[string]string{"app": c.Name}
	p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
	for _, f := range change {
		f(p)
	}
	e.pods = append(e.pods, p)
	return p, true
}

// schedule runs the allocator again if its second was too short, as on a busy machine.
func schedule(f *whytest.Fleet, node *corev1.Node, claims []*resourceapi.ResourceClaim) (results []resourceapi.AllocationResult, err error) {
	for range 10 {
		if results, err = whytest.Schedule(f, node, claims); err == nil {
			return results, nil
		}
	}
	return nil, err
}

// put allocates a claim on a node, for a pod of its name, and reports whether there was room.
func (e *env) put(c *resourceapi.ResourceClaim, node string) bool {
	e.t.Helper()
	at := slices.IndexFunc(e.Nodes, func(n *corev1.Node) bool { return n.Name == node })
	results, err := schedule(e.Fleet, e.Nodes[at], []*resourceapi.ResourceClaim{c})
	if err != nil {
		e.t.Fatal(err)
	}
	if len(results) == 0 {
		return false
	}
	c.Status.Allocation = &results[0]
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: c.Name, UID: c.UID}}
	e.Claims = append(e.Claims, c)
	return true
}

func (e *env) cluster() *pack.Cluster {
	e.t.Helper()
	slices, err := whytest.Pack(e.Slices)
	if err != nil {
		e.t.Fatal(err)
	}
	c := &pack.Cluster{Cluster: e.Cluster, Pods: e.pods, Budgets: e.budgets, Use: e.use}
	c.States = read.States{read.Pods: nil}
	c.Slices = slices
	return c
}

var options = pack.Options{Driver: slicetest.Driver, Limit: 10 * time.Minute}

func (e *env) make(goal string, o pack.Options) (pack.Goal, pack.Plan) {
	e.t.Helper()
	w, err := pack.ParseGoal(slicetest.Driver, goal)
	if err != nil {
		e.t.Fatal(err)
	}
	return w, pack.Make(context.Background(), e.cluster(), w, o)
}

// held returns the devices of the claims that are on one of the GPUs.
func (e *env) held(gpus ...pack.GPU) (out []string) {
	for _, n := range view.Nodes(view.Objects{Driver: slicetest.Driver, Slices: e.cluster().Slices, Claims: values(e.Claims)}) {
		for _, g := range n.GPUs {
			if slices.Contains(gpus, pack.GPU{Node: n.Name, Name: g.Name}) {
				out = append(out, g.Holders()...)
			}
		}
	}
	return out
}

func values(all []*resourceapi.ResourceClaim) (out []resourceapi.ResourceClaim) {
	for _, c := range all {
		out = append(out, *c)
	}
	return out
}

// replay makes the moves of a plan with the allocator, as the scheduler does: the GPUs of the plan are tainted meanwhile.
// It returns the cluster after the plan.
func (e *env) replay(plan pack.Plan, w pack.Goal) error {
	taint := resourceapi.DeviceTaint{Key: "gpu.nvidia.com/cordoned", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	var cordons []*resourceapi.DeviceTaintRule
	for _, s := range e.Slices {
		for _, d := range s.Spec.Devices {
			for _, g := range pool.GPUsOf(d) {
				if slices.Contains(plan.Hold, pack.GPU{Node: *s.Spec.NodeName, Name: g}) {
					cordons = append(cordons, &resourceapi.DeviceTaintRule{Spec: resourceapi.DeviceTaintRuleSpec{
						DeviceSelector: &resourceapi.DeviceTaintSelector{Pool: &s.Spec.Pool.Name, Device: &d.Name}, Taint: taint,
					}})
					break
				}
			}
		}
	}
	rules := e.Rules
	e.Rules = slices.Concat(rules, cordons)
	for i, m := range plan.Moves {
		for _, name := range m.Claims {
			at := slices.IndexFunc(e.Claims, func(c *resourceapi.ResourceClaim) bool { return c.Namespace+"/"+c.Name == name })
			if at < 0 {
				return fmt.Errorf("step %d: no claim %s", i, name)
			}
			moved := e.Claims[at].DeepCopy()
			moved.Status = resourceapi.ResourceClaimStatus{}
			e.Claims = slices.Delete(slices.Clone(e.Claims), at, at+1)
			if !e.put(moved, m.To.Node) {
				return fmt.Errorf("step %d: %s does not fit on %s", i, name, m.To.Node)
			}
			for _, r := range moved.Status.Allocation.Devices.Results {
				if !slices.Contains(m.To.Devices, r.Device) {
					return fmt.Errorf("step %d: %s gets %s, the plan says %v", i, name, r.Device, m.To.Devices)
				}
			}
		}
		for _, pod := range e.pods {
			if slices.Contains(m.Pods, pod.Namespace+"/"+pod.Name) {
				pod.Spec.NodeName = m.To.Node
			}
		}
	}
	e.Rules = rules
	if plan.Place == nil {
		return nil
	}
	node := e.Nodes[slices.IndexFunc(e.Nodes, func(n *corev1.Node) bool { return n.Name == plan.Place.Node })]
	fleet := *e.Fleet
	if w.Class != nil {
		fleet.Classes = append(slices.Clone(fleet.Classes), w.Class)
	}
	results, err := schedule(&fleet, node, w.Claims)
	if err != nil || len(results) == 0 {
		return fmt.Errorf("the goal does not fit on %s after the moves: %w", plan.Place.Node, err)
	}
	return nil
}

// blocked has two nodes: on n1 each half has a small partition, and n2 is free.
func blocked(t *testing.T) *env {
	e := newEnv(t)
	e.node("n1", "hgx-h100", 4)
	e.node("n2", "hgx-h100", 4)
	e.start("web", "n1", small)
	return e
}

func TestMake_GroupBlockedByPartition_MovesIt(t *testing.T) {
	e := blocked(t)
	e.start("train", "n2", gpus)
	e.use[types.NamespacedName{Namespace: whytest.Namespace, Name: "web"}] = 0.01
	w, plan := e.make("nvlink-4", options)
	if plan.Result != pack.Moves || len(plan.Moves) != 1 || plan.Moves[0].To.Node != "n2" || plan.Place.Node != "n1" {
		t.Fatalf("%+v\n%s", plan, plan)
	}
	t.Log(plan)
	if err := e.replay(plan, w); err != nil {
		t.Error(err)
	}
}

// TestMake_FreeGPUCordoned_NamesTheCordon has two GPUs: a pod that cannot move on one, and a cordon on the other.
func TestMake_FreeGPUCordoned_NamesTheCordon(t *testing.T) {
	e := newEnv(t)
	e.node("n1", "hgx-h100", 2)
	e.start("a", "n1", whytest.GPUs, func(p *corev1.Pod) { p.OwnerReferences = nil })
	for _, s := range e.Slices {
		for i, d := range s.Spec.Devices {
			if slices.Contains(pool.GPUsOf(d), "gpu-0000-43-00-0") {
				s.Spec.Devices[i].Taints = []resourceapi.DeviceTaint{{Key: wire.CordonTaint, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
			}
		}
	}
	_, plan := e.make("1", options)
	const want = "node n1: other claims hold the devices, and its free ones have device taints that the claim does not tolerate: " +
		"cordoned by an administrator (kubectl gpu uncordon n1/gpu-0000-43-00-0)"
	if plan.Result != pack.Blocked || !slices.Contains(plan.Blockers, want) {
		t.Errorf("the plan lacks %q:\n%s", want, plan)
	}
	_, plan = e.make("9", options)
	const never = "node n1: cannot satisfy the claim, even if it were empty: it has room for 1 of the 9 devices of request goal"
	if plan.Result != pack.Blocked || !slices.Contains(plan.Blockers, never) {
		t.Errorf("the plan:\n%s", plan)
	}
}

// TestMake_RandomClusters_StepsReplay replays each step of plans with the allocator, whose answers the planner shares in no
// other way. Plans of few units are compared with all sets of units.
func TestMake_RandomClusters_StepsReplay(t *testing.T) {
	const tried = 2 // Pods of a set, in the brute force.
	results, moves := map[pack.Result]int{}, map[int]int{}
	for seed := range seedtest.Each(t, 50) {
		r := rand.New(rand.NewPCG(seed, 35))
		e := random(t, r)
		o := options
		goal := []string{"nvlink-2", "nvlink-2", "nvlink-4", "nvlink-4", "2", "3", "3g.40gb", "4g.40gb", "7g.80gb", "70Gi"}[r.IntN(10)]
		w, plan := e.make(goal, o)
		results[plan.Result]++
		moves[len(plan.Moves)]++
		before := slices.Clone(e.Claims)
		least := e.fewest(w, o, tried)
		e.Claims = before
		if got := len(plan.Moves); plan.Result == pack.Moves && least >= 0 && got != least || plan.Result == pack.Blocked && least >= 0 {
			t.Errorf("seed %d, goal %s: %d moves suffice: %s", seed, goal, least, plan)
		} else if plan.Result == pack.Moves && least < 0 && got <= tried {
			t.Errorf("seed %d, goal %s: the brute force finds no such plan: %s", seed, goal, plan)
		}
		if err := e.replay(plan, w); err != nil {
			t.Errorf("seed %d, goal %s: %v: %s", seed, goal, err, plan)
		}
	}
	t.Log(results, moves)
	if !testing.Short() && (results[pack.Fits] == 0 || results[pack.Moves] == 0 || results[pack.Blocked] == 0 || moves[2] == 0) {
		t.Errorf("the clusters show only %v with %v moves", results, moves)
	}
}

// random returns a cluster of a few nodes with pods.
func random(t testing.TB, r *rand.Rand) *env {
	e := newEnv(t)
	for i := range 2 + r.IntN(2) {
		e.node(fmt.Sprintf("n%d", i), []string{"hgx-h100", "hgx-h100", "hgx-h100", "l40s-4"}[r.IntN(4)], []int{2, 2, 4}[r.IntN(3)])
	}
	for i := range 6 + r.IntN(10) {
		class := []string{gpus, small, small, medium, medium}[r.IntN(5)]
		c := whytest.Claim(fmt.Sprintf("p%d", i), class, 1)
		if class == gpus && r.IntN(2) == 0 {
			c.Spec.Devices.Requests[0].Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
				"memory": resource.MustParse([]string{"10Gi", "24Gi"}[r.IntN(2)]),
			}}
		}
		// Pods that ended meanwhile leave holes: the place is on a random GPU.
		e.scattered(r, c, e.Nodes[r.IntN(len(e.Nodes))].Name)
	}
	for _, p := range e.pods {
		if r.IntN(6) == 0 {
			p.OwnerReferences = nil
		}
		if r.IntN(3) == 0 {
			e.use[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}] = r.Float64()
		}
	}
	return e
}

// scattered places a claim while some GPUs are tainted, so that it is on one that the allocator would not take first.
func (e *env) scattered(r *rand.Rand, c *resourceapi.ResourceClaim, node string) {
	rules := e.Rules
	defer func() { e.Rules = rules }()
	names := map[string]bool{}
	for _, s := range e.Slices {
		for _, d := range s.Spec.Devices {
			for _, g := range pool.GPUsOf(d) {
				if *s.Spec.NodeName == node {
					names[g] = true
				}
			}
		}
	}
	closed := map[string]bool{}
	for _, g := range slices.Sorted(maps.Keys(names)) {
		closed[g] = r.IntN(2) == 0
	}
	for _, s := range e.Slices {
		for _, d := range s.Spec.Devices {
			if slices.ContainsFunc(pool.GPUsOf(d), func(g string) bool { return closed[g] }) && *s.Spec.NodeName == node {
				e.Rules = append(e.Rules, &resourceapi.DeviceTaintRule{Spec: resourceapi.DeviceTaintRuleSpec{
					DeviceSelector: &resourceapi.DeviceTaintSelector{Pool: &s.Spec.Pool.Name, Device: &d.Name},
					Taint:          resourceapi.DeviceTaint{Key: "k", Effect: resourceapi.DeviceTaintEffectNoSchedule},
				}})
			}
		}
	}
	e.try(c, node)
}

// fewest returns the smallest number of pods of one node, up to a limit, after whose moves the goal fits, or -1. It tries all
// sets, orders and nodes.
func (e *env) fewest(w pack.Goal, o pack.Options, limit int) int {
	for size := 0; size <= limit; size++ {
		for _, n := range e.Nodes {
			var movable []string
			for _, p := range e.pods {
				if p.Spec.NodeName == n.Name && (len(p.OwnerReferences) > 0 || o.Unmanaged) {
					movable = append(movable, p.Name)
				}
			}
			for _, set := range combinations(movable, size) {
				if e.suffices(w, n, set) {
					return size
				}
			}
		}
	}
	return -1
}

func combinations(all []string, size int) (out [][]string) {
	if size == 0 {
		return [][]string{nil}
	}
	for i, one := range all {
		for _, rest := range combinations(all[i+1:], size-1) {
			out = append(out, append([]string{one}, rest...))
		}
	}
	return out
}

func (e *env) schedule(w pack.Goal, n *corev1.Node, claims []*resourceapi.ResourceClaim) []resourceapi.AllocationResult {
	fleet := *e.Fleet
	if w.Class != nil {
		fleet.Classes = append(slices.Clone(fleet.Classes), w.Class)
	}
	results, err := schedule(&fleet, n, claims)
	if err != nil {
		e.t.Fatal(err)
	}
	return results
}

// suffices reports whether the goal fits on a node once some pods have moved.
func (e *env) suffices(w pack.Goal, n *corev1.Node, set []string) bool {
	all := e.Claims
	defer func() { e.Claims = all }()
	e.Claims = nil
	for _, c := range all {
		if !slices.Contains(set, c.Name) {
			e.Claims = append(e.Claims, c)
		}
	}
	goal := e.schedule(w, n, w.Claims)
	if len(goal) == 0 {
		return false
	}
	e.Claims = all
	hold := map[string]bool{}
	for _, s := range e.Slices {
		for _, d := range s.Spec.Devices {
			if *s.Spec.NodeName == n.Name && slices.ContainsFunc(goal[0].Devices.Results, func(r resourceapi.DeviceRequestAllocationResult) bool { return r.Device == d.Name }) {
				for _, g := range pool.GPUsOf(d) {
					hold[g] = true
				}
			}
		}
	}
	rules := e.Rules
	defer func() { e.Rules = rules }()
	for _, s := range e.Slices {
		for _, d := range s.Spec.Devices {
			if *s.Spec.NodeName == n.Name && slices.ContainsFunc(pool.GPUsOf(d), func(g string) bool { return hold[g] }) {
				e.Rules = append(e.Rules, &resourceapi.DeviceTaintRule{Spec: resourceapi.DeviceTaintRuleSpec{
					DeviceSelector: &resourceapi.DeviceTaintSelector{Pool: &s.Spec.Pool.Name, Device: &d.Name},
					Taint:          resourceapi.DeviceTaint{Key: "h", Effect: resourceapi.DeviceTaintEffectNoSchedule},
				}})
			}
		}
	}
	return e.relocatable(w, set)
}

func (e *env) relocatable(w pack.Goal, rest []string) bool {
	if len(rest) == 0 {
		return true
	}
	for i, name := range rest {
		others := slices.Delete(slices.Clone(rest), i, i+1)
		all := e.Claims
		at := slices.IndexFunc(all, func(c *resourceapi.ResourceClaim) bool { return c.Name == name })
		for _, n := range e.Nodes {
			moved := all[at].DeepCopy()
			moved.Status = resourceapi.ResourceClaimStatus{}
			e.Claims = slices.Delete(slices.Clone(all), at, at+1)
			if e.put(moved, n.Name) && e.relocatable(w, others) {
				e.Claims = all
				return true
			}
		}
		e.Claims = all
	}
	return false
}
