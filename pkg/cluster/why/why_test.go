// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/sharingtest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/internal/testing/whytest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/why"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
)

const (
	gpus   = whytest.GPUs
	small  = whytest.Small
	medium = whytest.Medium
)

var (
	claim     = whytest.Claim
	pod       = whytest.Pod
	selectors = whytest.Selectors
)

// env is a cluster in memory, with the scheduler's allocator beside it.
type env struct {
	t *testing.T
	*whytest.Fleet
}

func newEnv(t testing.TB) *env {
	e := &env{Fleet: whytest.New()}
	e.t, _ = t.(*testing.T)
	return e
}

// node adds a node with GPUs of a profile.
func (e *env) node(t testing.TB, name, profile string, count int) *corev1.Node {
	t.Helper()
	n, err := e.Add(name, profile, count)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// elsewhere makes another node publish the placement of each profile that no object asks for.
func elsewhere(o *resourceslices.Options) {
	source, _ := o.Sharing.(sharing.Node)
	source.Demand = sharingtest.NoDemand{Elsewhere: true}
	o.Sharing = source
}

// publish replaces the slices of all nodes by those of a node with these settings.
func (e *env) publish(node, text string, change ...func(*resourceslices.Options)) {
	e.t.Helper()
	settings, _, err := sharing.Parse([]byte(text))
	if err != nil {
		e.t.Fatal(err)
	}
	scanned, err := slicetest.Scan("hgx-h100", node, 2)
	if err != nil {
		e.t.Fatal(err)
	}
	e.Slices = slicetest.Slices(scanned, node, settings, change...)
}

// ask asks with packed slices, as the command does.
func (e *env) ask(s why.Subject) why.Answer {
	e.t.Helper()
	c := e.Cluster
	c.Slices = packed(e.t, e.Slices)
	return why.Ask(context.Background(), &c, s, why.Options{Driver: slicetest.Driver, Now: time.Now(), Limit: 30 * time.Second})
}

func packed(t testing.TB, all []*resourceapi.ResourceSlice) []*pool.Slice {
	t.Helper()
	out, err := whytest.Pack(all)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// applied returns the cluster after a cure, and the claims to allocate.
func (e *env) applied(c why.Cure, claims []*resourceapi.ResourceClaim) (*whytest.Fleet, []*resourceapi.ResourceClaim) {
	after := *e.Fleet
	after.Claims = nil
	for _, one := range e.Claims {
		if !slices.Contains(c.Release, one.Namespace+"/"+one.Name) {
			after.Claims = append(after.Claims, one)
		}
	}
	if c.Claims != nil {
		claims = c.Claims
	}
	return &after, claims
}

// check compares an answer with the allocator: for each node, and for each cure.
func (e *env) check(answer why.Answer, claims []*resourceapi.ResourceClaim) {
	e.t.Helper()
	var fits []string
	for _, n := range e.Nodes {
		results, err := whytest.Schedule(e.Fleet, n, claims)
		if err != nil {
			e.t.Logf("node %s: %v", n.Name, err)
			return // Fatal or too slow for the allocator itself.
		}
		if len(results) == len(claims) {
			fits = append(fits, n.Name)
		}
	}
	slices.Sort(fits)
	if !slices.Equal(fits, answer.Fits) || answer.Result == why.Fits != (len(fits) > 0) {
		e.t.Errorf("the allocator fits it on %v, the answer is %s on %v", fits, answer.Result, answer.Fits)
	}
	for _, cure := range answer.Cures {
		after, changed := e.applied(cure, claims)
		for _, name := range cure.Nodes {
			at := slices.IndexFunc(e.Nodes, func(n *corev1.Node) bool { return n.Name == name })
			if results, err := whytest.Schedule(after, e.Nodes[at], changed); err != nil || len(results) != len(changed) {
				e.t.Errorf("cure %q does not help on %s: %v", cure.Text, name, err)
			}
		}
	}
}

func TestAsk_RandomFleets_AgreesWithAllocator(t *testing.T) {
	results, cures := map[why.Result]int{}, 0
	for seed := range seedtest.Each(t, 60) {
		r := rand.New(rand.NewPCG(seed, 20))
		f, err := whytest.Random(r, "")
		if err != nil {
			t.Fatal(err)
		}
		e := &env{t, f}
		asked := whytest.RandomClaim(r, "asked")
		answer := e.ask(why.Subject{Claim: asked})
		results[answer.Result]++
		cures += len(answer.Cures)
		e.check(answer, []*resourceapi.ResourceClaim{asked})
		if t.Failed() {
			t.Fatalf("seed %d: %s", seed, answer)
		}
	}
	t.Log(results, cures)
	if !testing.Short() && (results[why.Fits] == 0 || results[why.Waits] == 0 || cures == 0) {
		t.Errorf("the fleets show only %v with %d cures", results, cures)
	}
}

func taint(e *env, value string, devices ...int) {
	for _, s := range e.Slices {
		for i := range s.Spec.Devices {
			if slices.Contains(devices, i) && len(s.Spec.SharedCounters) == 0 {
				s.Spec.Devices[i].Taints = []resourceapi.DeviceTaint{{
					Key: "gpu.nvidia.com/unhealthy", Value: value, Effect: resourceapi.DeviceTaintEffectNoExecute,
				}}
			}
		}
	}
}

func cordon(e *env, name string) {
	for _, s := range e.Slices {
		for i, d := range s.Spec.Devices {
			if slices.Contains(pool.GPUsOf(d), name) {
				s.Spec.Devices[i].Taints = append(d.Taints, resourceapi.DeviceTaint{Key: wire.CordonTaint, Effect: resourceapi.DeviceTaintEffectNoSchedule})
			}
		}
	}
}

// TestAnswer_EscapeInSelector_IsNotPrinted has a selector that a terminal would interpret.
func TestAnswer_EscapeInSelector_IsNotPrinted(t *testing.T) {
	e := newEnv(t)
	e.node(t, "n1", "hgx-h100", 2)
	text := e.ask(why.Subject{Claim: claim("asked", gpus, 1, func(q *resourceapi.ExactDeviceRequest) {
		q.Selectors = selectors("device.driver == \"\x1b[2J\"")
	})}).String()
	if strings.Contains(text, "\x1b") || !strings.Contains(text, `drop the selector device.driver == "?[2J"`) {
		t.Errorf("the answer is %q", text)
	}
}

func TestAsk_Situation_SaysReasonAndCure(t *testing.T) {
	extended := func(e *env) *corev1.Pod {
		p := pod("extended")
		p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("2")}}}}
		e.Classes[0].Spec.ExtendedResourceName = new("nvidia.com/gpu")
		return p
	}
	waiting := func(e *env, change ...func(*resourceapi.ExactDeviceRequest)) *corev1.Pod {
		c := claim("asked", gpus, 1, change...)
		e.Claims = append(e.Claims, c)
		return pod("p", c)
	}
	// refused returns a pod of whose claims one could not be created.
	refused := func(e *env, message string) *corev1.Pod {
		e.Templates = []*resourceapi.ResourceClaimTemplate{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "t"},
			Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: claim("x", gpus, 1).Spec},
		}}
		for ago, text := range map[time.Duration]string{time.Hour: "an older cause", 3 * time.Minute: message} {
			e.Events = append(e.Events, &corev1.Event{
				Reason: "FailedResourceClaimCreation", Message: "PodResourceClaim gpu: create ResourceClaim: " + text, LastTimestamp: metav1.NewTime(time.Now().Add(-ago)),
			})
		}
		p := pod("p")
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("t")}}
		return p
	}
	for name, c := range map[string]struct {
		subject func(e *env) why.Subject
		result  why.Result
		lines   []string
	}{
		"two claims hold two GPUs": {func(e *env) why.Subject {
			e.Start(claim("train-0", gpus, 1), "n1")
			e.Start(claim("train-1", gpus, 1), "n1")
			return why.Subject{Pod: waiting(e)}
		}, why.Waits, []string{
			"pod team-a/p waits: 0 of 1 nodes can allocate its devices.",
			"  - node n1: other claims hold the devices",
			"  - claim team-a/train-0 (pod train-0, 3 h) must end (wait until it ends); then it fits on n1",
			"  - claim team-a/train-1 (pod train-1, 3 h) must end (wait until it ends); then it fits on n1",
		}},
		"partitions would fit": {func(e *env) why.Subject {
			e.Start(claim("train-0", gpus, 1), "n1")
			e.Start(claim("small-0", small, 1), "n1")
			return why.Subject{Pod: waiting(e)}
		}, why.Waits, []string{
			"  - claim team-a/small-0 (pod small-0, 3 h) must end (wait until it ends); then it fits on n1",
			"  - request gpu: use the class mig-3g.40gb.nvidia.com instead of gpu.nvidia.com (a partition, not a whole GPU); at once it fits on n1",
		}},
		"a leaked claim": {func(e *env) why.Subject {
			e.Start(claim("leak", gpus, 2), "n1")
			e.Claims[0].Status.ReservedFor = nil
			return why.Subject{Pod: waiting(e)}
		}, why.Waits, []string{"claim team-a/leak (no pod, 3 h) must end (no pod uses it: delete it if it is not needed)"}},
		"more GPUs than a node has": {func(*env) why.Subject { return why.Subject{Claim: claim("asked", gpus, 9)} }, why.Waits, []string{
			"  - node n1: cannot satisfy the claim, even if it were empty",
			"  note: request gpu: it asks for 9 devices; no node of the cluster as it is now has more than 2 that match",
			"  - request gpu: ask for 2 instead of 9; at once it fits on n1",
		}},
		"a partition that no object asked for before": {func(e *env) why.Subject {
			e.node(e.t, "n2", "hgx-h100", 2)
			e.publish("n1", "publish: [{profiles: Auto, groups: Auto, monitors: Auto}]", elsewhere)
			plain := e.Slices
			e.publish("n2", "publish: [{profiles: Auto, groups: Auto, monitors: Auto}]")
			e.Slices = append(e.Slices, plain...)
			e.Start(claim("train-0", gpus, 2), "n2")
			return why.Subject{Claim: claim("asked", small, 1)}
		}, why.Waits, []string{
			"  - node n2: other claims hold the devices",
			"  - node n1: publishes no such devices now, and does while the claim waits (chart value publish)",
		}},
		"a free GPU beside a held one, that could be cut": {func(e *env) why.Subject {
			e.publish("n1", "publish: [{profiles: Auto, groups: Auto, monitors: Auto}]")
			e.Start(claim("train-0", gpus, 1), "n1")
			return why.Subject{Claim: claim("asked", small, 1)}
		}, why.Waits, []string{
			"  - node n1: has free GPUs beside those of other claims, and publishes such devices of them while the claim waits (chart value publish)",
		}},
		"free GPUs that form no group": {func(e *env) why.Subject {
			e.Nodes, e.Slices = nil, nil
			e.node(e.t, "n8", "hgx-h100", 8)
			group := e.Classes[0].DeepCopy()
			group.Name = "nvlink-4.gpu.nvidia.com"
			group.Spec.Selectors = selectors(`device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "nvlink-group" && device.attributes["gpu.nvidia.com"].gpuCount == 4`)
			e.Classes = append(e.Classes, group)
			for name, at := range map[string]string{"first": "0000:1b:00.0", "fifth": "0000:9d:00.0"} { // One of each half.
				e.Start(claim(name, gpus, 1, func(q *resourceapi.ExactDeviceRequest) {
					q.Selectors = selectors(fmt.Sprintf(`device.attributes["resource.kubernetes.io"].pciBusID == %q`, at))
				}), "n8")
			}
			return why.Subject{Claim: claim("asked", group.Name, 1)}
		}, why.Waits, []string{
			"  - node n8: other claims hold the devices",
			"  - claim team-a/fifth (pod fifth, 3 h) must end (wait until it ends); then it fits on n8",
			"  - claim team-a/first (pod first, 3 h) must end (wait until it ends); then it fits on n8",
		}},
		"a free GPU that could be cut, and is unhealthy": {func(e *env) why.Subject {
			e.publish("n1", "publish: [{profiles: Auto, groups: Auto, monitors: Auto}]")
			e.Start(claim("train-0", gpus, 1), "n1")
			taint(e, "lost", 1)
			return why.Subject{Claim: claim("asked", small, 1)}
		}, why.Waits, []string{
			"  - node n1: other claims hold the devices, and its free ones have device taints that the claim does not tolerate: unhealthy (lost; kubectl gpu doctor says what to do)",
		}},
		"devices that the node withdraws": {func(e *env) why.Subject { taint(e, "no-demand", 0, 1, 2); return why.Subject{Pod: waiting(e)} }, why.Waits, []string{
			"withdrawn while no object asks for them",
			"  - the node must publish the devices again, which it does within a minute while the claim waits; at once it fits on n1",
		}},
		"a free GPU that is cordoned": {func(e *env) why.Subject {
			cordon(e, "gpu-0000-43-00-0")
			e.Start(claim("train-0", gpus, 1), "n1")
			return why.Subject{Pod: waiting(e)}
		}, why.Waits, []string{
			"  - node n1: other claims hold the devices, and its free ones have device taints that the claim does not tolerate: " +
				"cordoned by an administrator (kubectl gpu uncordon n1/gpu-0000-43-00-0)",
			"  - claim team-a/train-0 (pod train-0, 3 h) must end (wait until it ends); then it fits on n1",
		}},
		"slices of a node that are missing now": {func(e *env) why.Subject {
			e.Slices = slices.DeleteFunc(e.Slices, func(s *resourceapi.ResourceSlice) bool { return len(s.Spec.SharedCounters) > 0 })
			return why.Subject{Pod: waiting(e)}
		}, why.Waits, []string{
			"  - node n1: has no devices now, because some of its slices are missing, as while its plugin publishes",
		}},
		"a selector for another model": {func(e *env) why.Subject {
			return why.Subject{Pod: waiting(e, func(q *resourceapi.ExactDeviceRequest) {
				q.Selectors = selectors(`device.attributes["gpu.nvidia.com"].productName == "NVIDIA H200"`)
			})}
		}, why.Waits, []string{
			`  - request gpu: drop the selector device.attributes["gpu.nvidia.com"].productName == "NVIDIA H200" (for a device that it rejects); at once it fits on n1`,
		}},
		"unhealthy GPUs": {func(e *env) why.Subject { taint(e, "xid-79", 0, 1, 2); return why.Subject{Pod: waiting(e)} }, why.Waits, []string{
			"  - node n1: a device taint that the claim does not tolerate: unhealthy (xid-79; kubectl gpu doctor says what to do)",
			"  - the GPU with the taint gpu.nvidia.com/unhealthy=xid-79:NoExecute must be repaired; at once it fits on n1",
		}},
		"a constraint that no node meets": {func(*env) why.Subject {
			c := claim("asked", gpus, 2)
			c.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: new(resourceapi.FullyQualifiedName("gpu.nvidia.com/uuid"))}}
			return why.Subject{Claim: c}
		}, why.Waits, []string{"  - claim asked: drop the constraint on gpu.nvidia.com/uuid (for devices that it rejects); at once it fits on n1"}},
		"an extended resource": {func(e *env) why.Subject {
			e.Start(claim("train-0", gpus, 1), "n1")
			return why.Subject{Pod: extended(e)}
		},
			why.Waits, []string{
				"claim team-a/train-0 (pod train-0, 3 h) must end",
				"  - request of container c: ask for 1 instead of 2; at once it fits on n1",
			}},
		"an extended resource without a class": {func(e *env) why.Subject {
			p := extended(e)
			e.Classes[0].Spec.ExtendedResourceName = nil
			return why.Subject{Pod: p}
		}, why.Waits, []string{
			"pod team-a/extended waits: nothing serves its resources.",
			"  - no DeviceClass has the extendedResourceName nvidia.com/gpu, and no node has a device plugin for it",
		}},
		"an extended resource of a device plugin": {func(e *env) why.Subject {
			e.Nodes[0].Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
			return why.Subject{Pod: extended(e)}
		}, why.Waits, []string{"  - node n1: a device plugin serves nvidia.com/gpu there, not this driver"}},
		"a misspelled class": {func(*env) why.Subject { return why.Subject{Claim: claim("asked", "gpu.nvidia.co", 1)} }, why.Waits, []string{
			`  - request gpu: DeviceClass "gpu.nvidia.co" does not exist`,
			"  note: request gpu: there is no DeviceClass gpu.nvidia.co; is gpu.nvidia.com meant? A pod waits until there is one",
		}},
		"parameters that Prepare refuses": {func(e *env) why.Subject {
			p := waiting(e)
			e.Claims[0].Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
				Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: slicetest.Driver, Parameters: runtime.RawExtension{Raw: []byte(`{"kind":"Gpu"}`)}},
			}}}
			return why.Subject{Pod: p}
		}, why.Fits, []string{"pod team-a/p fits on n1 now.", "  note: The driver refuses the claim: "}},
		"a cordoned node with free devices": {func(e *env) why.Subject { e.Nodes[0].Spec.Unschedulable = true; return why.Subject{Pod: waiting(e)} },
			why.Waits, []string{"  - node n1: the node is cordoned, though its devices are free"}},
		"a node selector": {func(e *env) why.Subject {
			p := waiting(e)
			p.Spec.NodeSelector = map[string]string{"pool": "b"}
			return why.Subject{Pod: p}
		}, why.Waits, []string{"  - node n1: the pod's node selector pool=b does not match, though its devices are free"}},
		"a node taint and CPU": {func(e *env) why.Subject {
			p := waiting(e)
			e.Nodes[0].Spec.Taints = []corev1.Taint{{Key: "reserved", Effect: corev1.TaintEffectNoSchedule}}
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/1 nodes are available: " +
				"1 node(s) had untolerated taint {reserved: }, 1 Insufficient cpu. preemption: 0/1 nodes are available"}}
			return why.Subject{Pod: p}
		}, why.Waits, []string{
			"  - node n1: the pod does not tolerate the node's taint reserved:NoSchedule, though its devices are free",
			"  - the scheduler also reports: 1 Insufficient cpu",
		}},
		"Kueue's gate": {func(e *env) why.Subject {
			p := waiting(e)
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "kueue.x-k8s.io/admission"}}
			return why.Subject{Pod: p}
		}, why.Waits, []string{"  - Kueue has not admitted the pod (scheduling gate kueue.x-k8s.io/admission); look at its Workload and LocalQueue"}},
		"a claim that does not exist": {func(*env) why.Subject { return why.Subject{Pod: pod("p", claim("absent", gpus, 1))} }, why.Waits, []string{
			`  - ResourceClaim absent does not exist in namespace "team-a"; create it`,
		}},
		"a pod that its node does not start": {func(e *env) why.Subject {
			p := pod("p")
			p.Spec.NodeName, p.Status.Phase = "n1", corev1.PodPending
			event := func(reason string, ago time.Duration, text string) {
				e.Events = append(e.Events, &corev1.Event{Reason: reason, Message: text, LastTimestamp: metav1.NewTime(time.Now().Add(-ago))})
			}
			event("FailedPrepareDynamicResources", 90*time.Second, "DeviceInUse:\nswitch the MIG mode on")
			event("FailedPrepareDynamicResources", 3*time.Hour, "older")
			event("FailedMount", 2*time.Hour, "no volume")
			event("FailedScheduling", time.Second, "of the scheduler")
			return why.Subject{Pod: p}
		}, why.Settled, []string{
			"pod team-a/p is scheduled to node n1.\n  - FailedMount, 2 h ago: no volume\n" +
				"  - FailedPrepareDynamicResources, 1 min ago: DeviceInUse: switch the MIG mode on\n",
		}},
		"a deleted claim": {func(e *env) why.Subject {
			p := waiting(e)
			e.Claims[0].DeletionTimestamp = new(metav1.Now())
			return why.Subject{Pod: p}
		}, why.Waits, []string{"  - ResourceClaim asked is being deleted"}},
		"a deleted claim of another pod": {func(e *env) why.Subject {
			c := claim("train-0", gpus, 1)
			e.Start(c, "n1")
			c.DeletionTimestamp = new(metav1.Now())
			return why.Subject{Pod: pod("p", c)}
		}, why.Waits, []string{"  - ResourceClaim train-0 is being deleted"}},
		"a deleted claim without a pod": {func(e *env) why.Subject {
			c := claim("train-0", gpus, 1)
			c.DeletionTimestamp = new(metav1.Now())
			return why.Subject{Claim: c}
		}, why.Settled, []string{"claim team-a/train-0 is being deleted."}},
		"a claim not yet made": {func(e *env) why.Subject {
			e.Templates = []*resourceapi.ResourceClaimTemplate{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "t"},
				Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: claim("x", gpus, 1).Spec},
			}}
			p := pod("p")
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("t")}}
			return why.Subject{Pod: p}
		}, why.Fits, []string{"pod team-a/p fits on n1 now.", "  note: The claim of template t is not made yet; kube-controller-manager makes it."}},
		"a quota refuses the claim": {func(e *env) why.Subject {
			return why.Subject{Pod: refused(e, `resourceclaims "p-gpu-" is forbidden: exceeded quota: gpus, requested: count/resourceclaims.resource.k8s.io=1, used: 2, limited: 2`)}
		}, why.Waits, []string{
			"pod team-a/p waits: a claim is missing.",
			"  - the claim of ResourceClaimTemplate t could not be created (last attempt 3 min ago): create ResourceClaim: resourceclaims \"p-gpu-\" is forbidden: " +
				"exceeded quota: gpus, requested: count/resourceclaims.resource.k8s.io=1, used: 2, limited: 2; end other pods or claims of the namespace, or have the quota raised",
		}},
		"a webhook refuses the claim": {func(e *env) why.Subject {
			return why.Subject{Pod: refused(e, `admission webhook "a.example.com" denied the request: no`)}
		}, why.Waits, []string{"admission webhook \"a.example.com\" denied the request: no; correct what it names. " +
			"Templates do not change: replace it (kubectl replace --force), then create the pod again"}},
		"a quota that is smaller than the claim": {func(e *env) why.Subject {
			p := refused(e, `resourceclaims "p-gpu-" is forbidden: exceeded quota: none, requested: a/devices=1,b/devices=2, used: a/devices=0,b/devices=0, limited: a/devices=1,b/devices=1`)
			p.UID = "1"
			return why.Subject{Pod: p}
		}, why.Waits, []string{"limited: a/devices=1,b/devices=1; have the quota raised, or ask for less: it is too small even without other pods. " +
			"Kubernetes tries again within 17 min, or at once after: kubectl -n team-a annotate pod p retry=1 --overwrite"}},
		"an allocated claim": {func(e *env) why.Subject {
			c := claim("train-0", gpus, 1)
			e.Start(c, "n1")
			return why.Subject{Claim: c}
		}, why.Settled, []string{"  - claim team-a/train-0 has n1/gpu/gpu-0000-1b-00-0, for train-0"}},
		"partitions that no object asks for": {func(e *env) why.Subject {
			e.publish("n1", "publish: [{profiles: Auto, groups: Auto}]")
			return why.Subject{Claim: claim("asked", small, 2)}
		}, why.Waits, []string{
			"  - node n1: cannot satisfy the claim with the devices that it publishes now, even if it were empty",
			"note: request gpu: nodes publish fewer of these partitions now, and more while the claim waits",
		}},
		"a group that no object asks for": {func(e *env) why.Subject {
			e.publish("n1", "publish: [{profiles: Auto, groups: Auto}]")
			c := e.Classes[0].DeepCopy()
			c.Name = "nvlink.gpu.nvidia.com"
			c.Spec.Selectors = selectors(`device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "nvlink-group"`)
			e.Classes = append(e.Classes, c)
			return why.Subject{Claim: claim("asked", c.Name, 1)}
		}, why.Waits, []string{
			"  - node n1: publishes no such devices now, and does while the claim waits, unless its settings exclude them (chart value publish)",
			"note: request gpu: nodes publish no such groups now, and some while the claim waits, unless their settings exclude them",
		}},
		"a device of another driver with binding conditions": {func(e *env) why.Subject {
			e.Slices = append(e.Slices, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "nic"}, Spec: resourceapi.ResourceSliceSpec{
				Driver: "nic.example.com", NodeName: new("n1"), Pool: resourceapi.ResourcePool{Name: "n1", ResourceSliceCount: 1},
				Devices: []resourceapi.Device{{Name: "nic", BindingConditions: []string{"attached"}, BindingFailureConditions: []string{"failed"}}},
			}})
			e.Classes = append(e.Classes, &resourceapi.DeviceClass{
				ObjectMeta: metav1.ObjectMeta{Name: "nic"}, Spec: resourceapi.DeviceClassSpec{Selectors: selectors(`device.driver == "nic.example.com"`)},
			})
			p := waiting(e)
			c := e.Claims[0]
			c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, claim("x", "nic", 1).Spec.Devices.Requests[0])
			c.Spec.Devices.Requests[1].Name = "nic"
			return why.Subject{Pod: p}
		}, why.Fits, []string{"pod team-a/p fits on n1 now."}},
		"half a pool": {func(e *env) why.Subject { e.Slices = e.Slices[:1]; return why.Subject{Pod: waiting(e)} }, why.Waits, nil},
		"no slices":   {func(e *env) why.Subject { e.Slices = nil; return why.Subject{Pod: waiting(e)} }, why.Waits, []string{"  - node n1: publishes no devices"}},
		"a selector that fails": {func(e *env) why.Subject {
			return why.Subject{Pod: waiting(e, func(q *resourceapi.ExactDeviceRequest) {
				q.Selectors = selectors(`device.attributes["gpu.nvidia.com"].absent == "x"`)
			})}
		}, why.Waits, []string{"pod team-a/p waits: the scheduler's attempt fails.", "no such key: absent"}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			e.node(t, "n1", "hgx-h100", 2)
			s := c.subject(e)
			answer := e.ask(s)
			text := answer.String()
			if answer.Result != c.result {
				t.Errorf("the result is %s, want %s", answer.Result, c.result)
			}
			for _, line := range c.lines {
				if !strings.Contains(text, line) {
					t.Errorf("no line %q", line)
				}
			}
			if answer.JudgedBy == "" && strings.Contains(text, "No single change") {
				t.Error("it denies cures that were not searched for")
			}
			t.Log("\n" + text) // docs/why.md shows some.
		})
	}
}
