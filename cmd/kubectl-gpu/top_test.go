// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// measurements are a plugin's metrics. The second GPU and its claim measure no utilization.
const measurements = `# TYPE gpu_dra_device_utilization_ratio gauge
gpu_dra_device_utilization_ratio{node="n1",type="gpu",device="gpu-0000-1b-00-0",uuid="GPU-1",gpu_uuid="GPU-1",model="H100"} 0.625
# TYPE gpu_dra_device_memory_used_bytes gauge
gpu_dra_device_memory_used_bytes{node="n1",type="gpu",device="gpu-0000-1b-00-0",uuid="GPU-1",gpu_uuid="GPU-1",model="H100"} 2.147483648e+10
gpu_dra_device_memory_used_bytes{node="n1",type="gpu",device="gpu-0000-43-00-0",uuid="GPU-2",gpu_uuid="GPU-2",model="H100"} 0
# TYPE gpu_dra_device_memory_total_bytes gauge
gpu_dra_device_memory_total_bytes{node="n1",type="gpu",device="gpu-0000-1b-00-0",uuid="GPU-1",gpu_uuid="GPU-1",model="H100"} 8.5520809984e+10
gpu_dra_device_memory_total_bytes{node="n1",type="gpu",device="gpu-0000-43-00-0",uuid="GPU-2",gpu_uuid="GPU-2",model="H100"} 8.5520809984e+10
# TYPE gpu_dra_device_temperature_celsius gauge
gpu_dra_device_temperature_celsius{node="n1",type="gpu",device="gpu-0000-1b-00-0",uuid="GPU-1",gpu_uuid="GPU-1",model="H100"} 61
# TYPE gpu_dra_claim_device_info gauge
gpu_dra_claim_device_info{claim_namespace="team-a",claim="train-0",pod="train-0",request="gpu",type="gpu",device="gpu-0000-1b-00-0",uuid="GPU-1",gpu_uuid="GPU-1"} 1
gpu_dra_claim_device_info{claim_namespace="team-b",claim="notebook",pod="notebook",request="gpu",type="gpu",device="gpu-0000-43-00-0",uuid="GPU-2",gpu_uuid="GPU-2"} 1
# TYPE gpu_dra_claim_utilization_ratio gauge
gpu_dra_claim_utilization_ratio{namespace="team-a",pod="train-0",claim="train-0",request="gpu",device="gpu-0000-1b-00-0",uuid="GPU-1",model="H100",node="n1"} 0.625
# TYPE gpu_dra_claim_memory_used_bytes gauge
gpu_dra_claim_memory_used_bytes{namespace="team-a",pod="train-0",claim="train-0",request="gpu",device="gpu-0000-1b-00-0",uuid="GPU-1",model="H100",node="n1"} 2.147483648e+10
# TYPE gpu_dra_claim_memory_granted_bytes gauge
gpu_dra_claim_memory_granted_bytes{namespace="team-a",pod="train-0",claim="train-0",request="gpu",device="gpu-0000-1b-00-0",uuid="GPU-1",model="H100",node="n1"} 8.5520809984e+10
`

func TestTop_PluginMetrics_DashForUnmeasured(t *testing.T) {
	e := start(t, map[string]string{"n1": "hgx-h100"})
	e.lists[podsPath] = corev1.PodList{Items: []corev1.Pod{driverPod("plugin", "kubelet-plugin", "plugin:1"), driverPod("controller", "controller", "c:1")}}
	e.metrics("plugin", measurements)
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "n1     2      62%           20480Mi       163118Mi   -       61C\n"},
		{[]string{"nodes", "n1", "-o", "jsonpath={.items[0].utilization}"}, "0.625"},
		{[]string{"claims"}, "team-a      train-0   n1     gpu-0000-1b-00-0   62%           20480Mi       81559Mi\n"},
		{[]string{"pods", "-A"}, "team-b      notebook   n1     gpu-0000-43-00-0   -             -             -\n"},
		{[]string{"pods", "-A", "-o", "name"}, "poduse.cli.gpu.nvidia.com/notebook"},
	} {
		if code, out, errOut := e.kubectl(append([]string{"top"}, c.args...)...); code != 0 || errOut != "" || !strings.Contains(out, c.want) {
			t.Errorf("%v: exit code %d, stderr %q, stdout:\n%s", c.args, code, errOut, out)
		}
	}
	if _, out, _ := e.kubectl("top", "claims"); strings.Contains(out, "team-b") {
		t.Errorf("claims of another namespace are listed:\n%s", out)
	}
}

func TestTop_NoMetrics_SaysWhy(t *testing.T) {
	silent := driverPod("plugin", "kubelet-plugin", "plugin:1")
	silent.Spec.Containers[0].Ports = nil
	for name, c := range map[string]struct {
		change      func(*env)
		args        []string
		code        int
		out, errOut string
	}{
		"metrics off":       {func(e *env) { e.lists[podsPath] = corev1.PodList{Items: []corev1.Pod{silent}} }, nil, 0, "n1     -      -", "serves no metrics"},
		"no right to proxy": {func(e *env) { e.forbidden[proxyPath("plugin")] = true }, nil, 0, "n1     -      -", "you may not get the subresource pods/proxy"},
		"plugin gone":       {func(e *env) { delete(e.lists, proxyPath("plugin")) }, nil, 0, "n1     -      -", "read the metrics of pod system/plugin"},
		"malformed":         {func(e *env) { e.metrics("plugin", "gpu_dra{ 1") }, nil, 0, "n1     -      -", "read the metrics of pod system/plugin"},
		"no right to pods":  {func(e *env) { e.forbidden[podsPath], e.forbidden["/api/v1/namespaces/team-a/pods"] = true, true }, nil, 1, "", "you may not list the pods of the driver's plugins"},
		"no plugin":         {func(e *env) { e.lists[podsPath] = corev1.PodList{} }, nil, 0, "", "No plugin of driver"},
		"no such node":      {nil, []string{"n2"}, 1, "", `node "n2" runs no plugin`},
		"claims of none":    {func(e *env) { e.metrics("plugin", "") }, []string{"claims"}, 0, "", "No claims with prepared devices"},
		"claims and a name": {nil, []string{"claims", "x"}, 1, "", "unknown command"},
		"an unknown format": {nil, []string{"-o", "xml"}, 2, "", "xml"},
		"proxy never answers": {func(e *env) {
			e.lists[proxyPath("plugin")] = hangs
		}, []string{"--request-timeout=300ms"}, 1, "", "did not answer in time"},
	} {
		t.Run(name, func(t *testing.T) {
			e := start(t, map[string]string{"n1": "hgx-h100"})
			e.lists[podsPath] = corev1.PodList{Items: []corev1.Pod{driverPod("plugin", "kubelet-plugin", "plugin:1")}}
			e.metrics("plugin", measurements)
			if c.change != nil {
				c.change(e)
			}
			code, out, errOut := e.kubectl(append([]string{"top"}, c.args...)...)
			if code != c.code || !strings.Contains(out, c.out) || !strings.Contains(errOut, c.errOut) || strings.Contains(errOut, "goroutine") {
				t.Errorf("exit code %d, stderr %q, stdout:\n%s", code, errOut, out)
			}
		})
	}
}
