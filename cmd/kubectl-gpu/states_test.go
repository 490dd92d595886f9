// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/internal/testing/slicetest"
)

// coreState is a state of a core object.
type coreState struct {
	state
	// object is the kind of object, and the heading of its part of the table.
	object string
	// ls and claims must be in the answers of these commands, unless they are empty.
	ls, claims string
	// never has texts that would be false. No command may print them.
	never []string
}

const (
	daemonSetsPath  = "/apis/apps/v1/daemonsets"
	deploymentsPath = "/apis/apps/v1/deployments"
	eventsPath      = "/api/v1/events"
	ownEventsPath   = "/api/v1/namespaces/team-a/events"
	schedulerLease  = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler"
	managerLease    = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-controller-manager"
)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(time.Now().Add(-d)) }

// old makes the pod in question a quarter of an hour old.
func old(e *env) {
	e.podP(func(p *corev1.Pod) { p.CreationTimestamp = ago(15 * time.Minute) })
}

// spoke has the scheduler say a message about the pod in question, with an Event of an age.
func (e *env) spoke(message string, age time.Duration) {
	old(e)
	e.podP(func(p *corev1.Pod) {
		p.CreationTimestamp = ago(age + time.Minute)
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: message, LastTransitionTime: ago(age)}}
	})
	e.lists[ownEventsPath] = corev1.EventList{Items: []corev1.Event{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "e"}, Reason: "FailedScheduling", Type: "Warning", LastTimestamp: ago(age),
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "team-a", Name: "p", UID: "p"}, Message: message,
	}}}
}

// noDevices is the scheduler's message about a pod that lacks devices.
const noDevices = "0/1 nodes are available: 1 cannot allocate all claims. preemption: 0/1 nodes are available: 1 No preemption victims found."

// holds lets a pod of the namespace of the pod in question hold the first GPU, and one of another namespace the second.
func holds(change func(*corev1.Pod)) func(*env) {
	return func(e *env) {
		e.spoke(noDevices, time.Minute)
		held := claim("team-a", "a", device("n1", "gpu-0000-1b-00-0"))
		all := e.lists[claimsPath].(resourceapi.ResourceClaimList)
		all.Items = []resourceapi.ResourceClaim{held, all.Items[1]}
		e.lists[claimsPath] = all
		p := corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{
			Namespace: "team-a", Name: "a", UID: "1", CreationTimestamp: ago(3 * time.Hour),
		}}
		p.Spec.NodeName, p.Status.Phase = "n1", corev1.PodRunning
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("a")}}
		change(&p)
		e.lists["/api/v1/namespaces/team-a/pods/a"] = p
		pods, _ := e.lists[podsPath].(corev1.PodList)
		pods.Items = append(pods.Items, p)
		e.lists[podsPath] = pods
	}
}

func ownedBy(kind, name string) []metav1.OwnerReference {
	version := "apps/v1"
	if kind == "Job" || kind == "CronJob" {
		version = "batch/v1"
	}
	return []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: name, UID: "u", Controller: new(true)}}
}

// object stores an object of namespace team-a by its plural.
func (e *env) object(plural, name string, o any) {
	group := "/apis/apps/v1"
	if strings.HasSuffix(plural, "jobs") {
		group = "/apis/batch/v1"
	}
	e.lists[group+"/namespaces/team-a/"+plural+"/"+name] = o
}

// both runs the changes one after the other.
func both(all ...func(*env)) func(*env) {
	return func(e *env) {
		for _, change := range all {
			change(e)
		}
	}
}

// node1 changes node n1.
func node1(change func(*corev1.Node)) func(*env) {
	return func(e *env) {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
		change(&n)
		e.lists[nodesPath] = corev1.NodeList{Items: []corev1.Node{n}}
	}
}

func unreadyNode(n *corev1.Node) {
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", LastTransitionTime: ago(time.Hour)}}
	n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule}, {Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute}}
}

// driverPods replaces the pods of the driver.
func driverPods(all ...corev1.Pod) func(*env) {
	return func(e *env) {
		e.webhooks("Fail")
		e.lists[podsPath] = corev1.PodList{Items: all}
	}
}

// waitingFor lets the container of a pod of the driver wait with a reason.
func waitingFor(p corev1.Pod, reason, message string) corev1.Pod {
	p.Status.Phase, p.Status.Conditions = corev1.PodPending, nil
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "gpus", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}
	return p
}

func chartLabels(component string) map[string]string {
	return map[string]string{"app.kubernetes.io/name": "gpu-dra-driver", "app.kubernetes.io/component": component}
}

func onlyOnN1(c resourceapi.ResourceClaim, node string) resourceapi.ResourceClaim {
	c.Status.Allocation.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: "In", Values: []string{node}}},
	}}}
	return c
}

// apart gives the pod in question two claims with devices of different nodes, which pods of the given names use too.
func apart(users ...string) func(*env) {
	return func(e *env) {
		e.spoke("0/2 nodes are available: 2 resourceclaim not available on the node.", time.Minute)
		other, err := slicetest.Node("hgx-h100", "n2", perNode)
		if err != nil {
			e.t.Fatal(err)
		}
		all := e.lists[slicesPath].(resourceapi.ResourceSliceList)
		for _, s := range other {
			all.Items = append(all.Items, *s)
		}
		e.lists[slicesPath] = all
		e.lists[nodesPath] = corev1.NodeList{Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, {ObjectMeta: metav1.ObjectMeta{Name: "n2"}}}}
		var claims []resourceapi.ResourceClaim
		for i, name := range []string{"first", "second"} {
			node := []string{"n1", "n2"}[i]
			c := onlyOnN1(claim("team-a", name, device(node, "gpu-0000-1b-00-0")), node)
			c.CreationTimestamp, c.Status.ReservedFor = ago(time.Hour), nil
			if i < len(users) {
				c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: users[i], UID: "2"}}
			}
			claims = append(claims, c)
		}
		e.lists[claimsPath] = resourceapi.ResourceClaimList{Items: claims}
		e.podP(func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "x", ResourceClaimName: new("first")}, {Name: "y", ResourceClaimName: new("second")}}
			pods, _ := e.lists[podsPath].(corev1.PodList)
			pods.Items = append(pods.Items, *p)
			e.lists[podsPath] = pods
		})
	}
}

// otherGPU adds a node n2 with a GPU of another model, which claims have not.
func otherGPU(e *env) {
	other, err := slicetest.Node("t4-1", "n2", 1)
	if err != nil {
		e.t.Fatal(err)
	}
	all := e.lists[slicesPath].(resourceapi.ResourceSliceList)
	for _, s := range other {
		all.Items = append(all.Items, *s)
	}
	e.lists[slicesPath] = all
	nodes := e.lists[nodesPath].(corev1.NodeList)
	nodes.Items = append(nodes.Items, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2", Labels: map[string]string{"kubernetes.io/hostname": "n2"}}})
	e.lists[nodesPath] = nodes
	c := e.want()
	c.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: `device.attributes["gpu.nvidia.com"].productName == "NVIDIA H100 80GB HBM3"`,
	}}}
	e.lists[wantPath] = c
}

func lease(name string, renewed time.Duration) coordinationv1.Lease {
	return coordinationv1.Lease{
		TypeMeta: metav1.TypeMeta{Kind: "Lease", APIVersion: "coordination.k8s.io/v1"}, ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: new("master-1"), LeaseDurationSeconds: new(int32(15)), RenewTime: new(metav1.NewMicroTime(time.Now().Add(-renewed)))},
	}
}

// workloads has lists of the driver's DaemonSet and Deployment, with an Event about pods that the API server refuses.
func workloads(desired, current int32, refusal string) func(*env) {
	return func(e *env) {
		ds := appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "plugins", UID: "ds", Labels: chartLabels("kubelet-plugin")}}
		ds.Spec.Template.Labels = chartLabels("kubelet-plugin")
		ds.Spec.Template.Spec.NodeSelector = map[string]string{"nvidia.com/gpu.present": "true"}
		ds.Status.DesiredNumberScheduled, ds.Status.CurrentNumberScheduled = desired, current
		e.lists[daemonSetsPath] = appsv1.DaemonSetList{TypeMeta: metav1.TypeMeta{Kind: "DaemonSetList", APIVersion: "apps/v1"}, Items: []appsv1.DaemonSet{ds}}
		if refusal != "" {
			e.lists[eventsPath] = corev1.EventList{Items: []corev1.Event{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "e"}, Reason: "FailedCreate", Type: "Warning", LastTimestamp: ago(time.Minute),
				InvolvedObject: corev1.ObjectReference{Kind: "DaemonSet", Namespace: "system", Name: "plugins", UID: "ds"}, Message: "Error creating: " + refusal,
			}}}
		}
	}
}

// coreStates are the states of the core objects that answers are drawn from.
func coreStates() []coreState {
	plugin, controller := driverPod("plugin", "kubelet-plugin", "plugin:1"), driverPod("controller", "controller", "controller:1")
	noSlices := func(e *env) { e.lists[slicesPath] = resourceapi.ResourceSliceList{} }
	restarted := func(p corev1.Pod, reason string, code, restarts int32) corev1.Pod {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "gpus", Ready: true, RestartCount: restarts, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: reason, ExitCode: code, FinishedAt: ago(10 * time.Minute)}},
		}}
		return p
	}
	pending := controller
	pending.Spec.NodeName, pending.Status = "", corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/1 nodes are available: 1 node(s) had untolerated taint(s).",
	}}}
	ending := func(p corev1.Pod) corev1.Pod {
		p.DeletionTimestamp = new(ago(30 * time.Minute))
		return p
	}
	const pod, holder, owner, node, pluginPod, daemonSet, controllerPod, controlPlane = "The pod", "The pod that holds a GPU", "The owner of the pod that holds a GPU",
		"The node", "The plugin's pod", "The plugin's DaemonSet", "The controller", "The control plane"
	deployment := func(e *env) {
		e.podP(func(p *corev1.Pod) {
			p.OwnerReferences, p.Labels = ownedBy("ReplicaSet", "web-6b"), map[string]string{"pod-template-hash": "6b"}
		})
		for _, rs := range []string{"web-5a", "web-6b"} {
			e.object("replicasets", rs, appsv1.ReplicaSet{TypeMeta: metav1.TypeMeta{Kind: "ReplicaSet", APIVersion: "apps/v1"},
				ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: rs, UID: "u", OwnerReferences: ownedBy("Deployment", "web")}})
		}
	}
	older := func(kind, name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.OwnerReferences = ownedBy(kind, name) }
	}
	cron := func(e *env) {
		e.podP(func(p *corev1.Pod) { p.OwnerReferences = ownedBy("Job", "nightly-2") })
		for _, job := range []string{"nightly-1", "nightly-2"} {
			e.object("jobs", job, batchv1.Job{TypeMeta: metav1.TypeMeta{Kind: "Job", APIVersion: "batch/v1"},
				ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: job, UID: "u", OwnerReferences: ownedBy("CronJob", "nightly")}})
		}
	}
	fits := []string{"fits on n1 now"}
	return []coreState{
		{object: pod, state: state{"is young, and its scheduler has not looked at it", true, func(e *env) {
			e.podP(func(p *corev1.Pod) { p.CreationTimestamp = ago(5 * time.Second) })
		}, "", "fits on n1 now", "", ""}},
		{object: pod, state: state{"its scheduler has not looked at it for 15 min", true, old, "", "default-scheduler has not looked at it for 15 min", "", ""}, never: fits},
		{object: pod, state: state{"names another scheduler, which has not looked at it", true, both(old, func(e *env) {
			e.podP(func(p *corev1.Pod) { p.Spec.SchedulerName = "night" })
		}), "", "its scheduler night has not looked at it for 15 min", "", ""}, never: fits},
		{object: pod, state: state{"its scheduler spoke a minute ago, and a GPU is free now", true, func(e *env) { e.spoke(noDevices, time.Minute) }, "", "fits on n1 now", "", ""}},
		{object: pod, state: state{"its scheduler last spoke three hours ago", true, func(e *env) { e.spoke(noDevices, 3*time.Hour) }, "", "the last word of its scheduler default-scheduler about it is 3 h old", "", ""}, never: fits},
		{object: pod, state: state{"its scheduler lacks CPU, by an old Event", true, func(e *env) {
			e.spoke("0/1 nodes are available: 1 Insufficient cpu.", 3*time.Hour)
		}, "", "the scheduler reported 3 h ago: 1 Insufficient cpu", "", ""}, never: append(fits, "the scheduler also reports")},
		{object: pod, state: state{"has two claims of different nodes", true, apart(), "the waiting pod p needs", "its claims have devices of different nodes", "", ""},
			never: []string{"nothing is left to allocate", "no pod uses them", "Delete the claim"}},
		{object: pod, state: state{"has two claims of different nodes, which other pods use", true, apart("u", "v"), "", "no node can run it while other pods use claims of several nodes", "", ""},
			never: []string{"nothing is left to allocate", "frees"}},
		{object: pod, state: state{"has a claim whose node is gone", true, both(apart(), func(e *env) {
			e.lists[nodesPath] = corev1.NodeList{Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}}}
		}), "", "the node with the devices of claim team-a/first does not exist", "", ""}, never: []string{"different nodes"}},
		{object: pod, state: state{"was bound by spec.nodeName, and nothing allocated its claim", true, func(e *env) {
			old(e)
			c := e.want()
			c.CreationTimestamp = ago(15 * time.Minute)
			e.lists[claimsPath] = resourceapi.ResourceClaimList{Items: []resourceapi.ResourceClaim{c}}
			e.podP(func(p *corev1.Pod) {
				p.Spec.NodeName, p.Status.Phase = "n1", corev1.PodPending
				pods, _ := e.lists[podsPath].(corev1.PodList)
				pods.Items = append(pods.Items, *p)
				e.lists[podsPath] = pods
			})
		}, "claim want", "on node n1 without devices for claim want", "", ""}, never: []string{"all is well", "is scheduled to node n1."}},
		{object: pod, state: state{"its claim was not made for 15 min", true, both(old, func(e *env) {
			e.podP(fromTemplate)
			e.lists["/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaimtemplates/one"] = resourceapi.ResourceClaimTemplate{
				TypeMeta:   metav1.TypeMeta{Kind: "ResourceClaimTemplate", APIVersion: "resource.k8s.io/v1"},
				ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "one"}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: e.want().Spec},
			}
		}), "", "kube-controller-manager has not made the claim of template one for 15 min", "", ""}, never: fits},
		{object: pod, state: state{"its claim was refused two hours ago", true, func(e *env) {
			refusedClaim(e, `admission webhook "policy.example.com" denied the request: no`, 2*time.Hour)
		}, "", "kube-controller-manager has not made the claim of template one for 3 h; its last attempt was 2 h ago", "", ""}, never: fits},
		{object: pod, state: state{"is being deleted", true, func(e *env) {
			e.podP(func(p *corev1.Pod) { p.DeletionTimestamp = new(ago(time.Minute)) })
		}, "", "is being deleted", "", ""}},
		{object: pod, state: state{"has ended", true, func(e *env) { e.podP(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }) }, "", "has ended (Failed)", "", ""}},

		{object: holder, state: state{"has been terminating for 30 minutes, by a finalizer", false, holds(func(p *corev1.Pod) {
			p.DeletionTimestamp, p.Finalizers = new(ago(30*time.Minute)), []string{"example.com/backup"}
		}), "has been terminating for 30", "pod a has been terminating for 30 min: its finalizer example.com/backup", "", ""},
			claims: "ending", never: []string{"all is well", "pod a, 3 h) must end (wait until it ends)"}},
		{object: holder, state: state{"has been terminating for 30 minutes on a dead node", false, both(node1(unreadyNode), holds(func(p *corev1.Pod) {
			p.DeletionTimestamp = new(ago(30 * time.Minute))
		})), "its node n1 is not ready", "node.kubernetes.io/unreachable", "", ""}, claims: "ending", ls: "node not ready", never: []string{"all is well", "free, ok"}},
		{object: holder, state: state{"does not exist any more", false, both(holds(func(*corev1.Pod) {}), func(e *env) {
			delete(e.lists, "/api/v1/namespaces/team-a/pods/a")
		}), "", "pod a does not exist any more: kube-controller-manager releases its claim", "", ""}},
		{object: holder, state: state{"has ended", false, holds(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), "", "pod a has ended: kube-controller-manager releases its claim", "", ""}},
		{object: holder, state: state{"runs, without an owner", false, holds(func(*corev1.Pod) {}), "", "claim team-a/a (pod a", "", ""}},
		{object: holder, state: state{"may not be read", false, both(holds(func(*corev1.Pod) {}), func(e *env) {
			e.forbidden["/api/v1/namespaces/team-a/pods/a"] = true
		}), "", "pod a could not be read", "", ""}},
		{object: holder, state: state{"leaves a claim that a waiting pod names", false, holds(func(*corev1.Pod) {}), "", "team-a/a", "", ""}},

		{object: owner, state: state{"is the Deployment of the pod, whose update needs a spare GPU", false, both(holds(func(p *corev1.Pod) {
			p.OwnerReferences, p.Labels = ownedBy("ReplicaSet", "web-5a"), map[string]string{"pod-template-hash": "5a"}
		}), deployment), "", "an older pod of Deployment web", "", ""}, never: []string{"(pod a) must end (wait until it ends)"}},
		{object: owner, state: state{"is another Deployment", false, both(holds(older("ReplicaSet", "db-1c")), func(e *env) {
			e.object("replicasets", "db-1c", appsv1.ReplicaSet{TypeMeta: metav1.TypeMeta{Kind: "ReplicaSet", APIVersion: "apps/v1"},
				ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "db-1c", UID: "u", OwnerReferences: ownedBy("Deployment", "db")}})
		}), "", "Deployment db keeps pod a running: scale it down", "", ""}, never: []string{"(pod a) must end (wait until it ends)"}},
		{object: owner, state: state{"may not be read", false, both(holds(older("ReplicaSet", "db-1c")), func(e *env) {
			e.forbidden["/apis/apps/v1/namespaces/team-a/replicasets/db-1c"] = true
		}), "", "ReplicaSet db-1c keeps pod a running", "", ""}},
		{object: owner, state: state{"is a StatefulSet", false, holds(older("StatefulSet", "db")), "", "StatefulSet db keeps pod a running: scale it down", "", ""}},
		{object: owner, state: state{"is a DaemonSet", false, holds(older("DaemonSet", "agent")), "", "DaemonSet agent keeps pod a running", "", ""}},
		{object: owner, state: state{"is another Job", false, both(holds(older("Job", "train")), func(e *env) {
			e.object("jobs", "train", batchv1.Job{TypeMeta: metav1.TypeMeta{Kind: "Job", APIVersion: "batch/v1"}, ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "train", UID: "u"}})
		}), "", "wait until it ends", "", ""}},
		{object: owner, state: state{"is a job of another project", false, holds(func(p *corev1.Pod) {
			older("PyTorchJob", "train")(p)
			p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
		}), "", "wait until it ends", "", ""}, never: []string{"scale it down"}},
		{object: owner, state: state{"is the CronJob of the pod", false, both(holds(older("Job", "nightly-1")), cron), "", "an earlier run of CronJob nightly", "", ""}},

		{object: node, state: state{"is cordoned", true, node1(func(n *corev1.Node) { n.Spec.Unschedulable = true }), "the node is cordoned", "kubectl uncordon n1", "", ""},
			ls: "node cordoned", never: []string{"free, ok", "all is well"}},
		{object: node, state: state{"is not ready", true, node1(unreadyNode), "the node is not ready", "node n1 must become ready", "", ""}, ls: "node not ready", never: []string{"free, ok"}},
		{object: node, state: state{"has a taint that the pod does not tolerate", true, node1(func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "dedicated", Value: "ml", Effect: corev1.TaintEffectNoSchedule}}
		}), "", "the pod must tolerate dedicated=ml:NoSchedule", "", ""}},
		{object: node, state: state{"has the only GPU that fits, and a taint", true, both(node1(func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "dedicated", Value: "ml", Effect: corev1.TaintEffectNoSchedule}}
		}), otherGPU), "", "the pod must tolerate dedicated=ml:NoSchedule; at once it fits on n1", "", ""},
			never: []string{"no device of the cluster"}},
		{object: node, state: state{"has the only GPU that fits, and is cordoned", true, both(node1(func(n *corev1.Node) { n.Spec.Unschedulable = true }), otherGPU),
			"the node is cordoned", "kubectl uncordon n1", "", ""}, never: []string{"no device of the cluster"}},
		{object: node, state: state{"has the only GPU that fits, and the pod selects another", true, both(node1(func(*corev1.Node) {}), otherGPU, func(e *env) {
			e.podP(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": "n2"} })
		}), "", "the pod's node selector kubernetes.io/hostname=n2 must go; at once it fits on n1", "", ""}, never: []string{"no device of the cluster"}},
		{object: node, state: state{"does not exist", true, func(e *env) { e.lists[nodesPath] = corev1.NodeList{} }, "slices name a node that does not exist", "0 of 0 nodes", "", ""}},

		{object: pluginPod, state: state{"its image cannot be pulled", true, both(noSlices, driverPods(waitingFor(plugin, "ImagePullBackOff", `Back-off pulling image "plugin:1"`), controller)),
			`ImagePullBackOff: Back-off pulling image "plugin:1"`, "0 of 1 node", "", ""}, never: []string{"see its log", "See its log"}},
		{object: pluginPod, state: state{"its container cannot be created", true, both(noSlices, driverPods(waitingFor(plugin, "CreateContainerConfigError", `configmap "x" not found`), controller)),
			`CreateContainerConfigError: configmap "x" not found`, "0 of 1 node", "", ""}, never: []string{"see its log", "See its log"}},
		{object: pluginPod, state: state{"it crashes again and again", true, driverPods(func() corev1.Pod {
			p := restarted(plugin, "Error", 1, 57)
			p.Status.Conditions, p.Status.ContainerStatuses[0].Ready = nil, false
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 5m0s"}}
			return p
		}(), controller), "57 restarts, the last after Error (exit code 1)", "fits on n1 now", "", ""}},
		{object: pluginPod, state: state{"it was killed 57 times for its memory, and is ready", true, driverPods(restarted(plugin, "OOMKilled", 137, 57), controller),
			"57 restarts, the last after OOMKilled (exit code 137)", "fits on n1 now", "", ""}, never: []string{"all is well"}},
		{object: pluginPod, state: state{"it has been terminating for 30 minutes", true, driverPods(ending(plugin), controller), "has been terminating for 3", "fits on n1 now", "", ""}},
		{object: pluginPod, state: state{"has never run, and a claim has a GPU of its node", false, both(noSlices, driverPods(waitingFor(plugin, "ImagePullBackOff", "x"), controller)),
			"ImagePullBackOff: x", "its plugin or NVIDIA's driver does not run", "", ""}, never: []string{"another claim can get the same GPU", "Another claim can get the same GPU"}},

		{object: daemonSet, state: state{"no node matches its selector", true, both(noSlices, driverPods(controller), workloads(0, 0, "")),
			"no node matches its node selector nvidia.com/gpu.present=true", "0 of 1 node", "", ""}, never: []string{"see the findings"}},
		{object: daemonSet, state: state{"Pod Security refuses its pods", true, both(noSlices, driverPods(controller), workloads(1, 0, `pods "plugins-x" is forbidden: violates PodSecurity "restricted:latest"`)),
			"violates PodSecurity", "0 of 1 node", "", ""}, never: []string{"see the findings"}},
		{object: daemonSet, state: state{"may not be read", true, both(noSlices, driverPods(controller), func(e *env) { e.forbidden[daemonSetsPath] = true }),
			"", "0 of 1 node", "", ""}},

		{object: controllerPod, state: state{"no node takes it", true, driverPods(plugin, pending), "1 node(s) had untolerated taint(s)", "fits on n1 now", "", ""}, never: []string{"and log"}},
		{object: controllerPod, state: state{"its image cannot be pulled", true, driverPods(plugin, waitingFor(controller, "ErrImagePull", "not found")), "ErrImagePull: not found", "fits on n1 now", "", ""}},
		{object: controllerPod, state: state{"its pods are refused", true, both(driverPods(plugin), func(e *env) {
			d := appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "controller", UID: "d", Labels: chartLabels("controller")}}
			d.Spec.Template.Labels = chartLabels("controller")
			d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: "exceeded quota: cpu"}}
			e.lists[deploymentsPath] = appsv1.DeploymentList{TypeMeta: metav1.TypeMeta{Kind: "DeploymentList", APIVersion: "apps/v1"}, Items: []appsv1.Deployment{d}}
		}), "exceeded quota: cpu", "fits on n1 now", "", ""}},

		{object: controlPlane, state: state{"kube-scheduler does not renew its Lease", true, both(old, func(e *env) { e.lists[schedulerLease] = lease("kube-scheduler", 30*time.Minute) }),
			"kube-scheduler has not renewed its Lease for 30", "default-scheduler has not looked at it for 15 min", "", ""}, never: append(fits, "all is well")},
		{object: controlPlane, state: state{"kube-controller-manager does not renew its Lease", true, func(e *env) { e.lists[managerLease] = lease("kube-controller-manager", 30*time.Minute) },
			"kube-controller-manager has not renewed its Lease for 30", "fits on n1 now", "", ""}, never: []string{"all is well"}},
		{object: controlPlane, state: state{"its Leases may not be read", true, func(e *env) { e.forbidden[schedulerLease], e.forbidden[managerLease] = true, true },
			"whether kube-scheduler", "fits on n1 now", "", ""}, never: []string{"all is well"}},
	}
}

// refusedClaim has the API server refuse the claim of the pod in question, an hour after its creation.
func refusedClaim(e *env, message string, age time.Duration) {
	e.podP(fromTemplate)
	e.podP(func(p *corev1.Pod) { p.CreationTimestamp = ago(age + time.Hour) })
	e.lists["/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaimtemplates/one"] = resourceapi.ResourceClaimTemplate{
		TypeMeta:   metav1.TypeMeta{Kind: "ResourceClaimTemplate", APIVersion: "resource.k8s.io/v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "one"}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: e.want().Spec},
	}
	e.lists["/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims"] = resourceapi.ResourceClaimList{}
	e.lists[ownEventsPath] = corev1.EventList{Items: []corev1.Event{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "e"}, Reason: "FailedResourceClaimCreation", Type: "Warning", LastTimestamp: ago(age),
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "team-a", Name: "p", UID: "p"}, Message: "PodResourceClaim gpu: failed to create ResourceClaim: " + message,
	}}}
}
