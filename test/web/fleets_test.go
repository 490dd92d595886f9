//go:build web

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/test/fleetserver"
)

// kinds are the models of a fleet, with names as clouds give them.
var kinds = []struct{ profile, name string }{
	{"hgx-h100", "gke-research-eu-west4-a3-highgpu-8g-pool-1-%08x-x7kq"},
	{"hgx-h200", "ip-10-0-%d-17.eu-central-1.compute.internal"},
	{"hgx-b200", "aks-b200pool-31337%03d-vmss00000a"},
	{"dgx-a100-80", "dgx-a100-%02d"},
	{"l40s-4", "l40s-rack-07-node-%03d"},
}

// teams hold GPUs. They are more than there are colours.
var teams = []string{"training", "inference", "research", "notebooks", "vision", "speech", "robotics", "search", "safety", "genomics", "climate", "sandbox"}

// states are the taints of GPUs by their place in the fleet.
var states = map[int]resourceapi.DeviceTaint{
	11: {Key: "gpu.nvidia.com/unhealthy", Value: "reset", Effect: "NoSchedule"},
	17: {Key: "gpu.nvidia.com/cordoned", Value: "maintenance", Effect: "NoSchedule"},
	29: {Key: "gpu.nvidia.com/unhealthy", Value: "lost", Effect: "NoSchedule"},
}

// holder is the team that has a GPU of a node, if one has. Each node has a load of its own: a large team, several small ones, or none.
func holder(node, board int) (team string, ok bool) {
	team = teams[(node*node+node/7)%len(teams)]
	if node%3 == 1 {
		team = teams[(node+board)%len(teams)]
	}
	return team, node%4 != 3 && (node*5+board*3)%8 < 6
}

// boards are the names of the GPUs of a profile.
func boards(t *testing.T, profile string) (out []string) {
	t.Helper()
	slices, err := slicetest.Node(profile, "node", 0)
	must(t, err)
	for _, s := range slices {
		for _, d := range s.Spec.Devices {
			if kind := d.Attributes["type"].StringValue; kind != nil && *kind == "gpu" {
				out = append(out, d.Name)
			}
		}
	}
	return out
}

// fleet is a cluster of nodes of several models, of which about two thirds are in use. Some GPUs are unhealthy or cordoned.
func fleet(t *testing.T, nodes int) *fleetserver.Server {
	t.Helper()
	s, err := fleetserver.New()
	must(t, err)
	const blank = "blank"
	templates := map[string][]*resourceapi.ResourceSlice{}
	place, held := 0, map[string]bool{}
	for i := range nodes {
		kind := kinds[i*len(kinds)/nodes]
		name := fmt.Sprintf(kind.name, i)
		if templates[kind.profile] == nil {
			templates[kind.profile], err = slicetest.Node(kind.profile, blank, 0)
			must(t, err)
		}
		var gpus []string
		tainted := map[string]resourceapi.DeviceTaint{}
		for n, template := range templates[kind.profile] {
			slice := template.DeepCopy()
			slice.Name = fmt.Sprintf("%s-%d", name, n)
			slice.Spec.NodeName = &name
			slice.Spec.Pool.Name = strings.Replace(slice.Spec.Pool.Name, blank, name, 1)
			for j := range slice.Spec.Devices {
				d := &slice.Spec.Devices[j]
				if kind := d.Attributes["type"].StringValue; kind != nil && *kind == "gpu" {
					if t, sick := states[place%47]; sick {
						tainted[d.Name] = t
					}
					gpus = append(gpus, d.Name)
					place++
				}
			}
			for j := range slice.Spec.Devices {
				d := &slice.Spec.Devices[j]
				for board, taint := range tainted {
					if strings.HasPrefix(d.Name, board) {
						d.Taints = append(d.Taints, taint)
					}
				}
			}
			s.Add("resourceslices", slice)
		}
		result := func(device string) resourceapi.DeviceRequestAllocationResult {
			return resourceapi.DeviceRequestAllocationResult{Driver: driver, Pool: name + "/gpu", Device: device}
		}
		for j, g := range gpus {
			if team, ok := holder(i, j); ok {
				held[name+"/"+strings.Split(g, "-")[2]] = true
				s.Add("resourceclaims", claim(team, fmt.Sprintf("job-%d-%d", i, j), result(g)))
			}
		}
		plugin := pluginPod(name)
		s.Add("pods", plugin)
	}
	s.Metrics = figuresOf(held)
	return s
}

// pluginPod is the driver's plugin of a node, as the chart deploys it.
func pluginPod(node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "gpu-dra-driver", Name: "plugin." + node, Labels: map[string]string{
			"app.kubernetes.io/name": "gpu-dra-driver", "app.kubernetes.io/component": "kubelet-plugin",
		}},
		Spec: corev1.PodSpec{
			NodeName: node, HostPID: true,
			Containers: []corev1.Container{{Name: "gpus", Image: "dra-kubelet-plugin", Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: 8080}}}},
			Volumes: []corev1.Volume{{Name: "registrar", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/kubelet/plugins_registry"},
			}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
}

// buses are the PCI buses of the GPUs of all profiles.
var buses = strings.Fields("19 1b 38 3b 43 4c 52 5d 61 9b 9d ab bb c3 ca cb d1 db df 07 0f 47 4e 87 90 b7 bd 06 0a 0b 85 86 89 8a")

// figures serves the metrics of a plugin. Each GPU has a utilization of its own.
func figures(w http.ResponseWriter, r *http.Request, pod string) { figuresOf(nil)(w, r, pod) }

// figuresOf serves the metrics of plugins. Only the held GPUs, as NODE/BUS, are measured: GPUs with partitions are not.
func figuresOf(held map[string]bool) func(w http.ResponseWriter, r *http.Request, pod string) {
	return func(w http.ResponseWriter, _ *http.Request, pod string) {
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprintln(w, "# TYPE gpu_dra_device_utilization_ratio gauge")
		for i, bus := range buses {
			use := float64((i*37+len(pod)*11+7*int(pod[len(pod)-1]))%100+1) / 100
			if held != nil && !held[strings.TrimPrefix(pod, "plugin.")+"/"+bus] {
				continue
			}
			fmt.Fprintf(w, "gpu_dra_device_utilization_ratio{node=%q,type=\"gpu\",device=\"gpu-0000-%s-00-0\"} %.2f\n", pod, bus, use)
		}
	}
}
