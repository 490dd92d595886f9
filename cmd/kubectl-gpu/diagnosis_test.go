// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/podevents"
	"gpu-dra-driver/pkg/cluster/why"
	"gpu-dra-driver/pkg/wire"
)

const diagnosisPage = "../../docs/reference/diagnosis.md"

// state is a state of the world. It has the GPUs of newWhyEnv: claims of team-b have both, unless free is set.
type state struct {
	name   string
	free   bool
	change func(*env)
	// doctor and why must be in the answers. An empty one means that the command does not look at the state.
	doctor, why string
	// alert is the chart's alert for the state, or empty.
	alert string
	// noEvent says why the pod has no Event, or is empty.
	noEvent string
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
	says := func(message string) func(*env) {
		return func(e *env) {
			e.podP(func(p *corev1.Pod) {
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: message}}
			})
		}
	}
	refused := func(message string) func(*env) {
		return func(e *env) { refusedClaim(e, message, 0) }
	}
	asks := func(change func(*resourceapi.ExactDeviceRequest)) func(*env) {
		return func(e *env) {
			c := e.want()
			change(c.Spec.Devices.Requests[0].Exactly)
			e.lists[wantPath] = c
		}
	}
	selecting := func(expression string) func(*env) {
		return asks(func(q *resourceapi.ExactDeviceRequest) {
			q.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
		})
	}
	tainted := func(key string) func(*env) {
		return func(e *env) {
			for _, s := range e.lists[slicesPath].(resourceapi.ResourceSliceList).Items {
				for i := range s.Spec.Devices {
					s.Spec.Devices[i].Taints = append(s.Spec.Devices[i].Taints, resourceapi.DeviceTaint{Key: key, Effect: "NoSchedule"})
				}
			}
		}
	}
	node := func(change func(*corev1.Node)) func(*env) {
		return func(e *env) {
			n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
			change(&n)
			e.lists[nodesPath] = corev1.NodeList{Items: []corev1.Node{n}}
		}
	}
	cordoned := func(gpus ...string) func(*env) {
		return func(e *env) {
			e.annotations["n1"] = map[string]string{}
			for _, g := range gpus {
				e.annotations["n1"][wire.CordonAnnotation(slicetest.Driver, g)] = "NoSchedule"
			}
			e.publish("n1")
			node(func(n *corev1.Node) { n.Annotations = e.annotations["n1"] })(e)
		}
	}
	class := func(name, expression, resource string) func(*env) {
		return func(e *env) {
			all := e.lists[classesPath].(map[string]any)
			one := resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{
				Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}},
			}}
			if resource != "" {
				one.Spec.ExtendedResourceName = &resource
			}
			all["items"] = append(all["items"].([]any), one)
		}
	}
	byResource := func(p *corev1.Pod) {
		p.Spec.ResourceClaims = nil
		p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}}}}
	}
	const ofGPUs = `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`
	bound := func(change func(*corev1.Pod, *corev1.Node)) func(*env) {
		return func(e *env) {
			n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
			e.podP(func(p *corev1.Pod) {
				byResource(p)
				p.Spec.NodeName, p.Status.Phase = "n1", corev1.PodRunning
				if change != nil {
					change(p, &n)
				}
			})
			class("named", ofGPUs, "nvidia.com/gpu")(e)
			p, _ := e.lists["/api/v1/namespaces/team-a/pods/p"].(corev1.Pod)
			all, _ := e.lists[podsPath].(corev1.PodList)
			e.lists[podsPath] = corev1.PodList{Items: append(all.Items, p)}
			e.lists[nodesPath] = corev1.NodeList{Items: []corev1.Node{n}}
		}
	}
	const noController = "the controller writes it"
	return []state{
		{free, true, nil, "", "fits on n1 now", "", ""},
		{"claims of another namespace have all GPUs", false, nil, "", "team-b", "ClaimPendingLong", ""},
		{"pods of lower priority have all GPUs", false, func(e *env) {
			high, low := int32(1000), int32(0)
			e.podP(func(p *corev1.Pod) { p.Spec.Priority = &high })
			for _, name := range []string{"a", "b"} {
				p := corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Namespace: "team-b", Name: name, UID: "1"}}
				p.Spec.Priority = &low
				e.lists["/api/v1/namespaces/team-b/pods/"+name] = p
			}
		}, "", "its priority is higher than that of team-b/a", "ClaimPendingLong", ""},
		{"the controller is gone", true, pods(plugin), "the API server refuses objects", "note: controller: no pod of the controller exists", "", noController},
		{"the controller is not ready", true, pods(plugin, unready(controller)), "none of 1 pods is ready", "note: controller: none of 1 pods is ready", "", noController},
		{"API servers do not reach the webhook", true, func(e *env) {
			e.webhooks("Fail")
			e.metrics("controller", "gpu_dra_webhook_reachable 0\n")
		}, "the API server reaches the webhook: no", "fits on n1 now", "", ""},
		{"the plugin is gone", true, pods(controller), "no plugin runs here", "note: no plugin of the driver runs on n1, so a pod does not start there", "PluginDown", ""},
		{"the plugin and the slices are gone, claims are left", false, func(e *env) { pods(controller)(e); noSlices(e) }, "no plugin runs here, and the node has no slices", "its plugin or NVIDIA's driver does not run", "PluginDown", ""},
		{"the NVIDIA driver is unloaded", true, func(e *env) {
			noSlices(e)
			e.metrics("plugin", "gpu_dra_nvidia_driver_loaded 0\n")
		}, "publishes no GPU", "0 of 1 node", "", ""},
		{"a GPU is lost, and nothing has it", true, func(e *env) { e.taint("gpu-", "lost") }, "unhealthy: lost", "unhealthy (lost; kubectl gpu doctor says what to do)", "GPULost", ""},
		{"a GPU is lost under a pod", false, func(e *env) { e.taint("gpu-0000-43-00-0", "lost") }, "Claims that have it: team-b/b", "team-b", "GPULost", ""},
		{"an agent has a GPU open", true, func(e *env) {
			e.metrics("plugin", fmt.Sprintf("gpu_dra_nvidia_driver_loaded 1\ngpu_dra_mig_mode_holders{uuid=%q,program=\"nv-hostengine\"} 1\n", e.uuid("gpu-0000-43-00-0")))
		}, "nv-hostengine has the GPU open", "fits on n1 now", "", ""},
		{"a rule taints the GPUs", true, func(e *env) {
			e.rules["mine"] = map[string]any{"metadata": map[string]any{"name": "mine"}, "spec": map[string]any{
				"deviceSelector": map[string]any{"driver": slicetest.Driver}, "taint": map[string]any{"key": "broken", "effect": "NoSchedule"},
			}}
		}, "DeviceTaintRule mine it taints devices with broken:NoSchedule", "the taint broken:NoSchedule", "", ""},
		{"a namespace has admin access", true, func(e *env) {
			e.lists["/api/v1/namespaces"] = corev1.NamespaceList{Items: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "monitoring"}}}}
		}, "namespace monitoring", "fits on n1 now", "", ""},
		{"the GPUs are cordoned", true, cordoned("gpu-0000-1b-00-0", "gpu-0000-43-00-0"), "cordoned by an administrator", "the cordon of the GPU must end (kubectl gpu uncordon n1/gpu-0000-1b-00-0 n1/gpu-0000-43-00-0)", "", ""},
		{"the free GPU is cordoned", false, func(e *env) {
			all := e.lists[claimsPath].(resourceapi.ResourceClaimList)
			all.Items = all.Items[:1]
			e.lists[claimsPath] = all
			cordoned("gpu-0000-43-00-0")(e)
		}, "cordoned by an administrator", "its free ones have device taints that the claim does not tolerate: cordoned by an administrator (kubectl gpu uncordon n1/gpu-0000-43-00-0)", "", ""},
		{"slices of the node are missing", true, func(e *env) { e.partial = 100 }, "slices of the pool are missing", "some of its slices are missing", "", ""},
		{"the GPUs are reserved for a pod of higher priority", true, tainted(wire.ReservedTaint), "", "reserved for a pod of higher priority", "", ""},
		{"a cordon is not followed", true, node(func(n *corev1.Node) {
			n.Annotations = map[string]string{wire.CordonAnnotation(slicetest.Driver, "gpu-0000-43-00-0"): "NoSchedule"}
		}), "the GPU is cordoned, but claims can get", "fits on n1 now", "", ""},
		{"the node does not take pods", true, node(func(n *corev1.Node) { n.Spec.Unschedulable = true }), "the node is cordoned", "cordoned", "", ""},
		{"the pod's node selector matches no node", true, func(e *env) {
			e.podP(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "a"} })
		}, "", "the pod's node selector zone=a does not match", "", ""},
		{"the pod's affinity matches no node", true, func(e *env) {
			e.podP(func(p *corev1.Pod) {
				p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: "In", Values: []string{"a"}}}}},
				}}}
			})
		}, "", "the pod's node affinity does not match", "", ""},
		{"a claim that an ended pod used has a GPU of a cordoned node", true, func(e *env) {
			c := e.want()
			c.Status = claim("team-a", "want", device("n1", "gpu-0000-1b-00-0")).Status
			c.Status.ReservedFor = nil
			c.Status.Allocation.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: "In", Values: []string{"n1"}}},
			}}}
			e.lists[wantPath] = c
			node(func(n *corev1.Node) { n.Spec.Unschedulable = true })(e)
		}, "the node is cordoned", "the nodes of these devices do not take it", "", ""},
		{"the scheduler lacks CPU", true, says("0/1 nodes are available: 1 Insufficient cpu."), "", "1 Insufficient cpu", "", ""},
		{"a volume is not bound", true, says("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."), "", "unbound immediate PersistentVolumeClaims", "", ""},
		{"a quota refuses the claim", true, refused(`resourceclaims "p-gpu-x" is forbidden: exceeded quota: gpus, requested: gpu.nvidia.com.deviceclass.resource.k8s.io/devices=1`), "", "exceeded quota: gpus", "", ""},
		{"a policy or a webhook refuses the claim", true, refused(`admission webhook "policy.example.com" denied the request: no`), "", `admission webhook "policy.example.com" denied the request`, "", ""},
		{"the DeviceClass is missing", true, func(e *env) { e.lists[classesPath] = resourceapi.DeviceClassList{} }, "no DeviceClass selects devices", `DeviceClass "gpu.nvidia.com" does not exist`, "", ""},
		{"no GPU has the MIG profile of the class", true, asks(func(q *resourceapi.ExactDeviceRequest) { q.DeviceClassName = "mig-2g.24gb.nvidia.com" }), "", "no GPU of the cluster has the MIG profile 2g.24gb", "", ""},
		{"a partition of a model without MIG", true, func(e *env) {
			published, err := slicetest.Node("l40s-4", "n1", perNode)
			if err != nil {
				panic(err)
			}
			all := resourceapi.ResourceSliceList{}
			for _, s := range published {
				all.Items = append(all.Items, *s)
			}
			e.lists[slicesPath] = all
			class("mig.nvidia.com", strings.Replace(ofGPUs, `== "gpu"`, `== "mig"`, 1), "")(e)
			asks(func(q *resourceapi.ExactDeviceRequest) { q.DeviceClassName = "mig.nvidia.com" })(e)
		}, "", "no GPU of the cluster has MIG", "", ""},
		{"a typo in an attribute", true, selecting(`device.attributes["gpu.nvidia.com"].productname == "NVIDIA H100 80GB HBM3"`), "", "write productName", "", ""},
		{"an attribute of the wrong domain", true, selecting(`device.attributes["nvidia.com"].productName == "NVIDIA H100 80GB HBM3"`), "", "gpu.nvidia.com", "", ""},
		{"another driver of the claim is missing", true, func(e *env) {
			class("nic", `device.driver == "nic.example.com"`, "")(e)
			c := e.want()
			c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: "nic", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "nic", Count: 1}})
			e.lists[wantPath] = c
		}, "", "the driver nic.example.com publishes no devices in this cluster", "", ""},
		{"no container names the claim", true, func(e *env) {
			e.podP(func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{{Name: "c"}} })
		}, "", "no container names gpu in resources.claims", "", ""},
		{"a device plugin serves the resource", true, func(e *env) {
			e.podP(byResource)
			class("named", ofGPUs, "nvidia.com/gpu")(e)
			node(func(n *corev1.Node) {
				n.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("2")}
			})(e)
		}, "a device plugin", "a device plugin serves nvidia.com/gpu there, not this driver", "", ""},
		{"a device plugin that served the resource is gone", true, func(e *env) {
			e.podP(byResource)
			class("named", ofGPUs, "nvidia.com/gpu")(e)
			node(func(n *corev1.Node) {
				n.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("0")}
			})(e)
		}, "", "fits on n1 now", "", ""},
		{"the pod was bound without a claim for its resource", true, bound(nil), "on its node without nvidia.com/gpu", "on node n1 without devices for nvidia.com/gpu of container c", "", ""},
		{"the pod was bound with a claim for one of two containers", true, bound(func(p *corev1.Pod, _ *corev1.Node) {
			other := p.Spec.Containers[0]
			other.Name = "other"
			p.Spec.Containers = append(p.Spec.Containers, other)
			p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "x", RequestMappings: []corev1.ContainerExtendedResourceRequest{
				{ContainerName: "c", ResourceName: "nvidia.com/gpu", RequestName: "r"},
			}}
		}), "on its node without nvidia.com/gpu", "on node n1 without devices for nvidia.com/gpu of container other", "", ""},
		{"the pod was bound, and a device plugin served it that is gone", true, bound(func(_ *corev1.Pod, n *corev1.Node) {
			n.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("0")}
		}), "a device plugin of its node served nvidia.com/gpu", "a device plugin of node n1 served it, and is gone", "", "the API does not show whether it has one"},
		{"the pod was bound, and a device plugin serves it", true, bound(func(_ *corev1.Pod, n *corev1.Node) {
			n.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("2")}
		}), "a device plugin serves 2 nvidia.com/gpu too", "pod team-a/p is scheduled to node n1.", "", ""},
		{"the template is missing", true, func(e *env) { e.podP(fromTemplate) }, "", "ResourceClaimTemplate one does not exist", "", ""},
		{"a scheduling gate holds the pod", true, func(e *env) {
			e.podP(func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/hold"}} })
		}, "", "scheduling gate example.com/hold", "", "the gate's owner decides"},
		{"Kueue has not admitted the pod", true, func(e *env) {
			e.podP(func(p *corev1.Pod) {
				p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "kueue.x-k8s.io/admission"}}
			})
		}, "", "kueue.x-k8s.io/admission", "", "the gate's owner decides"},
		{"a claim without pods has a GPU", false, func(e *env) {
			all := e.lists[claimsPath].(resourceapi.ResourceClaimList)
			for i := range all.Items {
				all.Items[i].Status.ReservedFor = nil
			}
		}, "no pod uses", "delete it if it is not needed", "", ""},
		{"a Kubernetes whose scheduler has a known fault", true, func(e *env) { e.lists["/version"] = `{"gitVersion":"v1.36.0"}` }, "v1.36.0", "1.36.0", "", ""},
		{"no right to slices", false, func(e *env) { e.forbidden[slicesPath] = true }, "you may not list them", "undecided", "", ""},
		{"no right to nodes", true, func(e *env) { e.forbidden[nodesPath] = true }, "you may not list them", "nodes could not be read", "", ""},
		{"no right to claims of other namespaces", false, func(e *env) {
			e.forbidden[claimsPath] = true
			e.lists["/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims"] = resourceapi.ResourceClaimList{}
		}, "you may not list them", "unless claims that could not be read", "", ""},
		{"no right to pods of other namespaces", true, func(e *env) {
			e.forbidden[podsPath], e.forbidden["/api/v1/namespaces/system/pods"] = true, true
		}, "you may not list them", "whether the driver's plugins and its controller run was not looked at", "", ""},
	}
}

// free is the state without a fault.
const free = "a GPU is free"

const wantPath = "/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims/want"

// want is the claim of the pod in question.
func (e *env) want() resourceapi.ResourceClaim {
	c, _ := e.lists[wantPath].(resourceapi.ResourceClaim)
	return *c.DeepCopy()
}

// first returns the first two lines of doctor that are not ok, the weightiest first, or "ok".
func first(doctor string) string {
	var found []string
	for _, level := range []string{"problem", "warning", "note", "not checked"} {
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

// event is the text of the controller's Event for the answer about the pod.
func event(t *testing.T, e *env, s state) string {
	t.Helper()
	if s.noEvent != "" {
		return "none: " + s.noEvent
	}
	if strings.HasPrefix(s.name, "no right to") {
		return "-" // Rights of people are not the controller's.
	}
	_, out, _ := e.kubectl("why", "p", "-o", "json")
	var list struct{ Items []why.Answer }
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list.Items) != 1 {
		t.Fatalf("%s: %v: %s", s.name, err, out)
	}
	a := list.Items[0]
	a.Notes = slices.DeleteFunc(a.Notes, func(n string) bool {
		return strings.HasPrefix(n, "controller: ") || strings.HasPrefix(n, "no plugin of")
	})
	return podevents.Text(a, nil)
}

// TestDocs_Diagnosis_EachToolNamesTheCause generates docs/reference/diagnosis.md from the answers for simulated clusters.
func TestDocs_Diagnosis_EachToolNamesTheCause(t *testing.T) {
	var b strings.Builder
	b.WriteString("<!-- Generated by make generate from the output of the commands. -->\n\n# States of a cluster, and the answers of the commands\n\n" +
		"Each row is a simulated API server with one node and two GPUs, and a pod that asks for one. `doctor` shows the first two lines " +
		"that are not `ok`, the weightiest first, `ls` the use and health of each GPU, `claims` the states of the claims with GPUs, and `why` the first " +
		"lines about the pod. The page of `kubectl gpu web` has the use and health of `ls`. The Event on the pod comes from the controller, which knows no names of other " +
		"namespaces unless the chart says so. The alert is one of the chart's. " +
		"A dash stands for a command that says nothing about the state. Nothing of this page ran on a real cluster.\n")
	rules, err := os.ReadFile("../../deployments/helm/gpu-dra-driver/monitoring/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var all []coreState
	for _, s := range states() {
		all = append(all, coreState{state: s, object: "Devices, claims and classes"})
	}
	heading := ""
	for _, s := range append(all, coreStates()...) {
		if s.object != heading {
			heading = s.object
			b.WriteString("\n## " + heading + "\n\n| state | `kubectl gpu doctor` | `kubectl gpu ls` | `kubectl gpu claims -A` | `kubectl gpu why p` | Event on the pod | alert |\n" +
				"| --- | --- | --- | --- | --- | --- | --- |\n")
		}
		t.Run(s.object+"/"+s.name, func(t *testing.T) { b.WriteString("| " + strings.Join(s.cells(t, string(rules)), " | ") + " |\n") })
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
	if diff := gocmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("%s has drifted, run make generate (-file +commands):\n%s", diagnosisPage, diff)
	}
}

var (
	anyAge  = regexp.MustCompile(`\b(\d+ (s|min|h|d)|(\d+[ydhms])+)\b`)
	columns = regexp.MustCompile(`\s{2,}`)
)

// cells runs the commands in a state, and returns its row of the table.
func (s coreState) cells(t *testing.T, rules string) []string {
	e := newWhyEnv(t)
	e.lists[ownEventsPath] = corev1.EventList{}
	e.lists[podsPath] = corev1.PodList{Items: []corev1.Pod{driverPod("plugin", "kubelet-plugin", "plugin:1"), driverPod("controller", "controller", "controller:1")}}
	e.metrics("plugin", "gpu_dra_nvidia_driver_loaded 1\n")
	e.metrics("controller", "gpu_dra_webhook_reachable 1\n")
	if s.free {
		e.lists[claimsPath] = resourceapi.ResourceClaimList{}
	}
	if s.change != nil {
		s.change(e)
	}
	_, wholeDoctor, _ := e.kubectl("doctor")
	findings := strings.Join(strings.Fields(wholeDoctor), " ")
	doctor := first(wholeDoctor)
	if s.doctor == "" && s.object == "Devices, claims and classes" && doctor != "ok" || !strings.Contains(findings, s.doctor) {
		t.Errorf("doctor says %q, want %q", wholeDoctor, s.doctor)
	}
	if doctor == "ok" && s.name != free {
		doctor = "-"
	}
	_, said, errOut := e.kubectl("why", "p")
	if !strings.Contains(said, s.why) {
		t.Errorf("why says %q, %q; want %q", said, errOut, s.why)
	}
	lines := strings.SplitN(strings.TrimSpace(said), "\n", 5)
	count := 2
	if len(lines) > 2 && lines[2] == why.CuresHeading {
		count = 4
	}
	_, ls, errOut := e.kubectl("ls", "--no-headers")
	var gpus, claims []string
	for line := range strings.SplitSeq(strings.TrimSpace(ls), "\n") {
		if cells := columns.Split(strings.TrimSpace(line), -1); len(cells) >= 6 {
			gpus = append(gpus, cells[4]+", "+cells[5])
		}
	}
	if len(gpus) == 0 {
		gpus = []string{strings.TrimSpace(errOut)}
	}
	_, listed, errOut := e.kubectl("claims", "-A", "--no-headers")
	for line := range strings.SplitSeq(strings.TrimSpace(listed), "\n") {
		if cells := columns.Split(strings.TrimSpace(line), -1); len(cells) >= 3 {
			claims = append(claims, cells[2])
		}
	}
	if len(claims) == 0 {
		claims = []string{"-"}
	}
	noted := event(t, e, s.state)
	uses, states := strings.Join(gpus, "; "), strings.Join(claims, "; ")
	if !strings.Contains(uses, s.ls) || !strings.Contains(states, s.claims) {
		t.Errorf("ls says %q, want %q; claims says %q, %q; want %q", uses, s.ls, states, errOut, s.claims)
	}
	for _, never := range s.never {
		for tool, text := range map[string]string{"doctor": wholeDoctor, "why": said, "ls": uses, "the Event": noted} {
			if strings.Contains(text, never) {
				t.Errorf("%s says %q, which is false: %s", tool, never, text)
			}
		}
	}
	if s.alert != "" && !strings.Contains(rules, "alert: "+s.alert+"\n") {
		t.Errorf("the chart has no alert %s", s.alert)
	}
	out := []string{s.name, doctor, uses, states, strings.Join(lines[:min(count, len(lines))], " "), noted, cmp.Or(s.alert, "-")}
	for i, c := range out {
		if i > 0 {
			c = anyAge.ReplaceAllString(c, "…")
		}
		out[i] = strings.ReplaceAll(strings.Join(strings.Fields(c), " "), "|", `\|`)
	}
	return out
}
