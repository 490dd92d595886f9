// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const (
	budgetsPath = "/apis/gpu.nvidia.com/v1alpha1/gpubudgets"
	quotasPath  = "/api/v1/resourcequotas"
)

// addBudgets gives the cluster classes, a budget for team-a and a quota for team-b.
func (e *env) addBudgets() {
	class := func(name, kind string) resourceapi.DeviceClass {
		return resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{
			{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "` + kind + `"`}},
		}}}
	}
	e.lists[classesPath] = resourceapi.DeviceClassList{Items: []resourceapi.DeviceClass{
		class("gpu.nvidia.com", "gpu"), class("mig.nvidia.com", "mig"), class("monitor.gpu.nvidia.com", "monitor"),
	}}
	e.lists[budgetsPath] = `{"apiVersion":"gpu.nvidia.com/v1alpha1","kind":"GPUBudgetList","items":[{"apiVersion":"gpu.nvidia.com/v1alpha1","kind":"GPUBudget",` +
		`"metadata":{"name":"default","namespace":"team-a"},"spec":{"hard":{"gpus":2,"memory":"160Gi","models":[{"productName":"NVIDIA H100 80GB HBM3","gpus":"1500m"}]}},` +
		`"status":{"used":{"gpus":"875m","memory":"70784Mi","models":[{"productName":"NVIDIA H100 80GB HBM3","gpus":"875m"}]}}}]}`
	quotas, err := json.Marshal(corev1.ResourceQuotaList{TypeMeta: metav1.TypeMeta{Kind: "ResourceQuotaList", APIVersion: "v1"}, Items: []corev1.ResourceQuota{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-b", Name: "gpus"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
			"gpu.nvidia.com.deviceclass.resource.k8s.io/devices": resource.MustParse("2"), "cpu": resource.MustParse("9"),
		}},
	}, {
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-b", Name: "more"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"gpu.nvidia.com.deviceclass.resource.k8s.io/devices": resource.MustParse("3")}},
	}}})
	if err != nil {
		e.t.Fatal(err)
	}
	e.lists[quotasPath] = string(quotas)
	e.lists[quotasOf("team-b")] = string(quotas)
	e.lists[quotasOf("team-c")] = corev1.ResourceQuotaList{}
}

func quotasOf(namespace string) string { return "/api/v1/namespaces/" + namespace + "/resourcequotas" }

func TestQuota_Namespaces_ShowBudgetsAndUse(t *testing.T) {
	e := start(t, map[string]string{"n1": "hgx-h100"},
		claim("team-a", "in-the-budget", device("n1", "gpu-0000-1b-00-0")), claim("team-b", "free", device("n1", "gpu-0000-43-00-0-mig-1g-10gb-0")))
	e.addBudgets()
	squeeze := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"quota", "-A", "--no-headers"}, "team-a gpus * 0.875 2 44% team-a memory * 69.1Gi 160.0Gi 43% team-a gpus NVIDIA H100 80GB HBM3 0.875 1.5 58% " +
			"team-b gpus * 0.125 - - team-b memory * 9.6Gi - -"},
		{[]string{"quota", "-n", "team-b", "--no-headers"}, "team-b gpus * 0.125 - - team-b memory * 9.6Gi - -"},
		{[]string{"quota", "-n", "team-a", "-o", "jsonpath={.items[0].hard}"}, "2"},
	} {
		if code, out, errOut := e.kubectl(c.args...); code != 0 || squeeze(out) != c.want {
			t.Errorf("%q: exit code %d, %s\n%s\nwant\n%s", c.args, code, errOut, squeeze(out), c.want)
		}
	}
	if code, _, errOut := e.kubectl("quota", "-n", "team-c"); code != 0 || !strings.Contains(errOut, "No GPU budgets or claims of driver gpu.nvidia.com found in namespace team-c.") {
		t.Errorf("exit code %d, %q", code, errOut)
	}
	if code, _, _ := e.kubectl("quota", "-A", "--resource-quota"); code != 2 {
		t.Errorf("--resource-quota of all namespaces: exit code %d", code)
	}
	delete(e.lists, budgetsPath) // The cluster does not have the API.
	if code, out, errOut := e.kubectl("quota", "-A", "--no-headers"); code != 0 || !strings.Contains(out, "team-a") || errOut != "" {
		t.Errorf("exit code %d, %q, %q", code, out, errOut)
	}
}

func TestQuota_ResourceQuota_HasAllClasses(t *testing.T) {
	e := start(t, map[string]string{"n1": "hgx-h100"})
	e.addBudgets()
	for namespace, want := range map[string]string{"team-b": "2", "team-c": "0"} {
		code, out, errOut := e.kubectl("quota", "-n", namespace, "--resource-quota")
		var q corev1.ResourceQuota
		if err := yaml.UnmarshalStrict([]byte(out), &q); err != nil || code != 0 {
			t.Fatalf("%v, exit code %d, %s", err, code, errOut)
		}
		gpus, mig := q.Spec.Hard["gpu.nvidia.com.deviceclass.resource.k8s.io/devices"], q.Spec.Hard["mig.nvidia.com.deviceclass.resource.k8s.io/devices"]
		if q.Namespace != namespace || gpus.String() != want || mig.String() != "0" || len(q.Spec.Hard) != 2 {
			t.Errorf("%+v", q)
		}
	}
	for _, path := range []string{quotasOf("team-b"), classesPath} {
		e.forbidden[path] = true
		if code, out, errOut := e.kubectl("quota", "-n", "team-b", "--resource-quota"); code != 1 || out != "" || errOut == "" {
			t.Errorf("without the right to %s: exit code %d, %q, %q", path, code, out, errOut)
		}
		delete(e.forbidden, path)
	}
}

func TestDoctor_ResourceQuotaWithHoles_Warns(t *testing.T) {
	e := start(t, map[string]string{"n1": "hgx-h100"})
	e.addBudgets()
	e.lists[podsPath] = corev1.PodList{Items: []corev1.Pod{driverPod("plugin", "kubelet-plugin", "plugin:1"), driverPod("controller", "controller", "controller:1")}}
	e.lists[nodesPath] = corev1.NodeList{Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}}
	const want = "its ResourceQuota limits gpu.nvidia.com, and other classes of the same GPUs not (1): mig.nvidia.com."
	if code, out, _ := e.kubectl("doctor"); code != 1 || !strings.Contains(out, want) {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	e.forbidden[quotasPath] = true
	if code, out, _ := e.kubectl("doctor"); code != 1 || strings.Contains(out, want) || !strings.Contains(out, "not checked   ResourceQuotas") {
		t.Errorf("without the right to list quotas: exit code %d:\n%s", code, out)
	}
}
