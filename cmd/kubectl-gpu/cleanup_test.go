// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// newUninstalled returns a cluster from which the driver was uninstalled. Each request that changes it is appended to writes.
func newUninstalled(t *testing.T, writes *[]string) *env {
	t.Helper()
	e := start(t, nil)
	record := func(kind string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			line := r.Method + " " + r.URL.Path
			if r.Method == http.MethodPatch {
				line += " " + string(body)
			} else if strings.Contains(string(body), "All") { // The body of a deletion has the dry run.
				line += " dry run"
			}
			*writes = append(*writes, line)
			_ = json.NewEncoder(w).Encode(map[string]any{"kind": kind, "apiVersion": "v1"})
		}
	}
	e.lists[podsPath] = corev1.PodList{}
	e.lists[classesPath] = resourceapi.DeviceClassList{Items: []resourceapi.DeviceClass{
		{ObjectMeta: metav1.ObjectMeta{Name: "mine", Labels: map[string]string{"gpu-dra-driver/managed-by": "gpu.nvidia.com"}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "users"}},
	}}
	e.lists[classesPath+"/mine"], e.lists[classesPath+"/users"] = record("Status"), record("Status")
	e.lists[nodesPath] = corev1.NodeList{Items: []corev1.Node{
		{ObjectMeta: metav1.ObjectMeta{Name: "n1", ResourceVersion: "7",
			Labels:      map[string]string{"nvidia.com/gpu.present": "true", "nvidia.com/gpu.count": "2", "nvidia.com/gpu.product": "changed", "zone": "a"},
			Annotations: map[string]string{"gpu-dra-driver/labels": `{"nvidia.com/gpu.present":"true","nvidia.com/gpu.count":"2","nvidia.com/gpu.product":"H100"}`, "other": "x"},
		}},
		{ObjectMeta: metav1.ObjectMeta{Name: "n2", Labels: map[string]string{"nvidia.com/gpu.present": "true"}}},
	}}
	e.onNode = record("Node")
	e.lists["/apis/coordination.k8s.io/v1/namespaces/system/leases/dra-controller.gpu.nvidia.com"] = record("Status")
	e.lists["/api/v1/namespaces/system/configmaps/gpu-dra-driver-asked"] = record("Status")
	return e
}

func TestCleanup_UninstalledDriver_RemovesOnlyItsObjects(t *testing.T) {
	var writes []string
	e := newUninstalled(t, &writes)
	code, out, errOut := e.kubectl("cleanup", "-n", "system")
	want := []string{
		"DELETE " + classesPath + "/mine",
		"PATCH " + nodesPath + `/n1 {"metadata":{"annotations":{"gpu-dra-driver/labels":null},"labels":{"nvidia.com/gpu.count":null,"nvidia.com/gpu.present":null},"resourceVersion":"7"}}`,
		"DELETE /apis/coordination.k8s.io/v1/namespaces/system/leases/dra-controller.gpu.nvidia.com",
		"DELETE /api/v1/namespaces/system/configmaps/gpu-dra-driver-asked",
	}
	if diff := cmp.Diff(want, writes); diff != "" || code != 0 {
		t.Errorf("exit code %d, %s; requests (-want +got):\n%s", code, errOut, diff)
	}
	if !strings.Contains(out, "node n1: 2 labels removed\n") || !strings.Contains(out, "deviceclass mine deleted\n") {
		t.Errorf("it prints %q", out)
	}
}

// TestCleanup_DriverMayRun_ChangesNothing has the reasons why the objects may be in use.
func TestCleanup_DriverMayRun_ChangesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*env)
		says   string
	}{
		"slices": {func(e *env) {
			other := start(t, map[string]string{"n1": "hgx-h100"})
			e.lists[slicesPath] = other.lists[slicesPath]
		}, "The kubelet of each node removes them"},
		"ending plugin": {func(e *env) {
			p := driverPod("plugin", "kubelet-plugin", "plugin:1")
			p.DeletionTimestamp = new(metav1.Now())
			e.lists[podsPath] = corev1.PodList{Items: []corev1.Pod{p}}
		}, "the driver is ending: 1 of its pods terminate"},
		"plugin": {func(e *env) {
			e.lists[podsPath] = corev1.PodList{Items: []corev1.Pod{driverPod("plugin", "kubelet-plugin", "plugin:1")}}
		}, "the driver is installed"},
		"controller": {func(e *env) {
			e.lists[podsPath] = corev1.PodList{Items: []corev1.Pod{driverPod("controller", "controller", "controller:1")}}
		}, "the driver is installed"},
		"no right to pods":   {func(e *env) { e.forbidden[podsPath], e.forbidden["/api/v1/namespaces/system/pods"] = true, true }, "you may not list Pods"},
		"no right to slices": {func(e *env) { e.forbidden[slicesPath] = true }, "ResourceSlices"},
		"no right to nodes":  {func(e *env) { e.forbidden[nodesPath] = true }, "you may not list Nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			var writes []string
			e := newUninstalled(t, &writes)
			c.change(e)
			if code, out, errOut := e.kubectl("cleanup", "-n", "system"); code != 1 || len(writes) > 0 || !strings.Contains(errOut, c.says) {
				t.Errorf("exit code %d, requests %v, stdout %q, stderr %q", code, writes, out, errOut)
			}
		})
	}
	var writes []string
	e := newUninstalled(t, &writes)
	if _, _, errOut := e.kubectl("cleanup", "-n", "elsewhere", "--dry-run=server"); !strings.Contains(errOut, "namespace elsewhere has no Lease") {
		t.Errorf("the objects of another namespace stay without a note: %q", errOut)
	}
	code, out, _ := e.kubectl("cleanup", "-n", "system", "--dry-run=server")
	if code != 0 || !strings.Contains(out, "deviceclass mine deleted (server dry run)") ||
		!slices.ContainsFunc(writes, func(w string) bool { return w == "DELETE "+classesPath+"/mine dry run" }) {
		t.Errorf("dry run: exit code %d, requests %v, stdout %q", code, writes, out)
	}
}
