// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/show/view"
)

// exposition has a GPU in MIG mode without utilization, a whole GPU, a claim of two pods and one that measures nothing.
const exposition = `# TYPE gpu_dra_device_utilization_ratio gauge
gpu_dra_device_utilization_ratio{node="n1",type="gpu",device="gpu-b",uuid="GPU-b",gpu_uuid="GPU-b",model="H"} 0.5
gpu_dra_device_utilization_ratio{node="n1",type="mig",device="gpu-a-mig",uuid="MIG-a",gpu_uuid="GPU-a",model="H"} 0.9
# TYPE gpu_dra_device_memory_used_bytes gauge
gpu_dra_device_memory_used_bytes{node="n1",type="gpu",device="gpu-a",uuid="GPU-a",gpu_uuid="GPU-a",model="H"} 1048576
gpu_dra_device_memory_used_bytes{node="n1",type="gpu",device="gpu-b",uuid="GPU-b",gpu_uuid="GPU-b",model="H"} 2097152
gpu_dra_device_memory_used_bytes{node="n1",type="mig",device="gpu-a-mig",uuid="MIG-a",gpu_uuid="GPU-a",model="H"} 1048576
# TYPE gpu_dra_device_temperature_celsius gauge
gpu_dra_device_temperature_celsius{type="gpu",uuid="GPU-a"} 40
gpu_dra_device_temperature_celsius{type="gpu",uuid="GPU-b"} 60
# TYPE gpu_dra_device_power_watts gauge
gpu_dra_device_power_watts{type="gpu",uuid="GPU-a"} NaN
# TYPE gpu_dra_claim_device_info gauge
gpu_dra_claim_device_info{claim_namespace="team",claim="shared",pod="p1",device="gpu-b",uuid="GPU-b",type="gpu"} 1
gpu_dra_claim_device_info{claim_namespace="team",claim="shared",pod="p2",device="gpu-b",uuid="GPU-b",type="gpu"} 1
gpu_dra_claim_device_info{claim_namespace="team",claim="dark",pod="",device="gpu-a-mig",uuid="MIG-a",type="mig"} 1
gpu_dra_claim_device_info{claim_namespace="team",claim="watch",pod="w",device="monitor-a",uuid="GPU-a",type="monitor"} 1
# TYPE gpu_dra_claim_utilization_ratio gauge
gpu_dra_claim_utilization_ratio{namespace="team",pod="p1",claim="shared",request="r",device="gpu-b",uuid="GPU-b"} 0.25
gpu_dra_claim_utilization_ratio{namespace="team",pod="p2",claim="shared",request="r",device="gpu-b",uuid="GPU-b"} 0.25
# TYPE gpu_dra_claim_memory_used_bytes gauge
gpu_dra_claim_memory_used_bytes{namespace="team",pod="p1",claim="shared",request="r",device="gpu-b",uuid="GPU-b"} 100
gpu_dra_claim_memory_used_bytes{namespace="team",pod="p2",claim="shared",request="r",device="gpu-b",uuid="GPU-b"} 100
# TYPE gpu_dra_claim_allocated_gpu_seconds_total counter
gpu_dra_claim_allocated_gpu_seconds_total{claim_namespace="team",claim="shared",claim_uid="u",gpu_uuid="GPU-b",model="H"} 7
# TYPE gpu_dra_request_seconds histogram
gpu_dra_request_seconds_bucket{le="+Inf"} 1
gpu_dra_request_seconds_sum 1
gpu_dra_request_seconds_count 1
`

func TestTop_Exposition_UnmeasuredIsAbsent(t *testing.T) {
	samples, err := view.ReadSamples(strings.NewReader(exposition))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]view.Samples{"n1": samples, "n2": nil}
	if diff := cmp.Diff([]view.NodeUse{
		{Node: "n1", GPUs: 2, Utilization: ptr.To(0.5), MemoryUsedBytes: ptr.To(3.0 * (1 << 20)), TemperatureCelsius: ptr.To(60.0)},
		{Node: "n2"},
	}, view.TopNodes(all)); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	// The two pods of a claim have equal series, which count once.
	if diff := cmp.Diff([]view.ClaimUse{
		{Namespace: "team", Name: "dark", Node: "n1", Claims: []string{"dark"}, Devices: []string{"gpu-a-mig"}},
		{Namespace: "team", Name: "shared", Node: "n1", Claims: []string{"shared"}, Pods: []string{"p1", "p2"}, Devices: []string{"gpu-b"},
			Utilization: ptr.To(0.25), MemoryUsedBytes: ptr.To(100.0)},
	}, view.TopClaims(all)); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[view.PartName]view.GPUUse{
		{Node: "n1", Device: "gpu-b", Claim: view.ClaimRef{Namespace: "team", Name: "shared"}}: {Utilization: ptr.To(0.25), MemoryUsedBytes: ptr.To(100.0)},
	}, view.TopParts(all)); diff != "" {
		t.Errorf("parts (-want +got):\n%s", diff)
	}
	use := view.ClaimUse{Namespace: "team", Name: "p1", Node: "n1", Claims: []string{"shared"}, Pods: []string{"p1"}, Devices: []string{"gpu-b"},
		Utilization: ptr.To(0.25), MemoryUsedBytes: ptr.To(100.0)}
	second := use
	second.Name, second.Pods = "p2", []string{"p2"}
	if diff := cmp.Diff([]view.ClaimUse{use, second}, view.TopPods(all)); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
}

func TestPluginPods_TwoOfANode_NewestReadyOne(t *testing.T) {
	pod := func(name, component string, ready corev1.ConditionStatus, age int64) corev1.Pod {
		return onHost(corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(1000-age, 0), Labels: map[string]string{
				"app.kubernetes.io/name": "gpu-dra-driver", "app.kubernetes.io/component": component,
			}},
			Spec:   corev1.PodSpec{NodeName: "n1"},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
		})
	}
	ended := pod("ended", "kubelet-plugin", corev1.ConditionTrue, 1)
	ended.Status.Phase = corev1.PodFailed
	pods := []corev1.Pod{
		pod("older", "kubelet-plugin", corev1.ConditionTrue, 30), pod("starts", "kubelet-plugin", corev1.ConditionFalse, 2), ended,
		pod("newer", "kubelet-plugin", corev1.ConditionTrue, 20), pod("controller", "controller", corev1.ConditionTrue, 1),
	}
	if got := view.PluginPods(pods); len(got) != 1 || got[0].Name != "newer" {
		t.Errorf("got %v", got)
	}
	if got := view.ControllerPods(pods); len(got) != 1 || got[0].Name != "controller" {
		t.Errorf("got %v", got)
	}
}

// TestPluginPods_TenantsPods_AreNotTheDrivers has pods with the driver's labels and images that run beside the driver.
func TestPluginPods_TenantsPods_AreNotTheDrivers(t *testing.T) {
	pod := func(namespace, component string, age int64) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: component, CreationTimestamp: metav1.Unix(1000-age, 0),
				Labels: map[string]string{"app.kubernetes.io/name": "gpu-dra-driver", "app.kubernetes.io/component": component},
			},
			Spec:   corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Image: "registry.example.com/dra-" + component}}},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		}
	}
	plugin := onHost(pod("driver", "kubelet-plugin", 30))
	withoutVolume, withoutPIDs := pod("team", "kubelet-plugin", 1), onHost(pod("team", "kubelet-plugin", 1))
	withoutVolume.Spec.HostPID, withoutPIDs.Spec.HostPID = true, false
	pods := []corev1.Pod{
		pod("team", "kubelet-plugin", 1), withoutVolume, withoutPIDs, pod("team", "controller", 1), pod("team", "mps-supervisor", 1),
		plugin, pod("driver", "controller", 30), pod("driver", "mps-supervisor", 30),
	}
	for name, found := range map[string][]corev1.Pod{
		"plugins": view.PluginPods(pods), "controllers": view.ControllerPods(pods), "all": view.DriverPods(pods),
	} {
		if len(found) == 0 {
			t.Errorf("%s: none", name)
		}
		for _, p := range found {
			if p.Namespace != "driver" {
				t.Errorf("%s: %s/%s", name, p.Namespace, p.Name)
			}
		}
	}
	d := view.Diagnosis{Objects: objects(published(t, "l40s-4", "n1", 1))}
	d.Pods = pods
	d.States = read.States{read.Pods: nil}
	for _, f := range view.Findings(d, nil) {
		if strings.Contains(f.Message, "team/") || strings.Contains(f.Message, "of 2 pods") {
			t.Errorf("%s: %s", f.Subject, f.Message)
		}
	}
}

// onHost gives a pod the parts of the node that the plugin has.
func onHost(p corev1.Pod) corev1.Pod {
	p.Spec.HostPID = true
	p.Spec.Volumes = []corev1.Volume{{Name: "registrar", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/kubelet/plugins_registry"},
	}}}
	return p
}

// TestMetricsEndpoint_PathWithDots_StaysInThePod has a path that the API server's proxy would resolve to other objects.
func TestMetricsEndpoint_PathWithDots_StaysInThePod(t *testing.T) {
	for path, want := range map[string]string{"/metrics": "/metrics", "../../../secrets": "/secrets", "/m/../../../nodes": "/nodes", "": ""} {
		e, ok := view.MetricsEndpoint(corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: 8080}}, Env: []corev1.EnvVar{{Name: "METRICS_PATH", Value: path}},
		}}}})
		if e.Path != want || ok != (want != "") {
			t.Errorf("%q: %q, %v", path, e.Path, ok)
		}
	}
}

// FuzzReadSamples reads text that no plugin writes.
func FuzzReadSamples(f *testing.F) {
	f.Add(exposition)
	f.Add("gpu_dra_claim_utilization_ratio{claim=\"\xff\"} -Inf\ngpu_dra_claim_device_info 1\n")
	f.Fuzz(func(_ *testing.T, text string) {
		samples, err := view.ReadSamples(strings.NewReader(text))
		if err != nil {
			return
		}
		all := map[string]view.Samples{"n": samples}
		view.TopNodes(all)
		view.TopClaims(all)
		view.TopPods(all)
	})
}
