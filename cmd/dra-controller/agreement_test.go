// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	apiversion "k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/internal/testing/whytest"
	"gpu-dra-driver/pkg/cluster/budget"
	"gpu-dra-driver/pkg/cluster/controller"
	"gpu-dra-driver/pkg/cluster/demand"
	"gpu-dra-driver/pkg/cluster/pack"
	"gpu-dra-driver/pkg/cluster/podevents"
	"gpu-dra-driver/pkg/cluster/preempt"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/waiting"
	"gpu-dra-driver/pkg/cluster/why"
	"gpu-dra-driver/pkg/gpu"
	wiredemand "gpu-dra-driver/pkg/wire/demand"
)

// The names of a random cluster. Each node has two GPUs, of which a pod of low priority holds one. A pod of two
// partitions with all memory waits for it, and a pod of one partition fits.
const (
	driver   = slicetest.Driver
	whole    = "7g.80gb"
	ofWhole  = "mig-7g.80gb.nvidia.com"
	ofNIC    = "nic.example.com"
	waiter   = "waiter"
	implicit = corev1.ResourceName(resourceapi.ResourceDeviceClassPrefix)
	serverIs = "v1.37.1"
)

// asked is a random pod, with the cluster that it waits in. traits name what is particular about it.
type asked struct {
	*whytest.Fleet
	pod    *corev1.Pod
	pods   []*corev1.Pod
	traits map[string]bool
	// left are the partitions that the pod may still ask for: a node has two.
	left int64
}

// names are the traits, sorted.
func (a *asked) names() []string { return slices.Sorted(maps.Keys(a.traits)) }

// take returns the number of partitions of one more request; 0 if none is left.
func (a *asked) take(r *rand.Rand) int64 {
	n := min(1+r.Int64N(2), a.left)
	a.left -= n
	return n
}

// chance adds a trait with a probability of one to n.
func (a *asked) chance(r *rand.Rand, n int, trait string, change func()) {
	if r.IntN(n) == 0 {
		a.traits[trait] = true
		change()
	}
}

func pick[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

// randomCluster returns three nodes with different labels, taints, cordons and device plugins, and classes.
func randomCluster(t testing.TB, r *rand.Rand, now time.Time) *asked {
	t.Helper()
	a := &asked{Fleet: whytest.New(), traits: map[string]bool{}, left: 2}
	class := func(name, expression, resource string) {
		c := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{Selectors: whytest.Selectors(expression)}}
		if resource != "" {
			c.Spec.ExtendedResourceName = &resource
		}
		a.Classes = append(a.Classes, c)
	}
	class(ofWhole, `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "mig" && `+
		`device.attributes["gpu.nvidia.com"].profile == "7g.80gb"`, "nvidia.com/mig-7g.80gb")
	class("kubernetes-io", `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "mig" && `+
		`device.attributes["gpu.nvidia.com"].profile == "7g.80gb"`, "gpu.kubernetes.io/mig")
	class(ofNIC, `device.driver == "nic.example.com"`, "example.com/nic")
	a.ServerVersion = serverIs
	for _, name := range []string{"a", "b", "c"} {
		n, err := a.Add(name, "hgx-h100", 2)
		if err != nil {
			t.Fatal(err)
		}
		n.Labels["zone"] = pick(r, "x", "y")
		n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("32"), "pods": resource.MustParse("110")}
		a.chance(r, 5, "taint", func() {
			n.Spec.Taints = []corev1.Taint{{Key: "team", Value: "b", Effect: pick(r, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute, corev1.TaintEffectPreferNoSchedule)}}
		})
		a.chance(r, 8, "cordon", func() { n.Spec.Unschedulable = true })
		a.chance(r, 5, "device plugin", func() {
			n.Status.Allocatable["nvidia.com/mig-7g.80gb"] = resource.MustParse(pick(r, "0", "2"))
		})
		for _, s := range a.Slices {
			for i := range s.Spec.Devices { // Nodes with shares of GPUs publish partitions at no cost, so they all serve.
				s.Spec.Devices[i].AllowMultipleAllocations = nil
				for name, c := range s.Spec.Devices[i].Capacity {
					s.Spec.Devices[i].Capacity[name] = resourceapi.DeviceCapacity{Value: c.Value}
				}
			}
		}
		victim := whytest.Claim("victim-"+name, whytest.GPUs, 1)
		if !a.Start(victim, name) {
			t.Fatalf("node %s has no GPU", name)
		}
		low := whytest.Pod("victim-"+name, victim)
		low.Spec.NodeName, low.Spec.Priority, low.Status.Phase = name, new(int32(0)), corev1.PodRunning
		a.pods = append(a.pods, low)
		a.Slices = append(a.Slices, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "nic-" + name},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: ofNIC, NodeName: &name, Pool: resourceapi.ResourcePool{Name: "nic-" + name, ResourceSliceCount: 1},
				Devices: []resourceapi.Device{{Name: "nic-0"}, {Name: "nic-1"}, {Name: "nic-2"}, {Name: "nic-3"}},
			},
		})
	}
	a.Templates = append(a.Templates, &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: whytest.Namespace, Name: "nics"},
		Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: whytest.Claim("x", ofNIC, 1).Spec},
	})
	a.pod = a.randomPod(r, now)
	a.pods = append(a.pods, a.pod)
	return a
}

// randomPod returns a pod that asks for partitions or network cards in one or two ways, with the claims of it.
func (a *asked) randomPod(r *rand.Rand, now time.Time) *corev1.Pod {
	p := whytest.Pod(waiter)
	p.Spec.SchedulerName, p.Status.Phase = corev1.DefaultSchedulerName, corev1.PodPending
	p.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour))
	p.Spec.Containers = []corev1.Container{{Name: "c"}}
	for range 1 + r.IntN(2) {
		if r.IntN(2) == 0 {
			a.claim(r, p)
		} else {
			a.resource(r, p)
		}
	}
	a.scheduled(r, p, now)
	a.place(r, p)
	a.state(r, p, now)
	return p
}

// claim adds a claim in one of the states of claims.
func (a *asked) claim(r *rand.Rand, p *corev1.Pod) {
	name := fmt.Sprintf("gpu-%d", len(p.Spec.ResourceClaims))
	c := whytest.Claim(waiter+"-"+name+"-x7k2p", ofNIC, 1)
	if n := a.take(r); n > 0 && r.IntN(4) > 0 {
		c.Spec = whytest.Claim("x", ofWhole, n).Spec
	}
	ref := corev1.PodResourceClaim{Name: name, ResourceClaimName: &c.Name}
	p.Spec.Containers[0].Resources.Claims = append(p.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: name})
	template := func() {
		ref.ResourceClaimName, ref.ResourceClaimTemplateName = nil, new("nics")
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID, Controller: new(true)}}
	}
	made := func() {
		p.Status.ResourceClaimStatuses = append(p.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{Name: name, ResourceClaimName: &c.Name})
		a.Claims = append(a.Claims, c)
	}
	allocated := func() {
		// A network card: GPUs that it held would be missing for the others.
		node := pick(r, "a", "b", "c")
		c.Spec = whytest.Claim("x", ofNIC, 1).Spec
		if !a.Start(c, node) {
			panic("no network card is free")
		}
		c.Status.ReservedFor = nil
	}
	switch r.IntN(14) {
	case 0:
		a.traits["claim is not made"] = true
		template()
	case 1:
		a.traits["template is missing"] = true
		template()
		ref.ResourceClaimTemplateName = new("none")
	case 2:
		a.traits["claim is missing"] = true
	case 3:
		a.traits["claim of another pod"] = true
		template()
		c.OwnerReferences[0].UID = "another"
		made()
	case 4:
		a.traits["claim is not needed"] = true
		template()
		p.Status.ResourceClaimStatuses = append(p.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{Name: name})
	case 5:
		a.traits["claim is being deleted"] = true
		c.DeletionTimestamp, c.Finalizers = &metav1.Time{Time: p.CreationTimestamp.Time}, []string{"resource.kubernetes.io/delete-protection"}
		a.Claims = append(a.Claims, c)
	case 6, 7:
		a.traits["claim is allocated"] = true
		allocated()
	case 8:
		a.traits["own claim is allocated"] = true
		template()
		allocated()
		p.Status.ResourceClaimStatuses = append(p.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{Name: name, ResourceClaimName: &c.Name})
	case 9, 10:
		a.Claims = append(a.Claims, c)
	default:
		template()
		made()
	}
	p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, ref)
}

// resource has containers ask for a resource.
func (a *asked) resource(r *rand.Rand, p *corev1.Pod) {
	name, n := corev1.ResourceName("example.com/nic"), a.take(r)
	if n > 0 {
		name = pick[corev1.ResourceName](r, "nvidia.com/mig-7g.80gb", "nvidia.com/mig-7g.80gb", "nvidia.com/mig-7g.80gb", implicit+ofWhole, implicit+ofWhole,
			"gpu.kubernetes.io/mig", implicit+"none.nvidia.com", "nvidia.com/none", "example.com/nic", "example.com/none", "hugepages-2Mi")
	}
	add := func(to *[]corev1.Container, kind string, n int64, change ...func(*corev1.Container)) {
		list := corev1.ResourceList{name: *resource.NewQuantity(n, resource.DecimalSI)}
		c := corev1.Container{Name: fmt.Sprint(kind, len(*to)), Resources: corev1.ResourceRequirements{Limits: list, Requests: list}}
		for _, f := range change {
			f(&c)
		}
		*to = append(*to, c)
	}
	sidecar := func(c *corev1.Container) { c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways) }
	switch of := r.IntN(6); {
	case of == 0:
		a.traits["init container"] = true
		add(&p.Spec.InitContainers, "init-", max(n, 1))
	case of == 1 && n > 1:
		a.traits["sidecar before an init container"] = true
		add(&p.Spec.InitContainers, "sidecar-", 1, sidecar)
		add(&p.Spec.InitContainers, "init-", 1)
	case of == 2:
		a.traits["none of a resource"] = true
		add(&p.Spec.Containers, "none-", 0)
	default:
		add(&p.Spec.Containers, "more-", max(n, 1))
	}
	// The scheduler makes a claim only for resources that a class serves.
	served := !a.traits["none of a resource"] && (name == "nvidia.com/mig-7g.80gb" || name == implicit+ofWhole)
	if p.Status.ExtendedResourceClaimStatus == nil && served {
		a.chance(r, 8, "claim of resources", func() {
			c := whytest.Claim(waiter+"-extended-resources-x", ofWhole, 1)
			p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: c.Name}
			switch r.IntN(3) {
			case 0:
				c.Spec = whytest.Claim("x", ofNIC, 1).Spec
				a.Start(c, pick(r, "a", "b", "c"))
				c.Status.ReservedFor = nil
			case 1:
				a.Claims = append(a.Claims, c)
			}
		})
	}
}

// scheduled adds what the scheduler said.
func (a *asked) scheduled(r *rand.Rand, p *corev1.Pod, now time.Time) {
	reason := pick(r, corev1.PodReasonUnschedulable, corev1.PodReasonUnschedulable, corev1.PodReasonUnschedulable, corev1.PodReasonUnschedulable,
		corev1.PodReasonSchedulerError, corev1.PodReasonSchedulingGated, "Other", "")
	if reason == "" {
		a.traits["the scheduler has not tried"] = true
		return
	}
	condition := corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason, LastTransitionTime: metav1.NewTime(now.Add(-pick(r, time.Second, 30*time.Minute))),
		Message: pick(r, "", "0/3 nodes are available: 3 cannot allocate all claims.", "0/3 nodes are available: 1 Insufficient cpu, 2 cannot allocate all claims."),
	}
	if condition.Message == "" {
		a.traits["the scheduler names no devices"] = true
	}
	if reason == corev1.PodReasonSchedulingGated {
		a.traits["the scheduler has not tried"] = true
	} else if reason != corev1.PodReasonUnschedulable {
		a.traits["the scheduler fails"] = true
	}
	p.Status.Conditions = append(p.Status.Conditions, condition)
}

// place adds what decides about nodes.
func (a *asked) place(r *rand.Rand, p *corev1.Pod) {
	zone := corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{pick(r, "x", "y", "z")}}},
	}}}
	a.chance(r, 5, "node selector", func() { p.Spec.NodeSelector = map[string]string{"zone": pick(r, "x", "x", "y", "y", "z")} })
	a.chance(r, 5, "affinity", func() {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &zone}}
	})
	a.chance(r, 3, "toleration", func() {
		p.Spec.Tolerations = []corev1.Toleration{{Key: pick(r, "team", corev1.TaintNodeUnschedulable), Operator: corev1.TolerationOpExists}}
	})
	a.chance(r, 20, "unjudged", func() {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}}
	})
	a.chance(r, 20, "another scheduler", func() { p.Spec.SchedulerName = "volcano" })
}

// state adds the priority of the pod and the state of its life.
func (a *asked) state(r *rand.Rand, p *corev1.Pod, now time.Time) {
	p.Spec.Priority = new(pick[int32](r, 10, 10, 10, 10, 10, 10, 0, -5))
	a.chance(r, 20, "preempts never", func() { p.Spec.PreemptionPolicy = new(corev1.PreemptNever) })
	a.chance(r, 20, "PodGroup", func() { p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("group")} })
	a.chance(r, 20, "Kueue", func() { p.Labels = map[string]string{"kueue.x-k8s.io/queue-name": "q"} })
	a.chance(r, 20, "nominated", func() { p.Status.NominatedNodeName = pick(r, "a", "b", "c") })
	switch r.IntN(24) {
	case 0:
		a.traits["bound"] = true
		p.Spec.NodeName = pick(r, "a", "b", "c")
	case 1:
		a.traits["deleted"] = true
		p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: now}, []string{"example.com/slow"}
	case 2:
		a.traits["ended"] = true
		p.Status.Phase = pick(r, corev1.PodFailed, corev1.PodSucceeded)
	case 3:
		a.traits["gated"] = true
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/gate"}}
	}
}

// done has the acts of the parts of a running controller.
type done struct {
	// event is the text of the Event on the pod, and eventAt its time. evicted is the node whose pod was evicted first.
	event, evicted     string
	eventAt, evictedAt time.Time
	// serving are the nodes that publish partitions; nil if none is asked for. grows means that more should.
	serving []string
	grows   bool
	// charge is the cost by the budgets of the pod and its claims, and needed that of the claims which why knows.
	charge, needed budget.Charge
}

// live runs the controller with all its parts for a minute.
func (a *asked) live(t *testing.T) (out done) {
	client := fake.NewClientset()
	put := func(o runtime.Object) {
		if err := client.Tracker().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range a.Nodes {
		put(o.DeepCopy())
	}
	for _, o := range a.Slices {
		if o.Spec.Driver == driver { // The parts read no slices of others.
			put(o.DeepCopy())
		}
	}
	for _, o := range a.Classes {
		put(o.DeepCopy())
	}
	for _, o := range a.Claims {
		put(o.DeepCopy())
	}
	for _, o := range a.Templates {
		put(o.DeepCopy())
	}
	for _, o := range a.pods {
		put(o.DeepCopy())
	}
	put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "published", ResourceVersion: "1"}})
	client.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &apiversion.Info{GitVersion: serverIs}
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	client.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) { // The fake one selects all.
		found, err := client.Tracker().List(pods, corev1.SchemeGroupVersion.WithKind("Pod"), "")
		list, ok := found.(*corev1.PodList)
		if err != nil || !ok {
			return true, nil, err
		}
		selector := action.(clienttesting.ListAction).GetListRestrictions().Fields
		list.Items = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
			return !selector.Matches(fields.Set{"spec.nodeName": p.Spec.NodeName, "status.phase": string(p.Status.Phase)})
		})
		return true, list, nil
	})
	var mu sync.Mutex
	leaves := func(node string) {
		mu.Lock()
		defer mu.Unlock()
		if out.evicted == "" {
			out.evicted, out.evictedAt = node, time.Now()
		}
	}
	client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		eviction := action.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
		if len(eviction.DeleteOptions.DryRun) == 0 {
			leaves(strings.TrimPrefix(eviction.Name, "victim-"))
		}
		return true, nil, nil
	})
	client.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		leaves(action.(clienttesting.PatchAction).GetName()) // Its GPUs are reserved before pods leave.
		return false, nil, nil
	})
	kinds := map[schema.GroupVersionResource]string{}
	for _, v := range read.RuleVersions {
		kinds[read.RuleResource(v)] = "DeviceTaintRuleList"
	}
	rules := read.NewRules(dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds))
	events := record.NewFakeRecorder(100)
	control := controller.New(driver, client, controller.Options{
		OnDemand: true, Auto: []gpu.Kind{gpu.KindGroup, gpu.KindMonitor},
		Waiting: true, Preemption: true,
		Events: events, Grace: time.Hour,
	})
	keeper := demand.New(client, control, demand.Options{
		Driver: driver, ConfigMap: "published", Namespace: "ns", MaxServingNodes: 1, SharesOnDemand: true, Grace: time.Hour, Events: events,
	})
	parts := []func(context.Context) error{
		keeper.Run, control.Observe, control.Lead, podevents.New(client, rules, control, podevents.Options{Driver: driver}).Run,
		preempt.New(client, rules, control, events, preempt.Options{Driver: driver}).Run,
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, part := range parts {
		wg.Go(func() {
			if err := part(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	found, err := client.CoreV1().Events("").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range found.Items {
		if e.Reason == why.EventReason && e.InvolvedObject.Name == waiter {
			out.event, out.eventAt = e.Message, e.FirstTimestamp.Time
		}
	}
	written, err := client.CoreV1().ConfigMaps("ns").Get(ctx, "published", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	state, err := wiredemand.Decode(written.Data)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := state.Since[whole]; ok {
		out.serving = append([]string{}, state.Serving[whole]...)
	}
	for len(events.Events) > 0 {
		out.grows = out.grows || strings.Contains(<-events.Events, "ServingNodesLimited")
	}
	out.charge, out.needed = a.charges(t, control)
	cancel()
	wg.Wait()
	return out
}

// charges returns the cost of the pod by the budgets, and of the claims that the allocator is asked for.
func (a *asked) charges(t *testing.T, control *controller.Controller) (charge, needed budget.Charge) {
	t.Helper()
	view := control.ClusterView()
	counter := budget.NewCounter(driver, view.Asker, view.Pools())
	charge, err := counter.Pod(t.Context(), a.pod.Spec)
	if err != nil {
		t.Fatal(err)
	}
	alone := a.pod.DeepCopy()
	alone.Spec.ResourceClaims, alone.Status.ExtendedResourceClaimStatus = nil, nil
	for _, claim := range a.Needs(why.Subject{Pod: alone}, time.Now()).Waiting() {
		one, err := counter.Largest(t.Context(), claim.Spec.Devices)
		if err != nil {
			t.Fatal(err)
		}
		needed = needed.Plus(one)
	}
	return charge, needed
}

// known is the answer of why, and the goal and the answers of pack.
type known struct {
	why.Answer
	// nodes are those on which the pod may run by all but its devices. asks means that its devices are to be allocated.
	nodes  []string
	asks   bool
	goal   pack.Goal
	plan   pack.Plan
	victim pack.Preemption
}

func (a *asked) know(t *testing.T) (out known) {
	t.Helper()
	packed, err := whytest.Pack(a.Slices)
	if err != nil {
		t.Fatal(err)
	}
	c := &pack.Cluster{Cluster: a.Cluster, Pods: a.pods}
	c.States = read.States{read.Pods: nil}
	c.Slices = packed
	subject := why.Subject{Pod: a.pod}
	o := why.Options{Driver: driver, Brief: true, Now: time.Now(), Reader: whytest.Namespace}
	out.Answer = why.Ask(t.Context(), &c.Cluster, subject, o)
	holders := map[types.NamespacedName]read.Holder{}
	for _, name := range c.Holders(out.Answer) {
		if name.Namespace != whytest.Namespace {
			continue
		}
		holders[name] = read.Holder{}
		for _, p := range a.pods {
			if p.Namespace == name.Namespace && p.Name == name.Name {
				holders[name] = read.Holder{Pod: p, Owner: metav1.GetControllerOf(p)}
			}
		}
	}
	if len(holders) > 0 {
		out.Consider(&c.Cluster, o, a.pod, metav1.GetControllerOf(a.pod), holders)
	}
	out.asks = out.JudgedBy != ""
	out.nodes = slices.Clone(out.Fits)
	for _, r := range out.Reasons {
		if strings.HasPrefix(r.Text, why.CauseHeld) {
			out.nodes = append(out.nodes, r.Nodes...)
		}
	}
	slices.Sort(out.nodes)
	needs := a.Needs(subject, time.Now())
	out.goal = pack.Goal{Text: subject.String(), Claims: needs.Waiting(), Pod: a.pod, Needs: needs}
	if out.asks {
		out.plan = pack.Make(t.Context(), c, out.goal, pack.Options{Driver: driver, Unmanaged: true, Shared: true})
		out.victim = pack.Preempt(t.Context(), c, out.goal, pack.Rules{Now: time.Now()}, pack.Options{Driver: driver})
	}
	return out
}

// The parts that answer about a pod.
const (
	ofEvents  = "podevents"
	ofDemand  = "demand"
	ofPreempt = "preempt"
	ofPack    = "pack"
	ofBudgets = "budgets"
)

// purpose is a difference that is meant.
type purpose struct {
	part, trait, reason string
	// acts means that the part acts otherwise than the others answer. Without it the part does nothing.
	acts bool
}

// purposes are the differences that are meant: a part does nothing for pods with a trait, or acts otherwise.
var purposes = []purpose{
	{ofEvents, "gated", "the owner of the gate removes it, and the owner of the pod knows", false},
	{ofEvents, "devices are free", "the scheduler takes them in a moment, and the minute of the test ends before an Event", false},
	{ofEvents, "two drivers", "the leader knows the slices of this driver only, so the text is about a part of the pod", true},
	{ofEvents, "other driver", "the leader knows the slices of this driver only", false},
	{ofEvents, "driver is unknown", "what is missing may be for another driver", false},
	{ofDemand, "claim is not made", "the claim of the template follows in a moment, and nodes publish for it already", true},
	{ofDemand, "another claim is missing", "nodes publish for the claims that exist, before the author creates the other one", true},
	{ofDemand, "claim of another pod", "the owners of claims would take memory for each claim of the cluster", true},
	{ofDemand, "own claim is allocated", "the nodes of claims of one pod would take memory for each pod that runs", true},
	{ofPreempt, "two drivers", "the leader knows the slices of this driver only, so it cannot prove that an eviction helps", false},
	{ofPreempt, "claim is allocated", "the allocation of a part of the claims ties the pod to nodes, where the scheduler decides", false},
	{ofPreempt, "own claim is allocated", "as with a claim that the author names", false},
	{ofPreempt, "claim of resources", "as with a claim that the author names", false},
	{ofPreempt, "claim is not made", "pods leave for claims that exist, because nothing else is known to be admitted", false},
	{ofPreempt, "the scheduler fails", "an eviction does not mend an error of the scheduler", false},
	{ofPreempt, "the scheduler has not tried", "the pod may fit", false},
	{ofPreempt, "the scheduler names no devices", "it may lack a volume or CPU, which no eviction gives it", false},
	{ofPreempt, "PodGroup", "another system starts and ends the pods of a group together", false},
	{ofPreempt, "Kueue", "Kueue preempts for its own pods", false},
	{ofPreempt, "unjudged", "the ports of nodes are unknown, unless the scheduler says that all nodes lack devices only", false},
	{ofPreempt, "another scheduler", "its rules are unknown", false},
	{ofPreempt, "nominated", "the scheduler has found a node for it, or makes room itself", false},
}

// differs returns the purpose for which a part may answer otherwise about a pod; false without one.
func (a *asked) differs(part string, d done) (at int, ok bool) {
	acts := map[string]bool{ofEvents: d.event != "", ofPreempt: d.evicted != ""}[part]
	at = slices.IndexFunc(purposes, func(p purpose) bool { return p.part == part && a.traits[p.trait] && (p.acts || !acts) })
	return at, at >= 0
}

// drivers reports whether devices of this driver are to be allocated, and adds the traits of others.
func (a *asked) drivers(k known) (ours bool) {
	others := false
	for _, claim := range k.goal.Claims {
		for _, q := range claim.Spec.Devices.Requests {
			ours, others = ours || q.Exactly.DeviceClassName != ofNIC, others || q.Exactly.DeviceClassName == ofNIC
		}
	}
	for _, claim := range waiting.Made(a.pod, waiting.Index(a.Claims)) {
		others = others || claim.Spec.Devices.Requests[0].Exactly.DeviceClassName == ofNIC
	}
	missing := k.Result == why.Waits && !k.asks && !a.traits["gated"]
	for trait, has := range map[string]bool{
		"two drivers": ours && others, "other driver": others && !ours, "another claim is missing": missing && ours, "driver is unknown": missing && !ours,
	} {
		if has {
			a.traits[trait] = true
		}
	}
	return ours
}

var ages = regexp.MustCompile(`[0-9]+ (s|min|h|d)\b`)

// generic is the first part of a text without ages, and with the pod's names of its own claims.
func (a *asked) generic(text string) string {
	text = ages.ReplaceAllString(strings.TrimPrefix(text, "GPUs: "), "")
	for _, ref := range a.pod.Spec.ResourceClaims {
		text = strings.ReplaceAll(text, waiter+"-"+ref.Name+"-x7k2p", ref.Name)
	}
	const most = 600
	return text[:min(len(text), most)]
}

// since is the time since when the pod waits.
func (a *asked) since() time.Time { return waiting.SaidOf(a.pod).At }

// first is the node that serves if one may: the first of these, else of all.
func first(nodes []string) string {
	if len(nodes) > 0 {
		return nodes[0]
	}
	return "a"
}

// compare returns what parts answer otherwise than the others, by part.
func (a *asked) compare(k known, d done, began time.Time) map[string]string {
	out := map[string]string{}
	differ := func(part, format string, args ...any) { out[part] = fmt.Sprintf(format, args...) }
	ours := a.drivers(k)
	if k.Result == why.Fits && len(k.Reasons) == 0 && a.since().After(began.Add(-time.Minute)) {
		a.traits["devices are free"] = true
	}
	// Its Event says the same as why, after its time.
	text := podevents.Text(k.Answer, nil)
	if a.pod.Spec.NodeName != "" {
		text = "" // An Event of another reason says that it lacks devices, and none that this is unknown.
	}
	if (d.event != "") != (text != "") || text != "" && !strings.HasPrefix(a.generic(d.event), a.generic(text)) {
		differ(ofEvents, "the Event says %q, and why %q", d.event, text)
	}
	if since := a.since(); d.event != "" && (d.eventAt.Before(since.Add(podevents.Patience)) || since.Before(began.Add(-podevents.Patience)) && d.eventAt.After(began.Add(10*time.Second))) {
		differ(ofEvents, "the Event is of %v, %v after the beginning, and the pod waits since %v", d.eventAt, d.eventAt.Sub(began), since)
	}
	// A node serves on which it may run.
	if want := first(k.nodes); ours && k.asks && !slices.Equal(d.serving, []string{want}) {
		differ(ofDemand, "%q serve, and it may run on %q", d.serving, k.nodes)
	}
	if !k.asks && d.serving != nil && !slices.Equal(d.serving, []string{"a"}) {
		differ(ofDemand, "%q serve a pod that does not wait", d.serving)
	}
	if want := k.asks && ours && !a.traits["the scheduler has not tried"]; d.grows != want {
		differ(ofDemand, "more nodes shall serve: %t", d.grows)
	}
	// Pods leave a node on which it may run.
	if d.evicted != k.victim.Node || k.victim.Verdict != pack.Evict && d.evicted != "" {
		if k.victim.Verdict == pack.Evict || d.evicted != "" {
			differ(ofPreempt, "pods leave %q, and by pack %s %q", d.evicted, k.victim.Verdict, k.victim.Node)
		}
	}
	if d.evicted != "" && d.evictedAt.Before(a.since()) {
		differ(ofPreempt, "pods left at %v, and the pod waits since %v", d.evictedAt, a.since())
	}
	// Plans are for a node on which it may run.
	if k.asks {
		held := slices.DeleteFunc(slices.Clone(k.nodes), func(n string) bool { return slices.Contains(k.Fits, n) })
		priority := pack.Priority(a.pod) > 0 && !a.traits["preempts never"]
		switch {
		case (k.plan.Result == pack.Fits) != (len(k.Fits) > 0), k.plan.Result == pack.Moves && !slices.Contains(held, k.plan.Place.Node):
			differ(ofPack, "the plan is %s at %v, and it may run on %q", k.plan.Result, k.plan.Place, k.nodes)
		case k.plan.Result == pack.Fits && !slices.Contains(k.Fits, k.plan.Place.Node):
			differ(ofPack, "it fits on %v, and by why on %q", k.plan.Place, k.Fits)
		case priority && (k.victim.Verdict == pack.Evict) != (len(held) > 0 && len(k.Fits) == 0), k.victim.Verdict == pack.Evict && !slices.Contains(held, k.victim.Node):
			differ(ofPack, "%s on %s, and it may run on %q", k.victim.Verdict, k.victim.Node, k.nodes)
		}
	}
	// It costs as much as the scheduler allocates for it.
	if d.charge.Amount != d.needed.Amount {
		differ(ofBudgets, "the pod costs %+v, and its resources %+v", d.charge.Amount, d.needed.Amount)
	}
	return out
}

// TestWaitingPods_RandomTraits_FivePartsAgree asks the Events, the demand, the preemption, why, the plans and the budgets
// about random pods, each in a cluster of its own. They compare the wait, its begin, the nodes on which the pod may run,
// the scheduler's words and the number of devices.
func TestWaitingPods_RandomTraits_FivePartsAgree(t *testing.T) {
	// The other handler waits by a clock from before a bubble, whose time begins in the year 2000.
	handlers := utilruntime.ErrorHandlers
	utilruntime.ErrorHandlers = handlers[:1]
	defer func() { utilruntime.ErrorHandlers = handlers }()
	const most = 10 // Differences after which the others say the same.
	used, seen, failed := map[int]int{}, map[string]int{}, 0
	for seed := range seedtest.Each(t, 1000) {
		var failures []string // A failure in a bubble ends the test.
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			a := randomCluster(t, rand.New(rand.NewPCG(seed, 51)), began)
			k := a.know(t)
			d := a.live(t)
			differences := a.compare(k, d, began)
			for _, part := range slices.Sorted(maps.Keys(differences)) {
				if at, meant := a.differs(part, d); meant {
					used[at]++
					continue
				}
				failures = append(failures, fmt.Sprintf("%s differs for a pod with %q: %s\nwhy says %s",
					part, a.names(), differences[part], k.Answer.String()))
			}
			seen[string(k.Result)]++
			for what, yes := range map[string]bool{
				"pods leave a node for it": d.evicted != "", "it has an Event": d.event != "", "another node serves it": d.serving != nil && d.serving[0] != "a",
			} {
				if yes {
					seen[what]++
				}
			}
		})
		for _, text := range failures {
			t.Errorf("seed %d: %s", seed, text)
		}
		if failed += len(failures); failed >= most {
			return
		}
	}
	t.Logf("%v", seen)
	for at, p := range purposes {
		t.Logf("%d pods: %s differs for %q, because %s", used[at], p.part, p.trait, p.reason)
	}
}
