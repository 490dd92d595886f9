// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"gpu-dra-driver/pkg/node/resourceslices/slicetest"
)

const disruptionsPath = "/apis/policy/v1/poddisruptionbudgets"

// packEnv has a partition of pod web on n1, so that no pair of GPUs is free: on n2 pod train has one GPU. The scheduler
// and the ReplicaSet follow an eviction at once.
type packEnv struct {
	*env
	pods    []corev1.Pod
	claims  []resourceapi.ResourceClaim
	budgets []policyv1.PodDisruptionBudget
	// comesBack is the place of the pod that replaces web.
	comesBack resourceapi.DeviceRequestAllocationResult
	// refused answers evictions with 429. evicted is called after an eviction.
	refused   bool
	evicted   func()
	evictions []string
}

func startPack(t *testing.T) *packEnv {
	movePoll = 10 * time.Millisecond
	e := &packEnv{env: start(t, map[string]string{"n1": "hgx-h100", "n2": "hgx-h100"}), evicted: func() {}}
	e.comesBack = device("n2", "gpu-0000-1b-00-0-mig-1g-10gb-0")
	e.run("web", "ReplicaSet", "n1", device("n1", "gpu-0000-1b-00-0-mig-1g-10gb-0"))
	e.run("train", "", "n2", device("n2", "gpu-0000-43-00-0"))
	serve := func(list func() any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(list()) }
	}
	pods := serve(func() any {
		return corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: e.pods}
	})
	e.lists[podsPath], e.lists["/api/v1/namespaces/team-a/pods"] = pods, pods
	e.lists[claimsPath] = serve(func() any {
		return resourceapi.ResourceClaimList{TypeMeta: metav1.TypeMeta{Kind: "ResourceClaimList", APIVersion: "resource.k8s.io/v1"}, Items: e.claims}
	})
	e.lists[disruptionsPath] = serve(func() any {
		return policyv1.PodDisruptionBudgetList{TypeMeta: metav1.TypeMeta{Kind: "PodDisruptionBudgetList", APIVersion: "policy/v1"}, Items: e.budgets}
	})
	var nodes corev1.NodeList
	for _, name := range []string{"n1", "n2"} {
		nodes.Items = append(nodes.Items, corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{"pods": resource.MustParse("110")}},
		})
	}
	e.lists[nodesPath] = nodes
	e.lists["/api/v1/namespaces/team-a/pods/web/eviction"] = http.HandlerFunc(e.evict)
	return e
}

// run adds a running pod with a claim of its own.
func (e *packEnv) run(name, controller, node string, d resourceapi.DeviceRequestAllocationResult) {
	c := claim("team-a", name, d)
	c.UID = types.UID("claim-" + name)
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: slicetest.Driver, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.attributes["gpu.nvidia.com"].type == "mig" && device.attributes["gpu.nvidia.com"].profile == "1g.10gb"`,
		}}},
	}}}
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue},
		}},
	}
	yes := true
	if controller != "" {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: controller, Name: "of", UID: "of", Controller: &yes}}
	}
	c.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: name, UID: p.UID, Controller: &yes}}
	c.Status.ReservedFor[0].UID = p.UID
	e.pods, e.claims = append(e.pods, p), append(e.claims, c)
}

// evict removes the pod web, and its ReplicaSet starts web-2.
func (e *packEnv) evict(w http.ResponseWriter, r *http.Request) {
	e.evictions = append(e.evictions, r.URL.Path)
	status := metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Success"}
	if e.refused {
		status.Status, status.Code, status.Reason, status.Message = "Failure", 429, metav1.StatusReasonTooManyRequests, "it would violate a disruption budget"
		w.WriteHeader(429)
	} else {
		e.pods = slices.DeleteFunc(e.pods, func(p corev1.Pod) bool { return p.Name == "web" })
		e.claims = slices.DeleteFunc(e.claims, func(c resourceapi.ResourceClaim) bool { return c.Name == "web" })
		node, _, _ := strings.Cut(e.comesBack.Pool, "/")
		e.run("web-2", "ReplicaSet", node, e.comesBack)
		e.evicted()
	}
	_ = json.NewEncoder(w).Encode(status)
}

func TestPack_Goal_PrintsMovesAndChangesNothing(t *testing.T) {
	e := startPack(t)
	code, out, errOut := e.kubectl("pack", "--for", "nvlink-2")
	want := "Room for an NVLink group of 2 GPUs on node n1 after 1 move:\n" +
		"  1. move team-a/web from n1 gpu-0000-1b-00-0-mig-1g-10gb-0 to n2 gpu-0000-1b-00-0-mig-1g-10gb-0 (9856Mi)\n" +
		"Then it gets nvlink-2-0000-1b-00-0 of node n1.\n" +
		"Free GPUs: 2 before, 2 after. The scheduler's allocator proved each step.\n"
	if code != 0 || out != want || errOut != "" || len(e.annotations)+len(e.evictions) > 0 {
		t.Errorf("exit code %d, stderr %q, %v %v, stdout:\n%s", code, errOut, e.annotations, e.evictions, out)
	}
}

// TestPack_RightsMissing_PlanSaysSo has a user who may not list all pods.
func TestPack_RightsMissing_PlanSaysSo(t *testing.T) {
	e := startPack(t)
	e.forbidden[podsPath], e.forbidden[disruptionsPath] = true, true
	code, out, errOut := e.kubectl("pack", "--for", "nvlink-2")
	for _, want := range []string{"the CPU and memory of nodes were not looked at", "disruption budgets were not looked at"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("exit code %d, %q is missing, stderr %q, stdout:\n%s", code, want, errOut, out)
		}
	}
}

// TestPack_WaitingPod_IsScheduledAfterMoves has a scheduler that follows once the cordons are removed.
func TestPack_WaitingPod_IsScheduledAfterMoves(t *testing.T) {
	e := startPack(t)
	pending := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "train-2", UID: "train-2"}}
	pending.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &pending.Name}}
	e.claims = append(e.claims, resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "train-2", UID: "claim-train-2"}})
	e.claims[2].Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: slicetest.Driver, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.attributes["gpu.nvidia.com"].type == "nvlink-group"`,
		}}},
	}}}
	e.lists["/api/v1/namespaces/team-a/events"] = corev1.EventList{TypeMeta: metav1.TypeMeta{Kind: "EventList", APIVersion: "v1"}}
	e.lists["/api/v1/namespaces/team-a/pods/train-2"] = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		now := pending
		now.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
		if len(e.evictions) > 0 && len(e.annotations["n1"]) == 0 {
			now.Spec.NodeName = "n1"
		}
		_ = json.NewEncoder(w).Encode(now)
	})
	code, out, errOut := e.kubectl("pack", "train-2", "--evict")
	if code != 0 || errOut != "" || !strings.HasSuffix(out, "done: 1 move; pod team-a/train-2 is scheduled to node n1\n") {
		t.Errorf("exit code %d, stderr %q, stdout:\n%s", code, errOut, out)
	}
	if code, _, errOut := e.kubectl("pack", "train-2"); code != 1 || !strings.Contains(errOut, "pod team-a/train-2 is scheduled already, to node n1") {
		t.Errorf("exit code %d, stderr %q", code, errOut)
	}
}

func TestPack_Evict_MovesPodsAndRemovesCordons(t *testing.T) {
	e := startPack(t)
	held := ""
	e.evicted = func() { held = e.annotations["n1"]["cordon.gpu.nvidia.com/gpu-0000-43-00-0"] }
	code, out, errOut := e.kubectl("pack", "--for", "nvlink-2", "--evict")
	if code != 0 || errOut != "" || !strings.Contains(out, "pod team-a/web-2 is ready on node n2 with gpu-0000-1b-00-0-mig-1g-10gb-0\ndone: 1 move\n") {
		t.Errorf("exit code %d, stderr %q, stdout:\n%s", code, errOut, out)
	}
	if held != "NoSchedule" || len(e.annotations["n1"]) > 0 {
		t.Errorf("the cordon was %q during the move; %v is left", held, e.annotations)
	}
}

// TestPack_Surprise_StopsAndRemovesCordons has a surprise in each case, after which nothing more is evicted.
func TestPack_Surprise_StopsAndRemovesCordons(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*packEnv)
		args   []string
		want   string
	}{
		"eviction refused": {func(e *packEnv) { e.refused = true }, nil, "evict pod team-a/web: "},
		"freed GPU taken": {
			func(e *packEnv) { e.comesBack = device("n1", "gpu-0000-43-00-0-mig-1g-10gb-0") }, nil,
			"pod team-a/web-2 came back on GPU n1/gpu-0000-43-00-0, which the moves were to free",
		},
		"newcomer": {
			func(e *packEnv) {
				e.evicted = func() { e.run("newcomer", "", "n1", device("n1", "gpu-0000-1b-00-0-mig-1g-10gb-0")) }
			}, nil, "the rest of the plan does not hold any more",
		},
		"no successor": {
			func(e *packEnv) { e.evicted = func() { e.pods = e.pods[:1] } }, []string{"--move-timeout=100ms"},
			"ReplicaSet team-a/of has not replaced pod web after 100ms",
		},
		"successor waits": {
			func(e *packEnv) {
				e.evicted = func() {
					e.pods[1].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/2 nodes"}}
				}
			}, []string{"--move-timeout=100ms"}, "pod team-a/web-2, which replaces web, is not ready: 0/2 nodes after 100ms",
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := startPack(t)
			c.change(e)
			code, out, errOut := e.kubectl(append([]string{"pack", "--for", "nvlink-2", "--evict"}, c.args...)...)
			if code != 1 || !strings.Contains(errOut, c.want) || len(e.evictions) != 1 || len(e.annotations["n1"]) > 0 {
				t.Errorf("exit code %d, evictions %v, cordons %v, stderr %q, stdout:\n%s", code, e.evictions, e.annotations, errOut, out)
			}
		})
	}
}

// TestPack_SlicesMissing_WaitsForThem has a plugin that publishes its devices anew while the command looks.
func TestPack_SlicesMissing_WaitsForThem(t *testing.T) {
	e := startPack(t)
	e.evicted = func() { e.partial = 2 }
	if code, out, errOut := e.kubectl("pack", "--for", "nvlink-2", "--evict"); code != 0 || errOut != "" || e.partial != 0 {
		t.Errorf("exit code %d, stderr %q, stdout:\n%s", code, errOut, out)
	}
	e = startPack(t)
	e.partial = 1
	const want = "slices are missing, as while a plugin publishes its devices anew, so claims get no devices of: n"
	if _, out, _ := e.kubectl("pack", "--for", "nvlink-2"); !strings.Contains(out, want) {
		t.Errorf("stdout:\n%s", out)
	}
	e = startPack(t)
	synced := followLimit
	followLimit = time.Second
	t.Cleanup(func() { followLimit = synced })
	e.evicted = func() { e.partial = 1000 }
	if code, out, errOut := e.kubectl("pack", "--for", "nvlink-2", "--evict"); code != 1 || !strings.Contains(errOut, "does not hold any more: "+want) {
		t.Errorf("exit code %d, stderr %q, stdout:\n%s", code, errOut, out)
	}
}

func TestPack_Interrupted_RemovesCordons(t *testing.T) {
	e := startPack(t)
	ctx, cancel := context.WithCancel(t.Context())
	e.evicted = cancel
	var out, errOut bytes.Buffer
	code := run(ctx, []string{"pack", "--for", "nvlink-2", "--evict", "--kubeconfig=" + e.kubeconfig}, genericiooptions.IOStreams{Out: &out, ErrOut: &errOut})
	if code != 1 || len(e.evictions) != 1 || len(e.annotations["n1"]) > 0 {
		t.Errorf("exit code %d, evictions %v, cordons %v, stderr %q", code, e.evictions, e.annotations, errOut.String())
	}
}

// TestPack_CordonOfAnother_StaysAfterwards has a GPU that an administrator drains while the moves are made.
func TestPack_CordonOfAnother_StaysAfterwards(t *testing.T) {
	e := startPack(t)
	const key = "cordon.gpu.nvidia.com/gpu-0000-43-00-0"
	e.evicted = func() { e.annotations["n1"][key] = "NoExecute" }
	if code, out, errOut := e.kubectl("pack", "--for", "nvlink-2", "--evict"); e.annotations["n1"][key] != "NoExecute" || len(e.annotations["n1"]) != 1 {
		t.Errorf("exit code %d, cordons %v, stderr %q, stdout:\n%s", code, e.annotations, errOut, out)
	}
}

func TestPack_NodeEmpty_KeepsCordons(t *testing.T) {
	e := startPack(t)
	code, out, errOut := e.kubectl("pack", "--node", "n1", "--empty", "--evict")
	if code != 0 || errOut != "" || !strings.Contains(out, "node n1 is empty after 1 move; its GPUs stay cordoned until: kubectl gpu uncordon n1/gpu-0000-1b-00-0 n1/gpu-0000-43-00-0\n") || len(e.annotations["n1"]) != 2 {
		t.Errorf("exit code %d, cordons %v, stderr %q, stdout:\n%s", code, e.annotations, errOut, out)
	}
	e = startPack(t)
	code, out, _ = e.kubectl("pack", "--node", "n2", "--empty", "--evict")
	if code != 1 || !strings.Contains(out, "team-a/train: no controller would create it again") || len(e.evictions)+len(e.annotations) > 0 {
		t.Errorf("exit code %d, evictions %v, stdout:\n%s", code, e.evictions, out)
	}
}

// TestPack_Defragment_PrintsTableAndLayouts has a partition on each node, of which one can go to the other's GPU.
func TestPack_Defragment_PrintsTableAndLayouts(t *testing.T) {
	e := startPack(t)
	e.run("api", "ReplicaSet", "n2", device("n2", "gpu-0000-1b-00-0-mig-1g-10gb-6"))
	code, out, errOut := e.kubectl("pack", "--defragment")
	before, rest, _ := strings.Cut(out, "1 more GPU free after 1 move:\n")
	_, after, _ := strings.Cut(rest, "After:\n")
	if code != 0 || errOut != "" || !strings.HasPrefix(before, "Before:\n") || !strings.Contains(before, "team-a/api") || !strings.Contains(before, "team-a/web") {
		t.Errorf("exit code %d, stderr %q, stdout:\n%s", code, errOut, out)
	}
	if !strings.HasSuffix(after, "NODE   GPU WON            MOVES   MOVES SO FAR   PODS\nn1     gpu-0000-1b-00-0   1       1              team-a/web\n") {
		t.Errorf("the table is missing:\n%s", out)
	}
}

func TestPack_Budget_Counts(t *testing.T) {
	e := startPack(t)
	e.budgets = []policyv1.PodDisruptionBudget{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "web"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: &intstr.IntOrString{IntVal: 1}, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		},
	}}
	code, out, _ := e.kubectl("pack", "--for", "nvlink-2")
	if code != 1 || !strings.Contains(out, "its disruption budget web allows 0 evictions now") {
		t.Errorf("exit code %d, stdout:\n%s", code, out)
	}
	e.budgets[0].Status.DisruptionsAllowed = 1
	if code, out, _ := e.kubectl("pack", "--for", "nvlink-2"); code != 0 || !strings.Contains(out, "budget team-a/web)") {
		t.Errorf("exit code %d, stdout:\n%s", code, out)
	}
}

func TestPack_BadCommandLine_ExitCode2(t *testing.T) {
	e := startPack(t)
	for _, args := range [][]string{
		{}, {"a", "--for", "4"}, {"--for", "many"}, {"--for", "0"}, {"--node", "n1"}, {"--empty"}, {"--for", "4", "--include", "all"},
		{"--for", "4", "--evict", "-o", "json"}, {"--for", "4", "--time-limit", "0s"},
	} {
		if code, _, errOut := e.kubectl(append([]string{"pack"}, args...)...); code != 2 || errOut == "" {
			t.Errorf("%v: exit code %d, stderr %q", args, code, errOut)
		}
	}
}
