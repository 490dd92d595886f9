// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/node/resourceslices/slicetest"
)

const diagnosisPage = "../../docs/reference/diagnosis.md"

// state is a state of the world. It has the GPUs of newWhyEnv: claims of team-b have both, unless free is set.
type state struct {
	name   string
	free   bool
	change func(*env)
	// doctor and why must be in the answers. An empty one means that the command does not look at the state.
	doctor, why string
}

// podP changes the pod in question.
func (e *env) podP(change func(*corev1.Pod)) {
	const path = "/api/v1/namespaces/team-a/pods/p"
	p, _ := e.lists[path].(corev1.Pod)
	change(&p)
	e.lists[path] = p
}

func fromTemplate(p *corev1.Pod) {
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("one")}}
}

func states() []state {
	plugin, controller := driverPod("plugin", "kubelet-plugin", "plugin:1"), driverPod("controller", "controller", "controller:1")
	pods := func(all ...corev1.Pod) func(*env) {
		return func(e *env) {
			e.webhooks("Fail")
			e.lists[podsPath] = corev1.PodList{Items: all}
		}
	}
	noSlices := func(e *env) { e.lists[slicesPath] = resourceapi.ResourceSliceList{} }
	return []state{
		{"a GPU is free", true, nil, "", "fits on n1 now"},
		{"claims of another namespace have all GPUs", false, nil, "", "team-b"},
		{"the controller is gone", true, pods(plugin), "the API server refuses objects", "fits on n1 now"},
		{"the controller is not ready", true, pods(plugin, unready(controller)), "none of 1 pods is ready", "fits on n1 now"},
		{"API servers do not reach the webhook", true, func(e *env) {
			e.webhooks("Fail")
			e.metrics("controller", "gpu_dra_webhook_reachable 0\n")
		}, "the API server reaches the webhook: no", "fits on n1 now"},
		{"the plugin is gone", true, pods(controller), "no plugin runs here", "fits on n1 now"},
		{"the plugin and the slices are gone, claims are left", false, func(e *env) { pods(controller)(e); noSlices(e) }, "no plugin runs here, and the node has no slices", "0 of 1 node"},
		{"the NVIDIA driver is unloaded", true, func(e *env) {
			noSlices(e)
			e.metrics("plugin", "gpu_dra_nvidia_driver_loaded 0\n")
		}, "publishes no GPU", "0 of 1 node"},
		{"a GPU is lost, and nothing has it", true, func(e *env) { e.taint("gpu-", "lost") }, "unhealthy: lost", "lost"},
		{"a GPU is lost under a pod", false, func(e *env) { e.taint("gpu-0000-43-00-0", "lost") }, "Claims that have it: team-b/b", "team-b"},
		{"an agent has a GPU open", true, func(e *env) {
			e.metrics("plugin", fmt.Sprintf("gpu_dra_nvidia_driver_loaded 1\ngpu_dra_mig_mode_holders{uuid=%q,program=\"nv-hostengine\"} 1\n", e.uuid("gpu-0000-43-00-0")))
		}, "nv-hostengine has the GPU open", "fits on n1 now"},
		{"a rule taints the GPUs", true, func(e *env) {
			e.rules["mine"] = map[string]any{"spec": map[string]any{
				"deviceSelector": map[string]any{"driver": slicetest.Driver}, "taint": map[string]any{"key": "broken", "effect": "NoSchedule"},
			}}
		}, "", "broken"},
		{"a cordon is not followed", true, func(e *env) {
			e.lists[nodesPath] = corev1.NodeList{Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{
				resourceslices.CordonAnnotation(slicetest.Driver, "gpu-0000-43-00-0"): "NoSchedule",
			}}}}}
		}, "the GPU is cordoned, but claims can get", "fits on n1 now"},
		{"the node does not take pods", true, func(e *env) {
			e.lists[nodesPath] = corev1.NodeList{Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{Unschedulable: true}}}}
		}, "", "cordoned"},
		{"the DeviceClass is missing", true, func(e *env) { e.lists[classesPath] = resourceapi.DeviceClassList{} }, "no DeviceClass selects devices", "no DeviceClass gpu.nvidia.com"},
		{"the template is missing", true, func(e *env) { e.podP(fromTemplate) }, "", "ResourceClaimTemplate one does not exist"},
		{"a scheduling gate holds the pod", true, func(e *env) {
			e.podP(func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/hold"}} })
		}, "", "scheduling gate example.com/hold"},
		{"no right to slices", false, func(e *env) { e.forbidden[slicesPath] = true }, "you may not list them", "undecided"},
		{"no right to nodes", true, func(e *env) { e.forbidden[nodesPath] = true }, "you may not list them", "fits on n1 now"},
		{"no right to claims of other namespaces", false, func(e *env) {
			e.forbidden[claimsPath] = true
			e.lists["/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims"] = resourceapi.ResourceClaimList{}
		}, "you may not list them", "unless claims that could not be read"},
	}
}

// first returns the first two lines of doctor that are not ok, the weightiest first, or "ok".
func first(doctor string) string {
	var found []string
	for _, level := range []string{"problem", "warning", "not checked"} {
		for line := range strings.SplitSeq(doctor, "\n") {
			if rest, ok := strings.CutPrefix(line, level+" "); ok {
				found = append(found, level+": "+strings.Join(strings.Fields(rest), " "))
			}
		}
	}
	if len(found) == 0 {
		return "ok"
	}
	return strings.Join(found[:min(2, len(found))], ". ")
}

// TestDocs_Diagnosis_EachToolNamesTheCause generates docs/reference/diagnosis.md from the answers for simulated clusters.
func TestDocs_Diagnosis_EachToolNamesTheCause(t *testing.T) {
	var b strings.Builder
	b.WriteString("<!-- Generated by make generate from the output of the commands. -->\n\n# States of a cluster, and the answers of the commands\n\n" +
		"Each row is a simulated API server with one node and two GPUs, and a pod that asks for one. `doctor` shows the first two lines " +
		"that are not `ok`, the weightiest first, `ls` the use and health of each GPU, and `why` the first two lines about the pod. " +
		"A command that does not look at the state says nothing about it. Nothing of this page ran on a real cluster.\n\n" +
		"| state | `kubectl gpu doctor` | `kubectl gpu ls` | `kubectl gpu why p` |\n| --- | --- | --- | --- |\n")
	age := regexp.MustCompile(`\d+[ymdhs][0-9a-z]* old`)
	for _, s := range states() {
		e := newWhyEnv(t)
		e.lists["/api/v1/namespaces/team-a/events"] = map[string]any{"kind": "EventList", "apiVersion": "v1", "items": []any{}}
		e.lists[podsPath] = corev1.PodList{Items: []corev1.Pod{driverPod("plugin", "kubelet-plugin", "plugin:1"), driverPod("controller", "controller", "controller:1")}}
		e.metrics("plugin", "gpu_dra_nvidia_driver_loaded 1\n")
		e.metrics("controller", "gpu_dra_webhook_reachable 1\n")
		if s.free {
			e.lists[claimsPath] = resourceapi.ResourceClaimList{}
		}
		if s.change != nil {
			s.change(e)
		}
		_, doctor, _ := e.kubectl("doctor")
		doctor = age.ReplaceAllString(first(doctor), "… old")
		if s.doctor == "" && doctor != "ok" || !strings.Contains(doctor, s.doctor) {
			t.Errorf("%s: doctor says %q, want %q", s.name, doctor, s.doctor)
		}
		_, why, errOut := e.kubectl("why", "p")
		if !strings.Contains(why, s.why) {
			t.Errorf("%s: why says %q, %q; want %q", s.name, why, errOut, s.why)
		}
		lines := strings.SplitN(strings.TrimSpace(why), "\n", 3)
		_, ls, errOut := e.kubectl("ls", "--no-headers")
		var gpus []string
		for line := range strings.SplitSeq(strings.TrimSpace(ls), "\n") {
			if cells := regexp.MustCompile(`\s{2,}`).Split(strings.TrimSpace(line), -1); len(cells) >= 6 {
				gpus = append(gpus, cells[4]+", "+cells[5])
			}
		}
		if len(gpus) == 0 {
			gpus = []string{strings.TrimSpace(errOut)}
		}
		cells := []string{s.name, doctor, strings.Join(gpus, "; "), strings.Join(lines[:min(2, len(lines))], " ")}
		for i, c := range cells {
			cells[i] = strings.ReplaceAll(strings.Join(strings.Fields(c), " "), "|", `\|`)
		}
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	if *update {
		if err := os.WriteFile(diagnosisPage, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(diagnosisPage)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("%s has drifted, run make generate (-file +commands):\n%s", diagnosisPage, diff)
	}
}
