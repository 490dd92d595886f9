// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire"
	"gpu-dra-driver/pkg/wire/demand"
	"gpu-dra-driver/pkg/wire/schedulerfault"
)

// serving returns the serving nodes in the ConfigMap; nil if all nodes serve.
func (e *env) serving(what string) []string {
	e.T.Helper()
	state, err := demand.Decode(get[corev1.ConfigMap](e, "configmaps", "ns/published").Data)
	if err != nil {
		e.T.Fatal(err)
	}
	return state.Serving[what]
}

// unscheduledPod is a pod that the scheduler could not place.
func unscheduledPod(name, claim string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec:       corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
		}}},
	}
}

func allocatedOn(claim *resourceapi.ResourceClaim, node, device string) *resourceapi.ResourceClaim {
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "r", Driver: slicetest.Driver, Pool: wire.PoolName(node), Device: device}},
	}}
	return claim
}

// autoNodes are nodes of eight H100 with the setting Auto, of which the first is the sample node.
func autoNodes(t *testing.T, nodes int) (objects []runtime.Object) {
	t.Helper()
	for i := range nodes {
		name := fmt.Sprintf("n%02d", i)
		objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		for _, s := range autoSlices(t, "hgx-h100", name, i > 0) {
			objects = append(objects, s)
		}
	}
	return objects
}

func TestAskedKeeper_ProfileAskedFor_FewNodesServeUntilAPodWaits(t *testing.T) {
	const nodes = 40
	atAsked(t, autoNodes(t, nodes), func(e *env, restart func()) {
		want := func(when string, n int) {
			t.Helper()
			if got := e.serving("1g.10gb"); len(got) != n {
				t.Errorf("%s: %q serve, want %d nodes", when, got, n)
			}
		}
		e.Put(claimOf("c", smallest))
		pass(soon)
		want("a claim asks", 8)
		pass(time.Minute)
		want("no pod waits", 8)
		e.Put(unscheduledPod("p", "c"))
		pass(soon)
		want("a pod waits, a minute after the nodes began", 32)
		pass(demand.Grow)
		want("the pod still waits", nodes)
		restart()
		want("a new leader", nodes)
		e.Remove("pods", "ns/p")
		e.Put(allocatedOn(claimOf("c", smallest), "n39", "gpu-0000-1b-00-0-mig-1g-10gb-0"))
		pass(30 * time.Minute)
		want("no pod waits for half an hour", nodes)
		pass(45 * time.Minute)
		if want("no pod waits for an hour", 8); !slices.Contains(e.serving("1g.10gb"), "n39") {
			t.Errorf("%q serve, but not the one with the claim", e.serving("1g.10gb"))
		}
	})
}

// TestAskedKeeper_ServingNode_TheLastFreeGPUsServe has GPUs that claims take and leave, one of which is cordoned.
func TestAskedKeeper_ServingNode_TheLastFreeGPUsServe(t *testing.T) {
	const node = "n00"
	order := []string{"0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:61:00.0", "0000:9d:00.0", "0000:c3:00.0", "0000:d1:00.0", "0000:df:00.0"}
	objects, firstSlice := autoNodes(t, 1), ""
	for _, o := range objects {
		if s, ok := o.(*resourceapi.ResourceSlice); ok && slices.ContainsFunc(s.Spec.Devices, func(d resourceapi.Device) bool { return d.Name == gpu.NameOf(order[0]) }) {
			firstSlice = s.Name
		}
	}
	atAsked(t, objects, func(e *env, restart func()) {
		want := func(when string, gpus ...int) {
			t.Helper()
			pass(soon)
			state, err := demand.Decode(get[corev1.ConfigMap](e, "configmaps", "ns/published").Data)
			if err != nil {
				t.Fatal(err)
			}
			var got []int
			for i, address := range order {
				if slices.Contains(state.GPUs[node], address) {
					got = append(got, i)
				}
			}
			if !slices.Equal(got, gpus) || len(got) != len(state.GPUs[node]) {
				t.Errorf("%s: the GPUs %v (%q) serve, want %v", when, got, state.GPUs[node], gpus)
			}
		}
		device := func(i int) string { return gpu.NameOf(order[i]) }
		want("nothing asks, and it is the sample node", 7)
		e.Put(claimOf("c", smallest))
		want("a claim asks", 6, 7)
		e.Put(allocatedOn(claimOf("c", smallest), node, device(7)+"-mig-1g-10gb-0"))
		want("a claim has a partition", 5, 6, 7)
		e.Put(allocatedOn(claimOf("whole", h100Class), node, device(5)))
		want("a claim has a GPU", 4, 6, 7)
		e.Remove("resourceclaims", "ns/whole")
		want("the GPU is free again", 4, 6, 7)
		share := allocatedOn(claimOf("share", h100Class), node, device(0))
		share.Status.Allocation.Devices.Results[0].ShareID = new(types.UID("u"))
		e.Put(share)
		want("a claim has a share", 0, 4, 6, 7)
		e.Remove("resourceclaims", "ns/share")
		five := claimOf("five", smallest)
		five.Spec.Devices.Requests[0].Exactly.Count = 5
		pod := unscheduledPod("p", "five")
		pod.Status.Conditions = nil
		e.Put(five)
		e.Put(pod)
		want("a pod asks for five", 0, 3, 4, 5, 6, 7)
		e.Remove("pods", "ns/p")
		e.Remove("resourceclaims", "ns/five")
		want("it is gone", 0, 3, 4, 5, 6, 7)
		admin := allocatedOn(claimOf("admin", h100Class), node, device(6))
		admin.Status.Allocation.Devices.Results[0].AdminAccess = new(true)
		e.Put(admin)
		pass(11 * time.Minute)
		want("it is gone for a while, and an administrator has a GPU too", 5, 6, 7)
		sliceOfWholes := get[resourceapi.ResourceSlice](e, "resourceslices", firstSlice)
		e.Remove("resourceslices", firstSlice)
		want("the slice of GPUs is missing", 5, 6, 7)
		e.Put(sliceOfWholes)
		want("the slice is back", 5, 6, 7)
		e.Put(unscheduledPod("p", "c2"))
		e.Put(claimOf("c2", smallest))
		pass(2 * demand.Grow)
		want("a pod waits in vain", 0, 1, 2, 3, 4, 5, 6, 7)
		restart()
		want("a new leader", 0, 1, 2, 3, 4, 5, 6, 7)
	})
}

// TestAskedKeeper_PodForFewNodes_OneServesAtOnce has pods that can run on few of many nodes, while others serve.
func TestAskedKeeper_PodForFewNodes_OneServesAtOnce(t *testing.T) {
	const nodes, only = 60, "n47"
	affinity := &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{only}},
		}}},
	}}}
	for name, restrict := range map[string]func(*corev1.Pod, *corev1.Node, *resourceapi.ResourceClaim){
		"node selector": func(p *corev1.Pod, n *corev1.Node, _ *resourceapi.ResourceClaim) {
			if p.Spec.NodeSelector = map[string]string{"team": "a"}; n.Name == only {
				n.Labels = p.Spec.NodeSelector
			}
		},
		"affinity": func(p *corev1.Pod, _ *corev1.Node, _ *resourceapi.ResourceClaim) { p.Spec.Affinity = affinity },
		"taints": func(_ *corev1.Pod, n *corev1.Node, _ *resourceapi.ResourceClaim) {
			if n.Name != only {
				n.Spec.Taints = []corev1.Taint{{Key: "team", Value: "b", Effect: corev1.TaintEffectNoSchedule}}
			}
		},
		"cordons": func(_ *corev1.Pod, n *corev1.Node, _ *resourceapi.ResourceClaim) {
			n.Spec.Unschedulable = n.Name != only
		},
		"another claim has devices there": func(p *corev1.Pod, n *corev1.Node, _ *resourceapi.ResourceClaim) {
			if n.Name == only {
				p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "nic", ResourceClaimName: new("nic")})
			}
		},
		"cordons, and the scheduler fails": func(p *corev1.Pod, n *corev1.Node, _ *resourceapi.ResourceClaim) {
			n.Spec.Unschedulable = n.Name != only
			for i := range p.Status.Conditions {
				p.Status.Conditions[i].Reason = corev1.PodReasonSchedulerError
			}
		},
	} {
		for _, tried := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", tried ", tried), func(t *testing.T) {
				claim, pod := claimOf("c", smallest), unscheduledPod("p", "c")
				if !tried {
					pod.Status.Conditions = nil
				}
				all := autoNodes(t, nodes)
				for _, o := range all {
					if n, ok := o.(*corev1.Node); ok {
						restrict(pod, n, claim)
					}
				}
				atAsked(t, all, func(e *env, _ func()) {
					e.Put(claimOf("other", smallest))
					pass(soon)
					if got := e.serving("1g.10gb"); len(got) != 8 || slices.Contains(got, only) {
						t.Fatalf("%q serve at first", got)
					}
					nic := allocatedOn(claimOf("nic", "nic"), only, "eth0")
					nic.Status.Allocation.NodeSelector = &corev1.NodeSelector{
						NodeSelectorTerms: affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms,
					}
					nic.Status.Allocation.Devices.Results[0].Driver = "nic.example.com"
					e.Put(nic)
					e.Put(pod)
					e.Put(claim)
					pass(soon)
					if got := e.serving("1g.10gb"); !slices.Contains(got, only) || len(got) > 40 {
						t.Errorf("%d nodes serve once the pod waits, and %s: %v", len(got), only, slices.Contains(got, only))
					}
				})
			})
		}
	}
}

// TestAskedKeeper_Limit_AnEventSaysIt has more nodes than a limit allows to serve, by a value or by the server's version.
func TestAskedKeeper_Limit_AnEventSaysIt(t *testing.T) {
	for name, c := range map[string]struct {
		version string
		most    int
		want    int
		words   string
	}{
		"a value":           {"v1.37.1", 9, 9, "maxServingNodes says so"},
		"1.36":              {"v1.36.5", 0, 10, "upgrade to Kubernetes 1.37"},
		"1.36 with a value": {"v1.36.5", 11, 11, "maxServingNodes says so"},
		"1.37":              {"v1.37.1", 0, 12, ""},
	} {
		t.Run(name, func(t *testing.T) {
			events := record.NewFakeRecorder(10)
			k := &Keeper{Options: Options{MaxServingNodes: c.most, Events: events}}
			version, err := schedulerfault.Parse(c.version)
			if err != nil {
				t.Fatal(err)
			}
			k.written = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1"}}
			var candidates []demand.Candidate
			for i := range 12 {
				candidates = append(candidates, demand.Candidate{Node: fmt.Sprint("n", i), GPUs: 8})
			}
			now := time.Now()
			var got []string
			for range 3 {
				k.limit(700, version)
				got = k.servers.Choose(got, "1g.10gb", candidates, nil, demand.Waiting{Unscheduled: true}, now)
				k.report()
				now = now.Add(demand.Grow)
			}
			if len(got) != c.want {
				t.Errorf("%d nodes serve, want %d", len(got), c.want)
			}
			said := ""
			select {
			case said = <-events.Events:
			default:
			}
			if (said == "") != (c.words == "") || !strings.Contains(said, c.words) || len(events.Events) > 0 {
				t.Errorf("the Event is %q, want one with %q", said, c.words)
			}
		})
	}
}

func TestAskedKeeper_PodWaitsForAResource_MoreNodesServe(t *testing.T) {
	atAsked(t, autoNodes(t, 12), func(e *env, _ func()) {
		pod := podOf("p", "nvidia.com/mig-1g.10gb")
		pod.Status = unscheduledPod("p", "").Status
		if get[resourceapi.DeviceClass](e, "deviceclasses", smallest) == nil {
			t.Fatal("the class is missing")
		}
		e.Put(pod)
		pass(soon)
		if got := e.serving("1g.10gb"); len(got) != 8 {
			t.Errorf("%q serve at first, want 8 nodes", got)
		}
		pass(2 * demand.Grow)
		if got := e.serving("1g.10gb"); len(got) != 12 {
			t.Errorf("%q serve while the pod waits, want all nodes", got)
		}
	})
}

// TestAskedKeeper_ClaimWithAlternatives_AllNodesServe has a claim that would get a whole GPU of another node.
func TestAskedKeeper_ClaimWithAlternatives_AllNodesServe(t *testing.T) {
	atAsked(t, autoNodes(t, 12), func(e *env, _ func()) {
		e.Put(claimOf("c", smallest))
		pass(soon)
		claim := claimOf("either", smallest)
		claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", FirstAvailable: []resourceapi.DeviceSubRequest{
			{Name: "part", DeviceClassName: smallest}, {Name: "whole", DeviceClassName: h100Class},
		}}}
		e.Put(claim)
		pass(soon)
		if got := e.serving("1g.10gb"); got != nil {
			t.Errorf("%q serve, want all nodes", got)
		}
		e.Remove("resourceclaims", "ns/either")
		pass(soon)
		if got := e.serving("1g.10gb"); len(got) != 8 {
			t.Errorf("%q serve after that claim, want 8 nodes", got)
		}
	})
}

// TestAskedKeeper_ClaimOfAShare_FewNodesServe has nodes that share GPUs once an object asks for shares.
func TestAskedKeeper_ClaimOfAShare_FewNodesServe(t *testing.T) {
	var nodes []runtime.Object
	for _, o := range autoNodes(t, 12) {
		if s, ok := o.(*resourceapi.ResourceSlice); ok && len(s.Spec.Devices) > 0 && *s.Spec.Devices[0].Attributes["type"].StringValue == "gpu" {
			for i := range s.Spec.Devices {
				d := &s.Spec.Devices[i]
				d.AllowMultipleAllocations = nil
				d.Attributes["maxShares"] = resourceapi.DeviceAttribute{IntValue: new(int64(48))}
				d.Attributes["shareIsolation"] = resourceapi.DeviceAttribute{StringValue: new("mps")}
			}
		}
		nodes = append(nodes, o)
	}
	share := claimOf("c", h100Class)
	share.Spec.Devices.Requests[0].Exactly.Capacity = &resourceapi.CapacityRequirements{
		Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("10Gi")},
	}
	atAsked(t, nodes, func(e *env, _ func()) {
		e.Put(claimOf("whole", h100Class))
		pass(soon)
		e.wantAsked("a claim of a whole GPU", "")
		e.Put(share)
		pass(soon)
		e.wantAsked("a claim of a share", demand.Shares)
		if got := e.serving(demand.Shares); len(got) != 8 {
			t.Errorf("%q share GPUs, want 8 nodes", got)
		}
		held := allocatedOn(share.DeepCopy(), "n11", "gpu-0000-1b-00-0")
		held.Status.Allocation.Devices.Results[0].ShareID = new(types.UID("u"))
		e.Put(held)
		pass(2 * time.Hour)
		if got := e.serving(demand.Shares); !slices.Contains(got, "n11") {
			t.Errorf("%q share GPUs, but not the node with a share: the scheduler would forget it", got)
		}
	})
}

// TestAskedKeeper_NoPolicyForShares_AllNodesShare has an API server that cannot add selectors to claims.
func TestAskedKeeper_NoPolicyForShares_AllNodesShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, autoNodes(t, 12)...)
		defer e.start(func(o *Options) { o.SharesOnDemand = false })()
		pass(2 * time.Hour)
		e.wantAsked("nothing asks", demand.Shares)
		if got := e.serving(demand.Shares); got != nil {
			t.Errorf("%q share GPUs, want all nodes", got)
		}
	})
}
