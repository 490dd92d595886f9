// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"gpu-dra-driver/internal/testing/whytest"
)

// startWithClasses starts a cluster of one node with the chart's classes.
func startWithClasses(t *testing.T) *env {
	t.Helper()
	e := start(t, map[string]string{"n1": "hgx-h100"})
	var classes resourceapi.DeviceClassList
	for _, c := range whytest.New().Classes {
		classes.Items = append(classes.Items, *c)
	}
	e.lists[classesPath] = classes
	e.lists[nodesPath] = corev1.NodeList{Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}}
	return e
}

// TestRun_EachKind_FitsOnANode prints a pod for each kind of devices, and asks whether it fits on a node of the simulator.
func TestRun_EachKind_FitsOnANode(t *testing.T) {
	for _, flags := range []string{"--gpu 2", "--memory 10Gi", "--profile 1g.10gb", "--nvlink 2"} {
		e := startWithClasses(t)
		args := append([]string{"run", "hello", "--image", "ubuntu", "-n", "team-a"}, strings.Fields(flags)...)
		code, out, errOut := e.kubectl(append(args, "--", "nvidia-smi", "-L")...)
		if code != 0 || errOut != "" {
			t.Fatalf("%s: exit code %d, stderr %q", flags, code, errOut)
		}
		first, second, _ := strings.Cut(out, "---\n")
		var template resourceapi.ResourceClaimTemplate
		var pod corev1.Pod
		for text, o := range map[string]any{first: &template, second: &pod} {
			if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
				t.Fatal(err)
			}
		}
		if template.Namespace != "team-a" || !slices.Equal(pod.Spec.Containers[0].Command[:2], []string{"nvidia-smi", "-L"}) || strings.Contains(out, "null") {
			t.Errorf("%s: %s", flags, out)
		}
		file := filepath.Join(t.TempDir(), "hello.yaml")
		if err := os.WriteFile(file, []byte(out), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, said, errOut := e.kubectl("why", "-f", file); !strings.Contains(said, "pod team-a/hello fits on n1") {
			t.Errorf("%s: %s%s", flags, said, errOut)
		}
	}
}

func TestRun_WrongFlags_SaysWhatToGive(t *testing.T) {
	e := start(t, nil)
	for args, want := range map[string]string{
		"run a --image i": "give one of --gpu", "run a --image i --gpu 2 --memory 1Gi": "give one of --gpu", "run a --image i --memory -4Gi": "not an amount", "run a --image i --gpu 33": "1 to 32 GPUs",
		"run a --image i --profile large": "not a MIG profile", "run a --gpu 1": "give the image", "run a b --gpu 1 --image i": "the command after --", "run --gpu 1 --image i -- a": "give one name",
		"run a --image i --nvlink -2": "1 to 32 GPUs",
	} {
		if code, out, errOut := e.kubectl(strings.Fields(args)...); code != 2 || out != "" || !strings.Contains(errOut, want) {
			t.Errorf("%s: exit code %d, %q, stderr %q", args, code, out, errOut)
		}
	}
}

// TestHelp_RootAndCommands_LackTheClientsFlags has the flags of all commands under options only.
func TestHelp_RootAndCommands_LackTheClientsFlags(t *testing.T) {
	e := start(t, nil)
	for _, args := range [][]string{{"--help"}, {"ls", "--help"}} {
		if code, out, _ := e.kubectl(args...); code != 0 || strings.Contains(out, "--as-group") || !strings.Contains(out, `"kubectl gpu options"`) {
			t.Errorf("%v: exit code %d\n%s", args, code, out)
		}
	}
	if code, out, _ := e.kubectl("options"); code != 0 || !strings.Contains(out, "--as-group") || !strings.Contains(out, "--namespace") {
		t.Errorf("options: exit code %d\n%s", code, out)
	}
	_, want, _ := e.kubectl("--version")
	if code, out, _ := e.kubectl("version"); code != 0 || out != want || out == "" {
		t.Errorf("version: exit code %d, %q, want %q", code, out, want)
	}
}

// TestRun_Apply_CreatesTemplateAndPod has an API server that knows the pod already in the end.
func TestRun_Apply_CreatesTemplateAndPod(t *testing.T) {
	e := start(t, nil)
	var created []string
	create := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			created = append(created, r.Method+" "+r.URL.Path)
			if w.WriteHeader(code); code == http.StatusConflict {
				_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonAlreadyExists, Code: 409})
				return
			}
			_ = json.NewEncoder(w).Encode(metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}})
		}
	}
	const templates, pods = "/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaimtemplates", "/api/v1/namespaces/team-a/pods"
	e.lists[templates], e.lists[pods] = create(http.StatusCreated), create(http.StatusCreated)
	run := []string{"run", "hello", "--image", "ubuntu", "-n", "team-a", "--gpu", "1", "--apply"}
	code, out, errOut := e.kubectl(run...)
	if code != 0 || errOut != "" || !strings.Contains(out, "kubectl gpu why hello -n team-a") || !slices.Equal(created, []string{"POST " + templates, "POST " + pods}) {
		t.Errorf("exit code %d, %q, stderr %q, created %q", code, out, errOut, created)
	}
	e.lists[pods] = create(http.StatusConflict)
	if code, _, errOut := e.kubectl(run...); code != 1 || !strings.Contains(errOut, "pod team-a/hello exists: choose another name, or delete it; the template stays") {
		t.Errorf("exit code %d, stderr %q", code, errOut)
	}
}
