// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	claimText = `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":"want","namespace":"team-a"},"spec":{"devices":{` +
		`"requests":[{"name":"gpu","exactly":{"deviceClassName":"gpu.nvidia.com"}}]}}}`
	manifestText = `apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  template:
    spec:
      containers: [{name: c, resources: {claims: [{name: gpu}]}}]
      resourceClaims: [{name: gpu, resourceClaimTemplateName: two}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: two}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 2}}]}}}
`
)

// newWhyEnv returns a cluster of which claims of another namespace hold both GPUs, and a pod that wants one.
func newWhyEnv(t *testing.T) *env {
	t.Helper()
	e := start(t, map[string]string{"n1": "hgx-h100"},
		claim("team-b", "a", device("n1", "gpu-0000-1b-00-0")), claim("team-b", "b", device("n1", "gpu-0000-43-00-0")))
	e.lists["/apis/resource.k8s.io/v1/deviceclasses"] = map[string]any{
		"kind": "DeviceClassList", "apiVersion": "resource.k8s.io/v1", "items": []any{resourceapi.DeviceClass{
			ObjectMeta: metav1.ObjectMeta{Name: "gpu.nvidia.com"},
			Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
				Expression: `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`,
			}}}},
		}},
	}
	e.lists["/api/v1/nodes"] = map[string]any{"kind": "NodeList", "apiVersion": "v1", "items": []any{corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}}
	e.lists["/api/v1/namespaces/team-a/pods"] = map[string]any{"kind": "PodList", "apiVersion": "v1", "items": []any{}}
	want := resourceapi.ResourceClaim{
		TypeMeta: metav1.TypeMeta{Kind: "ResourceClaim", APIVersion: "resource.k8s.io/v1"}, ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "want"},
	}
	want.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.nvidia.com", Count: 1}}}
	e.lists["/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims/want"] = want
	pod := corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "p", UID: "p"}}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &want.Name}}
	e.lists["/api/v1/namespaces/team-a/pods/p"] = pod
	for _, name := range []string{"a", "b"} { // They hold the GPUs.
		e.lists["/api/v1/namespaces/team-b/pods/"+name] = corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "team-b", Name: name, UID: "1"}}
	}
	return e
}

// TestWhy_RightMissing_SaysWhatWasNotRead has a user who may not read some objects.
func TestWhy_RightMissing_SaysWhatWasNotRead(t *testing.T) {
	template := corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "t", UID: "t"}}
	template.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("one")}}
	for name, c := range map[string]struct {
		forbidden, subject, out string
	}{
		"slices":    {slicesPath, "p", "pod team-a/p: undecided, because ResourceSlices could not be read."},
		"classes":   {classesPath, "p", "pod team-a/p: undecided, because DeviceClasses could not be read."},
		"claims":    {claimsPath, "p", "pod team-a/p fits on n1 now, unless claims that could not be read hold the devices."},
		"nodes":     {nodesPath, "p", "note: nodes could not be read, so their taints, cordons and labels are not considered"},
		"events":    {"/api/v1/namespaces/team-a/events", "p", "note: the pod's Events could not be read"},
		"rules":     {rulesPath, "p", "note: DeviceTaintRules could not be read, so their taints are not considered"},
		"templates": {"/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaimtemplates/one", "t", "pod team-a/t: undecided, because ResourceClaimTemplate one could not be read."},
		"pods":      {"/api/v1/namespaces/team-a/pods", "claim/want", "note: pods could not be read, so the answer is for a claim without its pod"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newWhyEnv(t)
			e.lists["/api/v1/namespaces/team-a/pods/t"] = template
			e.lists["/api/v1/namespaces/team-a/events"] = map[string]any{"kind": "EventList", "apiVersion": "v1", "items": []any{}}
			e.lists["/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims"] = map[string]any{
				"kind": "ResourceClaimList", "apiVersion": "resource.k8s.io/v1", "items": []any{e.lists["/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims/want"]},
			}
			e.forbidden[c.forbidden] = true
			code, out, errOut := e.kubectl("why", c.subject)
			if code != 0 || !strings.Contains(out, c.out) {
				t.Errorf("exit code %d, stdout:\n%s\nstderr:\n%s", code, out, errOut)
			}
		})
	}
}

func TestWhy_Subjects_AreExplained(t *testing.T) {
	e := newWhyEnv(t)
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for job, list := range map[string]string{"train": "t", "none": "n"} {
		e.lists["/apis/batch/v1/namespaces/team-a/jobs/"+job] = batchv1.Job{
			TypeMeta:   metav1.TypeMeta{Kind: "Job", APIVersion: "batch/v1"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: job}, Spec: batchv1.JobSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"job": list}}},
		}
	}
	waits, _ := e.lists["/api/v1/namespaces/team-a/pods/p"].(corev1.Pod)
	runs := *waits.DeepCopy()
	runs.Name, runs.Spec.NodeName = "older", "n1"
	e.lists["/api/v1/namespaces/team-a/pods"] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		all := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
		if r.URL.Query().Get("labelSelector") == "job=t" {
			all.Items = []corev1.Pod{runs, waits}
		}
		_ = json.NewEncoder(w).Encode(all)
	})
	e.lists["/api/v1/namespaces/team-a/events"] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		events := corev1.EventList{TypeMeta: metav1.TypeMeta{Kind: "EventList", APIVersion: "v1"}}
		if strings.Contains(r.URL.Query().Get("fieldSelector"), "FailedCreate") {
			events.Items = []corev1.Event{{
				InvolvedObject: corev1.ObjectReference{Kind: "Job", Name: "none"}, Message: `Error creating: pods "none-x" is forbidden: exceeded quota: none`,
			}}
		}
		_ = json.NewEncoder(w).Encode(events)
	})
	e.lists["/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaimtemplates"] = resourceapi.ResourceClaimTemplateList{
		TypeMeta: metav1.TypeMeta{Kind: "ResourceClaimTemplateList", APIVersion: "resource.k8s.io/v1"},
		Items:    []resourceapi.ResourceClaimTemplate{{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "gpu-one"}}},
	}
	naming := func(field, name string) string {
		return file(field+name, "apiVersion: v1\nkind: Pod\nmetadata: {name: names}\nspec: {resourceClaims: [{name: gpu, "+field+": "+name+"}], "+
			"containers: [{name: c, image: i, resources: {claims: [{name: gpu}]}}]}\n")
	}
	const holds = "claim team-b/a (pod a) must end (wait until it ends); then it fits on n1"
	for name, c := range map[string]struct {
		args     []string
		code     int
		out, err string
	}{
		"pod":                           {[]string{"p"}, 0, "pod team-a/p waits: 0 of 1 nodes can allocate its devices.\n  - node n1: other claims hold the devices\n", ""},
		"pod of a kind":                 {[]string{"pod/p"}, 0, holds, ""},
		"claim":                         {[]string{"claim/want"}, 0, holds, ""},
		"name of a claim":               {[]string{"want"}, 0, "claim team-a/want waits", ""},
		"devices":                       {[]string{"p", "-v"}, 0, "request gpu: gpu-0000-1b-00-0: held by claim team-b/a\n", ""},
		"claim in a file":               {[]string{"-f", file("claim.json", claimText)}, 1, holds, ""},
		"workload in a file":            {[]string{"-f", file("job.yaml", manifestText)}, 1, "pod team-a/train waits", ""},
		"a template's name, misspelled": {[]string{"-f", naming("resourceClaimTemplateName", "gpu-onee")}, 1, "create it, or is gpu-one meant?", ""},
		"a template where a claim is":   {[]string{"-f", naming("resourceClaimName", "gpu-one")}, 1, "a ResourceClaimTemplate of this name does: write resourceClaimTemplateName", ""},
		"json":                          {[]string{"p", "-o", "json"}, 0, `"result": "waits"`, ""},
		"name":                          {[]string{"p", "-o", "name"}, 0, "explanation.cli.gpu.nvidia.com/pod/p", ""},
		"no such name":                  {[]string{"absent"}, 1, "", `namespace team-a has no pod and no ResourceClaim named "absent"`},
		"job":                           {[]string{"job/train"}, 0, holds, ""},
		"job without pods":              {[]string{"job/none"}, 1, "", `job team-a/none has no pod. The API server refuses its pods: pods "none-x" is forbidden: exceeded quota: none. To start them, end other pods`},
		"no such job":                   {[]string{"jobs/absent"}, 1, "", "read jobs team-a/absent"},
		"no such kind":                  {[]string{"cronjob/a"}, 2, "", `"cronjob/a": name a pod, a claim, a Job, Deployment`},
		"neither":                       {nil, 2, "", "name a pod or claim, or give a file with -f"},
		"no such file":                  {[]string{"-f", filepath.Join(dir, "absent")}, 2, "", "read the manifest"},
		"no manifest":                   {[]string{"-f", file("text", "{{{")}, 2, "", "document 1 of the manifest"},
		"a manifest without":            {[]string{"-f", file("none.yaml", "kind: ConfigMap\napiVersion: v1\n")}, 2, "", "has no pod, claim or template"},
		"old version":                   {[]string{"-f", file("old.json", strings.Replace(claimText, "k8s.io/v1", "k8s.io/v1beta1", 1))}, 2, "write it in resource.k8s.io/v1", ""},
		"malformed quantity":            {[]string{"-f", file("bad.json", strings.Replace(claimText, `}}]`, `,"capacity":{"requests":{"memory":"lots"}}}}]`, 1))}, 2, "is refused: quantities must match", ""},
		"board":                         {[]string{"-f", file("plan.json", claimText), "--board", "a30"}, 0, "claim team-a/want fits on template now.", "assumed: "},
		"board with a job":              {[]string{"-f", file("plan.yaml", manifestText), "--board", "t4-1"}, 1, "request gpu: ask for 1 instead of 2; at once it fits on template", ""},
		"no such board":                 {[]string{"-f", file("plan.json", claimText), "--board", "absent"}, 2, "", "is not known, use one of"},
		"a board and a name":            {[]string{"p", "--board", "a30"}, 2, "", "--board needs the objects of a file"},
		"no time":                       {[]string{"p", "--time-limit", "0s"}, 2, "", "--time-limit must be more than 0"},
		"standard input":                {[]string{"-f", "-"}, 2, "", "- has no pod, claim or template"},
		"unknown output":                {[]string{"p", "-o", "xml"}, 2, "", "xml"},
		"two names":                     {[]string{"p", "q"}, 1, "", "accepts at most 1 arg"},
		"a file and a name":             {[]string{"p", "-f", "x"}, 2, "", "name a pod or claim, or give a file"},
		"a kind but no object":          {[]string{"claim/absent"}, 1, "", "read ResourceClaim team-a/absent"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errOut := e.kubectl(append([]string{"why"}, c.args...)...)
			if code != c.code || !strings.Contains(out, c.out) || !strings.Contains(errOut, c.err) || strings.Contains(errOut, "goroutine") {
				t.Errorf("exit code %d, stdout:\n%s\nstderr:\n%s", code, out, errOut)
			}
		})
	}
}
