// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package waiting_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/pkg/cluster/waiting"
)

// podOf returns a pod that waits for a claim and for an extended resource, after some changes.
func podOf(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "p", CreationTimestamp: metav1.Unix(1, 0)},
		Spec: corev1.PodSpec{
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("c")}},
			Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1"), "cpu": resource.MustParse("1")},
			}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func limits(names ...corev1.ResourceName) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.ResourceClaims, p.Spec.Containers[0].Resources.Limits = nil, corev1.ResourceList{}
		for _, n := range names {
			p.Spec.Containers[0].Resources.Limits[n] = resource.MustParse("1")
		}
	}
}

func TestWaits_PodsOfAnyState_OnlyThoseToBePlaced(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"claims and resources":   {func(*corev1.Pod) {}, true},
		"a resource":             {limits("nvidia.com/gpu"), true},
		"a class's own resource": {limits("deviceclass.resource.kubernetes.io/gpu.nvidia.com"), true},
		"no phase yet":           {func(p *corev1.Pod) { p.Status.Phase = "" }, true},
		"only CPU":               {limits("cpu", "hugepages-2Mi", "attachable-volumes.kubernetes.io/x"), false},
		"none of a resource": {func(p *corev1.Pod) {
			limits()(p)
			p.Spec.Containers[0].Resources.Limits["nvidia.com/gpu"] = resource.Quantity{}
		}, false},
		"it has a node":     {func(p *corev1.Pod) { p.Spec.NodeName = "n" }, false},
		"it ends":           {func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }, false},
		"a scheduling gate": {func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} }, false},
		"it has ended":      {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
		"requests without limits": {func(p *corev1.Pod) {
			limits()(p)
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"a.b/c": resource.MustParse("1")}
		}, true},
	} {
		if got := waiting.Waits(podOf(c.change)); got != c.want {
			t.Errorf("%s: it waits: %t, want %t", name, got, c.want)
		}
	}
}

func TestSaidOf_Conditions_FirstTimeAndMessage(t *testing.T) {
	condition := func(status corev1.ConditionStatus, reason string, at metav1.Time) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: status, Reason: reason, Message: "m", LastTransitionTime: at}}
		}
	}
	at := func(second int64) time.Time { return time.Unix(second, 0) }
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want waiting.Said
	}{
		"nothing":             {podOf(), waiting.Said{At: at(1)}},
		"unschedulable":       {podOf(condition(corev1.ConditionFalse, corev1.PodReasonUnschedulable, metav1.Unix(5, 0))), waiting.Said{Tried: true, Unschedulable: true, Message: "m", At: at(5)}},
		"the scheduler fails": {podOf(condition(corev1.ConditionFalse, corev1.PodReasonSchedulerError, metav1.Unix(5, 0))), waiting.Said{Tried: true, Message: "m", At: at(5)}},
		"gated":               {podOf(condition(corev1.ConditionFalse, corev1.PodReasonSchedulingGated, metav1.Unix(5, 0))), waiting.Said{At: at(1)}},
		"no time":             {podOf(condition(corev1.ConditionFalse, "", metav1.Time{})), waiting.Said{Tried: true, Message: "m", At: at(1)}},
		"placed":              {podOf(condition(corev1.ConditionTrue, "", metav1.Unix(5, 0))), waiting.Said{At: at(1)}},
	} {
		if diff := cmp.Diff(c.want, waiting.SaidOf(c.pod)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestReferences_EachState_NameAndClaim(t *testing.T) {
	claim := func(name, owner string) *resourceapi.ResourceClaim {
		c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		if owner != "" {
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: owner, UID: "p", Controller: new(true)}}
		}
		return c
	}
	pod := podOf(func(p *corev1.Pod) {
		template := func(name string) corev1.PodResourceClaim {
			return corev1.PodResourceClaim{Name: name, ResourceClaimTemplateName: new("t")}
		}
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, template("made"), template("foreign"), template("unneeded"), template("unmade"))
		p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{
			{Name: "made", ResourceClaimName: new("made-1")}, {Name: "foreign", ResourceClaimName: new("foreign-1")}, {Name: "unneeded"},
		}
		p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "extended"}
	})
	claims := waiting.Index([]*resourceapi.ResourceClaim{nil, claim("made-1", "p"), claim("foreign-1", ""), claim("extended", "p")})
	type row struct {
		Reference, Name, Template string
		There, Foreign            bool
	}
	var got []row
	for _, r := range waiting.References(pod, claims) {
		got = append(got, row{r.PodResourceClaim.Name, r.Name, r.Template(), r.Claim != nil, r.Foreign != nil})
	}
	want := []row{
		{"gpu", "c", "", false, false}, {"made", "made-1", "t", true, false}, {"foreign", "foreign-1", "t", true, true}, {"unmade", "", "t", false, false},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if c := waiting.ExtendedClaim(pod, claims); c == nil || c.Name != "extended" {
		t.Errorf("the claim of its resources is %v", c)
	}
	if c := waiting.ExtendedClaim(podOf(), claims); c != nil {
		t.Errorf("a pod without one has %v", c)
	}
}

func TestKey_PodsThatDifferInNames_AreAlike(t *testing.T) {
	claims := []*resourceapi.ResourceClaim{{Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "r"}}}}}, nil}
	first := waiting.Key(podOf(), claims)
	if other := waiting.Key(podOf(func(p *corev1.Pod) { p.Name, p.UID, p.Labels = "q", "q", map[string]string{"a": "b"} }), claims); other != first {
		t.Error("another name makes another kind of pods")
	}
	nodes := waiting.NodesKey(podOf())
	for name, change := range map[string]func(*corev1.Pod){
		"priority":      func(p *corev1.Pod) { p.Spec.Priority = new(int32(1)) },
		"resources":     limits("nvidia.com/gpu", "memory"),
		"node selector": func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"a": "b"} },
		"tolerations":   func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Key: "k"}} },
		"affinity":      func(p *corev1.Pod) { p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}} },
	} {
		if waiting.Key(podOf(change), claims) == first {
			t.Errorf("pods with another %s are alike", name)
		}
		same := name == "priority" || name == "resources"
		if (waiting.NodesKey(podOf(change)) == nodes) != same {
			t.Errorf("pods with another %s may run on the same nodes: want %t", name, same)
		}
	}
	if waiting.Key(podOf(), claims[:1]) == first || waiting.Key(podOf(), []*resourceapi.ResourceClaim{nil, claims[0]}) == first {
		t.Error("pods with other claims are alike")
	}
}

func TestExcluded_OneThingAtATime_IsNamed(t *testing.T) {
	node := func() *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"a": "b"}}}
	}
	on := func(key, value string) *corev1.NodeSelector {
		return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}},
		}}}
	}
	elsewhere := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}
	elsewhere.Status.Allocation = &resourceapi.AllocationResult{NodeSelector: on("a", "c")}
	here := elsewhere.DeepCopy()
	here.Status.Allocation.NodeSelector = on("a", "b")
	affinity := func(s *corev1.NodeSelector) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: s}}
		}
	}
	taint := func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}, {Key: "soft", Effect: corev1.TaintEffectPreferNoSchedule}}
	}
	for name, c := range map[string]struct {
		node      func(*corev1.Node)
		pod       func(*corev1.Pod)
		allocated *resourceapi.ResourceClaim
		served    corev1.ResourceName
		want      string
	}{
		"nothing":              {},
		"claims elsewhere":     {allocated: elsewhere, want: "claim ns/c is allocated on other nodes"},
		"claims here":          {allocated: here},
		"a device plugin":      {node: func(n *corev1.Node) { n.Status.Allocatable = corev1.ResourceList{"x.y/z": resource.MustParse("1")} }, served: "x.y/z", want: "a device plugin serves x.y/z there, not this driver"},
		"a plugin of the past": {node: func(n *corev1.Node) { n.Status.Allocatable = corev1.ResourceList{"x.y/z": resource.Quantity{}} }, served: "x.y/z"},
		"another label":        {pod: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"a": "c"} }, want: "the pod's node selector a=c does not match"},
		"affinity":             {pod: affinity(on("a", "c")), want: "the pod's node affinity does not match"},
		"affinity that fits":   {pod: affinity(on("a", "b"))},
		"unreadable affinity":  {pod: affinity(on("a", "not a value")), want: "the pod's node affinity does not match"},
		"a cordon":             {node: func(n *corev1.Node) { n.Spec.Unschedulable = true }, want: "the node is cordoned"},
		"a taint":              {node: taint, want: "the pod does not tolerate the node's taint k:NoSchedule"},
		"a tolerated taint":    {node: taint, pod: func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} }},
	} {
		n, p := node(), podOf()
		if c.node != nil {
			c.node(n)
		}
		if c.pod != nil {
			c.pod(p)
		}
		var allocated []*resourceapi.ResourceClaim
		if c.allocated != nil {
			allocated = append(allocated, c.allocated)
		}
		var served []corev1.ResourceName
		if c.served != "" {
			served = append(served, c.served)
		}
		if got := waiting.Excluded(n, p, allocated, served); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := waiting.Excluded(node(), nil, nil, nil); got != "" {
		t.Errorf("a claim without a pod: %q", got)
	}
}
