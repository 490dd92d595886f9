// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pack_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

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
)

// kept returns a change that gives a pod another controller.
func kept(kind string) func(*env, *corev1.Pod) {
	return func(_ *env, p *corev1.Pod) { p.OwnerReferences[0].Kind = kind }
}

// TestMake_PodMustStay_PlanSaysWhy has a partition that blocks the only group, on a node beside one with free GPUs.
func TestMake_PodMustStay_PlanSaysWhy(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*env, *corev1.Pod)
		want   string
		// include makes the pod movable, if anything does.
		include func(*pack.Options)
	}{
		"DaemonSet":          {kept("DaemonSet"), "its DaemonSet would start it on its node again", nil},
		"static pod":         {kept("Node"), "it is a static pod", nil},
		"Job":                {kept("Job"), "--include jobs", func(o *pack.Options) { o.Jobs = true }},
		"unknown controller": {kept("RayCluster"), "whether its RayCluster of-web creates it again is not known", func(o *pack.Options) { o.Unmanaged = true }},
		"no controller": {
			func(_ *env, p *corev1.Pod) { p.OwnerReferences = nil }, "no controller would create it again", func(o *pack.Options) { o.Unmanaged = true },
		},
		"ends": {func(_ *env, p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }, "it is being deleted already", nil},
		"claim by name": {
			func(e *env, _ *corev1.Pod) { e.Claims[0].OwnerReferences = nil }, "it names claim web", func(o *pack.Options) { o.Shared = true },
		},
		"shared claim": {func(e *env, p *corev1.Pod) {
			other := p.DeepCopy()
			other.Name, other.UID = "other", "other"
			e.pods = append(e.pods, other)
			e.Claims[0].Status.ReservedFor = append(e.Claims[0].Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "other", UID: "other"})
		}, "2 pods share claim team-a/web", func(o *pack.Options) { o.Shared = true }},
		"PodGroup": {func(e *env, _ *corev1.Pod) {
			e.Claims[0].Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "g"}}
		}, "podgroup g uses claim team-a/web", nil},
		"no pod":     {func(e *env, _ *corev1.Pod) { e.Claims[0].Status.ReservedFor = nil }, "no pod uses claim team-a/web", nil},
		"unseen pod": {func(e *env, _ *corev1.Pod) { e.pods = nil }, "is not among the pods that you may list", nil},
		"volume": {func(_ *env, p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}}}
		}, "volumes (--include unchecked", func(o *pack.Options) { o.Unchecked = true }},
		"spread": {func(_ *env, p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{WhenUnsatisfiable: corev1.DoNotSchedule}}
		}, "topology spread (--include unchecked", func(o *pack.Options) { o.Unchecked = true }},
		"budget": {func(e *env, _ *corev1.Pod) {
			e.budgets = []*policyv1.PodDisruptionBudget{{
				ObjectMeta: metav1.ObjectMeta{Namespace: whytest.Namespace, Name: "b"},
				Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
			}}
		}, "its disruption budget b allows 0 evictions now", nil},
		"node selector": {
			func(_ *env, p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": "n1"} }, "team-a/web fits on no other node", nil,
		},
		"node taint": {func(e *env, _ *corev1.Pod) {
			e.Nodes[1].Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
		}, "team-a/web fits on no other node", nil},
		"CPU": {func(_ *env, p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("33")}}}}
		}, "team-a/web fits on no other node", nil},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			e.node("n1", "hgx-h100", 2)
			e.node("n2", "hgx-h100", 1) // It has no group.
			p := e.start("web", "n1", small)
			e.start("fill", "n1", gpus) // The other GPU of n1, so that web cannot move within the node.
			e.Claims[1].OwnerReferences, e.pods[1].OwnerReferences = nil, nil
			c.change(e, p)
			_, plan := e.make("nvlink-2", options)
			if text := plan.String(); plan.Result != pack.Blocked {
				t.Errorf("it is %s, %q is missing:\n%s", plan.Result, c.want, text)
			}
			empty := func(o pack.Options) pack.Plan { return pack.Empty(context.Background(), e.cluster(), "n1", o) }
			if text := empty(options).String(); !strings.Contains(text, c.want) {
				t.Errorf("%q is missing:\n%s", c.want, text)
			}
			if c.include == nil {
				return
			}
			o := options
			c.include(&o)
			if plan := empty(o); !slices.ContainsFunc(plan.Moves, func(m pack.Move) bool { return slices.Contains(m.Pods, "team-a/web") }) {
				t.Errorf("it does not move:\n%s", plan)
			}
		})
	}
}

// TestMake_EitherPodSuffices_TakesIdleBeforeBusyAndSmallBeforeLarge has a partition on each of two GPUs, of which one must
// be free.
func TestMake_EitherPodSuffices_TakesIdleBeforeBusyAndSmallBeforeLarge(t *testing.T) {
	for name, c := range map[string]struct {
		use  map[string]float64
		want string
	}{
		"busy small pod":   {map[string]float64{"small": 0.9, "large": 0}, "large"},
		"both idle":        {map[string]float64{"small": 0, "large": 0}, "small"},
		"none is measured": {nil, "small"},
		"one not measured": {map[string]float64{"large": 0.01}, "large"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			e.node("n1", "hgx-h100", 2)
			e.node("n2", "hgx-h100", 1)
			e.start("stays", "n2", small, func(p *corev1.Pod) { p.OwnerReferences = nil })
			e.start("large", "n1", medium)
			e.Rules = taintsOf(e, e.Claims[1]) // The next partition is on the other GPU.
			e.start("small", "n1", small)
			e.Rules = nil
			for pod, used := range c.use {
				e.use[types.NamespacedName{Namespace: whytest.Namespace, Name: pod}] = used
			}
			_, plan := e.make("1", options)
			if len(plan.Moves) != 1 || plan.Moves[0].Pods[0] != "team-a/"+c.want {
				t.Errorf("%s must move:\n%s", c.want, plan)
			}
		})
	}
}

// taintsOf taints the GPUs of a claim.
func taintsOf(e *env, c *resourceapi.ResourceClaim) (out []*resourceapi.DeviceTaintRule) {
	address := strings.Join(strings.Split(c.Status.Allocation.Devices.Results[0].Device, "-")[:5], "-")
	for _, s := range e.Slices {
		for _, d := range s.Spec.Devices {
			if strings.HasPrefix(d.Name, address) && *s.Spec.NodeName == strings.TrimSuffix(c.Status.Allocation.Devices.Results[0].Pool, "/gpu") {
				out = append(out, &resourceapi.DeviceTaintRule{Spec: resourceapi.DeviceTaintRuleSpec{
					DeviceSelector: &resourceapi.DeviceTaintSelector{Pool: &s.Spec.Pool.Name, Device: &d.Name},
					Taint:          resourceapi.DeviceTaint{Key: "k", Effect: resourceapi.DeviceTaintEffectNoSchedule},
				}})
			}
		}
	}
	return out
}

// TestEmpty_RandomClusters_OnlyBlockersStay replays the moves: the node has the claims of the pods that cannot move.
func TestEmpty_RandomClusters_OnlyBlockersStay(t *testing.T) {
	results := map[pack.Result]int{}
	for seed := range seedtest.Each(t, 20) {
		e := random(t, rand.New(rand.NewPCG(seed, 37)))
		plan := pack.Empty(context.Background(), e.cluster(), "n0", options)
		results[plan.Result]++
		if err := e.replay(plan, pack.Goal{}); err != nil {
			t.Fatalf("seed %d: %v:\n%s", seed, err, plan)
		}
		if holders := e.held(plan.Hold...); len(slices.Compact(slices.Sorted(slices.Values(holders)))) != len(plan.Blockers) {
			t.Errorf("seed %d: %v stay:\n%s", seed, holders, plan)
		}
	}
	if !testing.Short() && (results[pack.Moves] == 0 || results[pack.Blocked] == 0) {
		t.Errorf("the clusters show only %v", results)
	}
}

func TestParseGoal_Texts_SelectDevices(t *testing.T) {
	for text, want := range map[string]string{
		"nvlink-4": "an NVLink group of 4 GPUs", "1": "1 GPU", "4": "4 GPUs of one node", "3g.40gb": "a partition 3g.40gb", "40Gi": "40Gi of a GPU's memory",
		"": "", "0": "", "-1": "", "33": "", "nvlink-": "", "nvlink-x": "", "many": "", "-4Gi": "",
	} {
		w, err := pack.ParseGoal(slicetest.Driver, text)
		if (err == nil) != (want != "") || w.Text != want {
			t.Errorf("%q is %q, %v; want %q", text, w.Text, err, want)
		}
	}
}
