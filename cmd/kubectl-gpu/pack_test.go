// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"gpu-dra-driver/internal/testing/slicetest"
)

const disruptionsPath = "/apis/policy/v1/poddisruptionbudgets"

// packEnv has a partition of pod web on n1, so that no pair of GPUs is free: on n2 pod train has one GPU.
type packEnv struct {
	*env
	pods    []corev1.Pod
	claims  []resourceapi.ResourceClaim
	budgets []policyv1.PodDisruptionBudget
}

func startPack(t *testing.T) *packEnv {
	e := &packEnv{env: start(t, map[string]string{"n1": "hgx-h100", "n2": "hgx-h100"})}
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

func TestPack_Goal_PrintsMovesAndChangesNothing(t *testing.T) {
	e := startPack(t)
	code, out, errOut := e.kubectl("pack", "--for", "nvlink-2")
	want := "Room for an NVLink group of 2 GPUs on node n1 after 1 move:\n" +
		"  1. move team-a/web from n1 gpu-0000-1b-00-0-mig-1g-10gb-0 to n2 gpu-0000-1b-00-0-mig-1g-10gb-0 (9856Mi)\n" +
		"Then it gets nvlink-2-0000-1b-00-0 of node n1.\n" +
		"Free GPUs: 2 before, 2 after. The scheduler's allocator proved each step.\n" +
		"Commands, each after the last pod has come back:\n" +
		"  kubectl gpu cordon n1/gpu-0000-1b-00-0 n1/gpu-0000-43-00-0\n" +
		"  kubectl delete pod -n team-a web\n" +
		"  kubectl gpu uncordon n1/gpu-0000-1b-00-0 n1/gpu-0000-43-00-0\n"
	if code != 0 || out != want || errOut != "" || len(e.annotations) > 0 {
		t.Errorf("exit code %d, stderr %q, %v, stdout:\n%s", code, errOut, e.annotations, out)
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

func TestPack_WaitingPod_HasAPlanUntilItIsScheduled(t *testing.T) {
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
	node := ""
	e.lists["/api/v1/namespaces/team-a/pods/train-2"] = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		now := pending
		now.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
		now.Spec.NodeName = node
		_ = json.NewEncoder(w).Encode(now)
	})
	code, out, errOut := e.kubectl("pack", "train-2")
	if code != 0 || errOut != "" || !strings.HasPrefix(out, "Room for pod team-a/train-2 on node n1 after 1 move:\n") {
		t.Errorf("exit code %d, stderr %q, stdout:\n%s", code, errOut, out)
	}
	node = "n1"
	if code, _, errOut := e.kubectl("pack", "train-2"); code != 1 || !strings.Contains(errOut, "pod team-a/train-2 is scheduled already, to node n1") {
		t.Errorf("exit code %d, stderr %q", code, errOut)
	}
}

// TestPack_SlicesMissing_PlanSaysSo has a plugin that publishes its devices anew while the command looks.
func TestPack_SlicesMissing_PlanSaysSo(t *testing.T) {
	e := startPack(t)
	e.partial = 1
	const want = "slices are missing, as while a plugin publishes its devices anew, so claims get no devices of: n"
	if _, out, _ := e.kubectl("pack", "--for", "nvlink-2"); !strings.Contains(out, want) {
		t.Errorf("stdout:\n%s", out)
	}
}

func TestPack_NodeEmpty_PrintsItsCordons(t *testing.T) {
	e := startPack(t)
	code, out, errOut := e.kubectl("pack", "--node", "n1", "--empty")
	want := "  kubectl gpu cordon n1/gpu-0000-1b-00-0 n1/gpu-0000-43-00-0\n  kubectl delete pod -n team-a web\n"
	if code != 0 || errOut != "" || !strings.HasSuffix(out, want) {
		t.Errorf("exit code %d, stderr %q, stdout:\n%s", code, errOut, out)
	}
	code, out, _ = e.kubectl("pack", "--node", "n2", "--empty")
	if code != 1 || !strings.Contains(out, "team-a/train: no controller would create it again") || strings.Contains(out, "kubectl") {
		t.Errorf("exit code %d, stdout:\n%s", code, out)
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
		{"--for", "4", "--time-limit", "0s"},
	} {
		if code, _, errOut := e.kubectl(append([]string{"pack"}, args...)...); code != 2 || errOut == "" {
			t.Errorf("%v: exit code %d, stderr %q", args, code, errOut)
		}
	}
}
