// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package podevents

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/internal/testing/whytest"
	"gpu-dra-driver/pkg/cluster/act"
	"gpu-dra-driver/pkg/cluster/bounded"
	"gpu-dra-driver/pkg/cluster/controller"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/why"
)

// TestMain has errors of informers only logged: their other handler waits by a clock from before a bubble, whose time begins
// in the year 2000.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	os.Exit(m.Run())
}

// env is a cluster in memory. Its claims and slices are known at once, as from a controller.
type env struct {
	t testing.TB
	*whytest.Fleet
	client *fake.Clientset

	mu sync.Mutex // Of the Claims.
	// packed and byName, if set, are the slices and the claims.
	packed []*pool.Slice
	byName map[string]*resourceapi.ResourceClaim
	wakes  []time.Time
	// last are the slices of the last answer, and published is the number of Slices then.
	last      []*pool.Slice
	published int
	// pods is the controller's cache.
	pods cache.SharedIndexInformer
}

func newEnv(t testing.TB, gpus int) *env {
	t.Helper()
	e := &env{t: t, Fleet: whytest.New(), client: fake.NewClientset()}
	n, err := e.Add("n1", "hgx-h100", gpus)
	if err != nil {
		t.Fatal(err)
	}
	e.create(n)
	return e
}

func (e *env) Objects() (controller.Objects, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	packed := e.packed
	if packed == nil && len(e.Slices) != e.published {
		var err error
		if e.last, err = whytest.Pack(e.Slices); err != nil {
			e.t.Error(err)
		}
		e.published = len(e.Slices)
	}
	if packed == nil {
		packed = e.last
	}
	return controller.Objects{
		Slices: packed, Claims: slices.Clone(e.Claims), Classes: e.Classes, Nodes: e.Nodes,
		Pods: read.All[*corev1.Pod](e.pods.GetStore()),
	}, true
}

func (e *env) Claim(namespace, name string) *resourceapi.ResourceClaim {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.byName != nil {
		return e.byName[name]
	}
	for _, c := range e.Claims {
		if c.Namespace == namespace && c.Name == name {
			return c
		}
	}
	return nil
}

func (e *env) Wake(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wakes = append(e.wakes, time.Now())
	return nil
}

// hold allocates GPUs of n1 for a pod of a namespace.
func (e *env) hold(namespace, name string, gpus int64) {
	e.t.Helper()
	c := whytest.Claim(name, whytest.GPUs, gpus)
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.Start(c, "n1") {
		e.t.Fatalf("n1 has no %d free GPUs", gpus)
	}
	c.Namespace, c.CreationTimestamp = namespace, metav1.NewTime(time.Now().Add(-3*time.Hour))
}

func (e *env) release(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.Claims = slices.DeleteFunc(e.Claims, func(c *resourceapi.ResourceClaim) bool { return c.Name == name })
}

func (e *env) create(objects ...runtime.Object) {
	e.t.Helper()
	for _, o := range objects {
		if err := e.client.Tracker().Add(o); err != nil {
			e.t.Fatal(err)
		}
	}
}

// wait creates a pod that the scheduler cannot place, with a claim for GPUs.
func (e *env) wait(name string, gpus int64, change ...func(*corev1.Pod, *resourceapi.ResourceClaim)) {
	e.t.Helper()
	c := whytest.Claim(name+"-gpu-x7k2p", whytest.GPUs, gpus)
	p := whytest.Pod(name)
	c.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: name, UID: p.UID, Controller: new(true)}}
	c.UID = types.UID(c.Name)
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("t")}}
	p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: &c.Name}}
	unschedulable(p, "0/1 nodes are available: 1 cannot allocate all claims.")
	for _, f := range change {
		f(p, c)
	}
	if len(p.Status.ResourceClaimStatuses) > 0 {
		e.mu.Lock()
		e.Claims = append(e.Claims, c)
		e.mu.Unlock()
	}
	e.create(p)
}

func unschedulable(p *corev1.Pod, message string) {
	now := metav1.NewTime(time.Now())
	p.CreationTimestamp, p.Status.Phase = now, corev1.PodPending
	p.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: message, LastTransitionTime: now,
	}}
}

// template creates the template of which claims could not be created.
func (e *env) template() {
	e.create(&resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: whytest.Namespace, Name: "t"},
		Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: whytest.Claim("x", whytest.GPUs, 1).Spec},
	})
}

// keeper returns a Keeper, whose cluster has no pods yet.
func (e *env) keeper(o Options) *Keeper {
	o.Driver, e.pods = slicetest.Driver, read.PodCache(e.client, read.PodUses{Explain: true})
	lists := map[schema.GroupVersionResource]string{}
	for _, version := range read.RuleVersions {
		lists[read.RuleResource(version)] = "DeviceTaintRuleList"
	}
	rules := read.NewRules(dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists))
	return New(e.client, rules, e, o)
}

// start runs a Keeper until stop is called.
func (e *env) start(o Options) (k *Keeper, stop func()) {
	k = e.keeper(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go e.pods.RunWithContext(ctx)
	go func() {
		defer close(done)
		if err := k.Run(ctx); err != nil {
			e.t.Error(err)
		}
	}()
	return k, func() {
		cancel()
		<-done
	}
}

// events returns the Events of this package.
func (e *env) events() (out []corev1.Event) {
	e.t.Helper()
	list, err := e.client.CoreV1().Events("").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
	for _, one := range list.Items {
		if one.Reason == why.EventReason {
			out = append(out, one)
		}
	}
	return out
}

// only returns the one Event, and checks its text.
func (e *env) only(texts ...string) corev1.Event {
	e.t.Helper()
	all := e.events()
	if len(all) != 1 {
		e.t.Fatalf("there are %d Events: %+v", len(all), all)
	}
	for _, text := range texts {
		if !strings.Contains(all[0].Message, text) {
			e.t.Errorf("the Event says %q, not %q", all[0].Message, text)
		}
	}
	if !strings.HasPrefix(all[0].Message, messagePrefix) || len(all[0].Message) > maxMessageBytes {
		e.t.Errorf("the Event says %q", all[0].Message)
	}
	return all[0]
}

// written returns the number of writes of Events.
func (e *env) written() (n int) {
	for _, a := range e.client.Actions() {
		if a.GetResource().Resource == "events" && slices.Contains([]string{"create", "update", "patch", "delete"}, a.GetVerb()) {
			n++
		}
	}
	return n
}

// pass lets time pass, of which a bubble has its own.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestKeeper_PodWaits_OneEventThatFollowsTheCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, 2)
		e.hold(whytest.Namespace, "train-0", 2)
		_, stop := e.start(Options{})
		defer stop()
		e.wait("p", 1)
		pass(Patience - 3*time.Second)
		if all := e.events(); len(all) != 0 {
			t.Errorf("the pod has waited for less than %s, and has %+v", Patience, all)
		}
		pass(10 * time.Second)
		first := e.only("GPUs: 0 of 1 nodes can allocate its devices. On 1 node: other claims hold the devices (2 of 2 GPUs, whole or in part). This would help: "+
			"claim team-a/train-0 (pod train-0, 3 h) must end", "`kubectl gpu why p -n team-a` shows more")
		if about := first.InvolvedObject; about.Kind != "Pod" || about.UID != "p" || first.Count != 1 || first.Type != corev1.EventTypeWarning {
			t.Errorf("the Event is %+v", first)
		}
		pass(20 * time.Minute)
		if n := e.written(); n != 1 {
			t.Errorf("the answer stayed, and there were %d writes", n)
		}
		pass(20 * time.Minute)
		if again := e.only("train-0"); again.Count != 1 || again.LastTimestamp.Equal(&first.LastTimestamp) {
			t.Errorf("an Event that the API server would remove is %+v", again)
		}

		e.release("train-0")
		e.hold(whytest.Namespace, "train-1", 2)
		pass(2 * time.Minute)
		if changed := e.only("claim team-a/train-1 (pod train-1"); changed.Count != 2 || changed.FirstTimestamp.Unix() != first.FirstTimestamp.Unix() {
			t.Errorf("the Event is %+v", changed)
		}
	})
}

// TestKeeper_TooLargeToJudge_SaysUndecided has pods and claims of which the caches keep a mark. Their Events do not say that devices
// are free, missing or not asked for.
func TestKeeper_TooLargeToJudge_SaysUndecided(t *testing.T) {
	selectors := slices.Repeat([]resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: strings.Repeat("x", 10_000)}}}, 30)
	mark := func(c *resourceapi.ResourceClaim) { *c = *bounded.Keep(c).(*resourceapi.ResourceClaim) }
	for name, c := range map[string]struct {
		change func(*corev1.Pod, *resourceapi.ResourceClaim)
		says   string
	}{
		"affinity": {func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: "k", Operator: corev1.NodeSelectorOpIn, Values: slices.Repeat([]string{strings.Repeat("v", 60)}, 10_000)},
				}}},
			}}}
		}, "the pod"},
		"claims of a pod": {func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			for i := range 1000 {
				p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: fmt.Sprint(i), ResourceClaimName: new(strings.Repeat("n", 200))})
			}
		}, "the pod"},
		"selectors": {func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
			c.Spec.Devices.Requests[0].Exactly.Selectors = selectors
			mark(c)
		}, "ResourceClaim gpu"},
		"opaque parameters": {func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
			config := resourceapi.DeviceClaimConfiguration{}
			config.Opaque = &resourceapi.OpaqueDeviceConfiguration{Driver: "nic.example.com", Parameters: runtime.RawExtension{Raw: make([]byte, 300_000)}}
			c.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{config}
			mark(c)
		}, "ResourceClaim gpu"},
		"classes": {func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
			for i := range 31 {
				c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: fmt.Sprint(i), FirstAvailable: slices.Repeat(
					[]resourceapi.DeviceSubRequest{{Name: "a", DeviceClassName: strings.Repeat("c", 250)}}, 8)})
			}
			mark(c)
		}, "ResourceClaim gpu"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnv(t, 2)
				_, stop := e.start(Options{})
				defer stop()
				e.wait("p", 1, c.change)
				pass(3 * time.Minute)
				e.only("Undecided, because this is too large for the controller's memory: "+c.says, "`kubectl gpu why p -n team-a` shows more")
				if len(e.wakes) != 0 {
					t.Errorf("the scheduler was woken at %v for unknown devices", e.wakes)
				}
			})
		})
	}
}

// TestKeeper_DevicesAreFree_SchedulerIsWokenSeldom has pods that the scheduler does not try, and ones that it has reasons to leave.
func TestKeeper_DevicesAreFree_SchedulerIsWokenSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, 2)
		_, stop := e.start(Options{})
		defer stop()
		e.wait("cpu", 1, func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
			p.Status.Conditions[0].Message = "0/1 nodes are available: 1 Insufficient cpu. preemption: none"
		})
		e.wait("large", 3)
		pass(2 * time.Minute)
		if len(e.wakes) != 0 {
			t.Errorf("the scheduler was woken at %v for pods that it cannot place", e.wakes)
		}
		began := time.Now()
		e.wait("p", 1)
		pass(Patience + 5*time.Second)
		if len(e.wakes) != 1 {
			t.Fatalf("woken %d times for a pod that waits %s, want once", len(e.wakes), time.Since(began))
		}
		pass(10 * time.Minute)
		if len(e.wakes) != maxWakes {
			t.Errorf("woken at %v, want %d times", e.wakes, maxWakes)
		}
		for i := range 12 { // They differ.
			e.wait(fmt.Sprint("p", i), 1, func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
				p.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": "n1"}
				p.Spec.Tolerations = []corev1.Toleration{{Key: fmt.Sprint("k", i), Operator: corev1.TolerationOpExists}}
			})
		}
		before := len(e.wakes)
		pass(10 * time.Minute)
		if n := len(e.wakes) - before; n < 2 || n > 5 {
			t.Errorf("woken %d times in ten minutes for 12 kinds of pods", n)
		}
	})
}

func TestKeeper_Situation_SaysWhy(t *testing.T) {
	quota := `resourceclaims "p-gpu-" is forbidden: exceeded quota: gpus, requested: count/resourceclaims.resource.k8s.io=1, used: 2, limited: 2`
	for name, c := range map[string]struct {
		options Options
		prepare func(e *env)
		// says are texts of the one Event. Without any there is no Event.
		says, not []string
	}{
		"another namespace holds the GPUs": {prepare: func(e *env) {
			e.hold("secret", "hidden", 2)
			e.wait("p", 1)
		}, says: []string{"a claim of another namespace must end (wait until it ends)"}, not: []string{"secret", "hidden"}},
		"another namespace may be named": {options: Options{NameOthers: true}, prepare: func(e *env) {
			e.hold("team-b", "train-0", 2)
			e.wait("p", 1)
		}, says: []string{"claim team-b/train-0 (pod train-0, 3 h) must end"}},
		"both hold GPUs": {prepare: func(e *env) {
			e.hold("secret", "hidden", 1)
			e.hold(whytest.Namespace, "train-0", 1)
			e.wait("p", 2)
		}, says: []string{"claims team-a/train-0 (pod train-0, 3 h), 1 of other namespaces must end (pod train-0 does not exist any more: kube-controller-manager releases its claim, wait for the other pods)"}, not: []string{"secret", "hidden"}},
		"an older pod of its Deployment": {prepare: func(e *env) {
			e.hold(whytest.Namespace, "train-0", 2)
			owner := []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "web", Controller: new(true)}}
			older := whytest.Pod("train-0")
			older.Spec.NodeName, older.Status.Phase, older.OwnerReferences = "n1", corev1.PodRunning, owner
			e.create(older)
			e.wait("p", 1, func(p *corev1.Pod, _ *resourceapi.ResourceClaim) { p.OwnerReferences = owner })
		}, says: []string{"pod train-0 is an older pod of Deployment web"}, not: []string{"scale it down"}},
		"an extended resource": {prepare: func(e *env) {
			e.hold(whytest.Namespace, "train-0", 2)
			e.Classes[0].Spec.ExtendedResourceName = new("nvidia.com/gpu")
			p := whytest.Pod("p")
			p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
				"cpu": resource.MustParse("1"), "nvidia.com/gpu": resource.MustParse("1"),
			}}}}
			unschedulable(p, "0/1 nodes are available: 1 cannot allocate all claims.")
			e.create(p)
		}, says: []string{"claim team-a/train-0 (pod train-0, 3 h) must end"}},
		"a quota refuses the claim": {prepare: func(e *env) {
			e.template()
			e.wait("p", 1, func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
				p.Status.ResourceClaimStatuses, p.Status.Conditions = nil, nil
			})
			e.create(&corev1.Event{
				ObjectMeta: metav1.ObjectMeta{Namespace: whytest.Namespace, Name: "refused"}, Reason: claimRefused,
				InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: whytest.Namespace, Name: "p", UID: "p"},
				Message:        "PodResourceClaim gpu: create ResourceClaim: " + quota, LastTimestamp: metav1.NewTime(time.Now()),
			})
		}, says: []string{"A claim is missing", "exceeded quota: gpus, requested: count/resourceclaims", "end other pods or claims of the namespace"}},
		"the template is missing": {prepare: func(e *env) {
			e.wait("p", 1, func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
				p.Status.ResourceClaimStatuses = nil
				p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}}}}
			})
		}, says: []string{"ResourceClaimTemplate t does not exist in namespace"}},
		"CPU is missing": {prepare: func(e *env) {
			e.wait("p", 1, func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
				p.Status.Conditions[0].Message = "0/1 nodes are available: 1 Insufficient cpu. preemption: none"
			})
		}, says: []string{"Its devices are free on 1 node now. The scheduler also reports: 1 Insufficient cpu"}},
		"free devices that the scheduler does not take": {prepare: func(e *env) { e.wait("p", 1) },
			says: []string{"Its devices are free on 1 node now. The scheduler has not tried again since"}},
		"a request for another driver": {prepare: func(e *env) {
			e.hold(whytest.Namespace, "train-0", 2)
			e.Classes = append(e.Classes, &resourceapi.DeviceClass{
				ObjectMeta: metav1.ObjectMeta{Name: "nic"}, Spec: resourceapi.DeviceClassSpec{Selectors: whytest.Selectors(`device.driver == "nic.example.com"`)},
			})
			e.wait("p", 1, func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
				c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, whytest.Claim("x", "nic", 1).Spec.Devices.Requests[0])
				c.Spec.Devices.Requests[1].Name = "nic"
			})
		}, says: []string{"train-0", "Its requests for other drivers (nic) are not considered here"}},
		"a constraint names the generated claim": {prepare: func(e *env) {
			e.wait("p", 2, func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
				c.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: new(resourceapi.FullyQualifiedName("gpu.nvidia.com/uuid"))}}
			})
		}, says: []string{"claim gpu: drop the constraint on gpu.nvidia.com/uuid"}, not: []string{"x7k2p"}},
		"only another driver": {prepare: func(e *env) {
			e.Classes = append(e.Classes, &resourceapi.DeviceClass{
				ObjectMeta: metav1.ObjectMeta{Name: "nic"}, Spec: resourceapi.DeviceClassSpec{Selectors: whytest.Selectors(`device.driver == "nic.example.com"`)},
			})
			e.wait("p", 1, func(_ *corev1.Pod, c *resourceapi.ResourceClaim) {
				c.Spec.Devices.Requests[0].Exactly.DeviceClassName = "nic"
			})
		}},
		"no devices": {prepare: func(e *env) {
			p := whytest.Pod("p")
			unschedulable(p, "0/1 nodes are available: 1 Insufficient cpu.")
			e.create(p)
		}},
		"a scheduling gate": {prepare: func(e *env) {
			e.wait("p", 9, func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
				p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "kueue.x-k8s.io/admission"}}
			})
		}},
		"a scheduled pod": {prepare: func(e *env) {
			e.wait("p", 9, func(p *corev1.Pod, _ *resourceapi.ResourceClaim) { p.Spec.NodeName = "n1" })
		}},
		"a Job whose pods a quota refuses": {prepare: func(e *env) {
			e.template()
			e.create(&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: whytest.Namespace, Name: "train", UID: "job"}, Spec: batchv1.JobSpec{Template: podTemplate("t")}})
			e.create(refusedPod("Job", "train", "job"))
		}, says: []string{`GPUs: The API server refuses pods of this Job: pods "train-x" is forbidden: exceeded quota: pods. To start them, end other pods`}},
		"a Job without devices whose pods a quota refuses": {prepare: func(e *env) {
			e.create(&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: whytest.Namespace, Name: "train", UID: "job"}})
			e.create(refusedPod("Job", "train", "job"))
		}},
		"a Deployment whose pods a quota refuses": {prepare: func(e *env) {
			e.template()
			e.create(&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
				Namespace: whytest.Namespace, Name: "serve-1", UID: "replicas",
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "serve", UID: "deployment", Controller: new(true)}},
			}, Spec: appsv1.ReplicaSetSpec{Template: podTemplate("t")}})
			e.create(refusedPod("ReplicaSet", "serve-1", "replicas"))
		}, says: []string{"GPUs: The API server refuses pods of this Deployment: "}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnv(t, 2)
				c.prepare(e)
				_, stop := e.start(c.options)
				defer stop()
				pass(3 * time.Minute)
				if len(c.says) == 0 {
					if all := e.events(); len(all) != 0 {
						t.Errorf("the Events are %+v", all)
					}
					return
				}
				one := e.only(c.says...)
				for _, text := range c.not {
					if strings.Contains(one.Message, text) {
						t.Errorf("the Event says %q", one.Message)
					}
				}
				if n := e.written(); n != 1 {
					t.Errorf("there were %d writes of Events", n)
				}
				t.Log(one.InvolvedObject.Kind, one.Message)
			})
		})
	}
}

func podTemplate(claimTemplate string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &claimTemplate}}, Containers: []corev1.Container{{Name: "c"}},
	}}
}

func refusedPod(kind, name string, uid types.UID) *corev1.Event {
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: whytest.Namespace, Name: "refused"}, Reason: podRefused, LastTimestamp: metav1.NewTime(time.Now()),
		InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: whytest.Namespace, Name: name, UID: uid},
		Message:        fmt.Sprintf(`Error creating: pods %q is forbidden: exceeded quota: pods`, name+"-x"),
	}
}

func TestKeeper_ManyAlikePods_AskedOnceAndWrittenSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods = 300
		e := newEnv(t, 2)
		e.hold(whytest.Namespace, "train-0", 2)
		for i := range pods {
			e.wait(fmt.Sprintf("p-%d", i), 1)
		}
		k, stop := e.start(Options{})
		pass(Patience + 10*time.Second)
		if n := e.written(); n < act.Burst || n > act.Burst+act.Writes*12 {
			t.Errorf("%d Events were written in 10 s", n)
		}
		pass(5 * time.Minute)
		if n := e.written(); n != pods {
			t.Errorf("%d writes for %d pods", n, pods)
		}
		stop()
		if len(k.kinds) != 1 {
			t.Errorf("alike pods have %d kinds", len(k.kinds))
		}
		for _, one := range e.events() {
			if !strings.Contains(one.Message, "kubectl gpu why "+one.InvolvedObject.Name+" -n") {
				t.Fatalf("the Event of pod %s says %q", one.InvolvedObject.Name, one.Message)
			}
		}
	})
}

// TestKeeper_TenantWithManyKinds_OthersGetTheirTurn has a tenant whose pods all differ.
func TestKeeper_TenantWithManyKinds_OthersGetTheirTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, 2)
		e.hold("other", "train-0", 2)
		for i := range 200 {
			e.wait(fmt.Sprintf("p-%03d", i), 1, func(p *corev1.Pod, _ *resourceapi.ResourceClaim) {
				p.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": "n1", "x": fmt.Sprint(i)}
			})
		}
		e.wait("single", 1, func(p *corev1.Pod, c *resourceapi.ResourceClaim) { p.Namespace, c.Namespace = "zeta", "zeta" })
		k, stop := e.start(Options{})
		pass(Patience)
		for len(e.events()) < 5 {
			pass(time.Second)
		}
		stop()
		if !slices.ContainsFunc(e.events(), func(one corev1.Event) bool { return one.Namespace == "zeta" }) {
			t.Errorf("of %d kinds, %d Events are of one tenant alone", len(k.kinds), len(e.events()))
		}
	})
}

func TestKeeper_NewLeader_KeepsTheEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, 2)
		e.hold(whytest.Namespace, "train-0", 2)
		e.wait("p", 1)
		_, stop := e.start(Options{})
		pass(time.Minute)
		stop()
		first := e.only("train-0")
		e.client.ClearActions()
		_, stop = e.start(Options{})
		pass(5 * time.Minute)
		e.release("train-0")
		e.hold(whytest.Namespace, "train-1", 2)
		pass(5 * time.Minute)
		stop()
		if changed := e.only("train-1"); changed.Count != 2 || changed.Name != first.Name {
			t.Errorf("the Event is %+v", changed)
		}
	})
}

func TestKeeper_PodsComeAndGo_MapsStaySmall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, 2)
		e.hold(whytest.Namespace, "train-0", 2)
		k, stop := e.start(Options{})
		for i := range 30 {
			name := fmt.Sprint("p-", i)
			e.wait(name, 1, func(p *corev1.Pod, c *resourceapi.ResourceClaim) {
				p.Namespace, c.Namespace = fmt.Sprint("ns-", i), fmt.Sprint("ns-", i)
			})
			pass(time.Minute)
			if err := e.client.CoreV1().Pods(fmt.Sprint("ns-", i)).Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			e.release(name + "-gpu-x7k2p")
		}
		pass(time.Minute)
		stop()
		if n := len(k.kinds) + len(k.keys) + len(k.owners) + len(k.written) + len(k.asked) + len(k.templates); n != 0 || len(e.events()) != 30 {
			t.Errorf("%d entries are left after %d Events: %+v", n, len(e.events()), k)
		}
	})
}

// bind creates a running pod with a node and without a claim for its GPU.
func (e *env) bind(name string, change ...func(*corev1.Pod)) {
	e.t.Helper()
	p := whytest.Pod(name)
	p.CreationTimestamp, p.Spec.NodeName, p.Status.Phase = metav1.NewTime(time.Now()), "n1", corev1.PodRunning
	p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}}}}
	for _, f := range change {
		f(p)
	}
	e.create(p)
}

// TestKeeper_BoundPods_EventIfTheyLackGPUs has pods with a node, of which the status names a claim or does not.
func TestKeeper_BoundPods_EventIfTheyLackGPUs(t *testing.T) {
	claimed := func(p *corev1.Pod) {
		p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: p.Name + "-x", RequestMappings: []corev1.ContainerExtendedResourceRequest{
			{ContainerName: "c", ResourceName: "nvidia.com/gpu", RequestName: "r"},
		}}
	}
	node := func(n string) func(*env) {
		return func(e *env) {
			e.Nodes[0].Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(n)}
		}
	}
	starts := func(p *corev1.Pod) {
		p.Status.Phase, p.Spec.Containers[0].Resources = corev1.PodPending, corev1.ResourceRequirements{}
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("c")}}
	}
	// unallocated has the pod's claim without devices in the cache, and maybe with devices in the API server.
	unallocated := func(class string, late bool) func(*env) {
		return func(e *env) {
			e.Classes = append(e.Classes, &resourceapi.DeviceClass{
				ObjectMeta: metav1.ObjectMeta{Name: "nic"}, Spec: resourceapi.DeviceClassSpec{Selectors: whytest.Selectors(`device.driver == "nic.example.com"`)},
			})
			c := whytest.Claim("c", class, 1)
			e.Claims = append(e.Claims, c)
			if c = c.DeepCopy(); late {
				c.Status.Allocation = &resourceapi.AllocationResult{}
			}
			e.create(c)
		}
	}
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		world  func(*env)
		says   []string
	}{
		"without a claim": {nil, nil, []string{
			"GPUs: The pod is on node n1 without devices for nvidia.com/gpu of container c. It was bound without a claim for it",
			"Remove spec.nodeName from its manifest", "kubernetes.io/hostname", "`kubectl gpu why p -n team-a` shows more",
		}},
		"with a claim for another container": {func(p *corev1.Pod) {
			claimed(p)
			other := p.Spec.Containers[0]
			other.Name = "d"
			p.Spec.Containers = append(p.Spec.Containers, other)
		}, nil, []string{"without devices for nvidia.com/gpu of container d."}},
		"by requests":              {func(p *corev1.Pod) { r := &p.Spec.Containers[0].Resources; r.Requests, r.Limits = r.Limits, nil }, nil, []string{"nvidia.com/gpu of container c"}},
		"that waits for its image": {func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }, nil, []string{"nvidia.com/gpu of container c"}},
		"with a claim":             {claimed, nil, nil},
		"that has ended":           {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, nil, nil},
		"that asks for nothing":    {func(p *corev1.Pod) { p.Spec.Containers[0].Resources = corev1.ResourceRequirements{} }, nil, nil},
		"of another vendor": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"amd.com/gpu": resource.MustParse("1")}
		}, nil, nil},
		"of a device plugin":              {nil, node("2"), nil},
		"of a device plugin that is gone": {nil, node("0"), nil},
		"on a node that is not known":     {func(p *corev1.Pod) { p.Spec.NodeName = "n9" }, nil, nil},
		"without a class":                 {nil, func(e *env) { e.Classes[0].Spec.ExtendedResourceName = nil }, nil},
		"whose claim has no devices":      {starts, unallocated(whytest.GPUs, false), []string{"is on node n1 without devices for claim c"}},
		"whose devices the cache lacks":   {starts, unallocated(whytest.GPUs, true), nil},
		"whose claim is another driver's": {starts, unallocated("nic", false), nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnv(t, 2)
				e.Classes[0].Spec.ExtendedResourceName = new("nvidia.com/gpu")
				if c.world != nil {
					c.world(e)
				}
				k, stop := e.start(Options{})
				defer stop()
				if c.change == nil {
					e.bind("p")
				} else {
					e.bind("p", c.change)
				}
				pass(Patience + maxAnswerAge + 5*time.Second)
				var found []corev1.Event
				list, err := e.client.CoreV1().Events("").List(context.Background(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				for _, one := range list.Items {
					if one.Reason != why.LacksReason {
						t.Errorf("an Event of another reason: %+v", one)
					}
					found = append(found, one)
				}
				if len(found) != min(1, len(c.says)) {
					t.Fatalf("there are %d Events: %+v", len(found), found)
				}
				for _, text := range c.says {
					if !strings.Contains(found[0].Message, text) {
						t.Errorf("the Event says %q, not %q", found[0].Message, text)
					}
				}
				if len(c.says) > 0 && (found[0].InvolvedObject.UID != "p" || found[0].Type != corev1.EventTypeWarning || len(found[0].Message) > maxMessageBytes) {
					t.Errorf("the Event is %+v", found[0])
				}
				if len(e.wakes) > 0 {
					t.Error("the scheduler was woken")
				}
				before := e.written()
				pass(20 * time.Minute)
				if n := e.written() - before; n != 0 {
					t.Errorf("the answer stayed, and there were %d writes", n)
				}
				if err := e.client.CoreV1().Pods(whytest.Namespace).Delete(context.Background(), "p", metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
				pass(maxAnswerAge + 5*time.Second)
				if n := len(k.kinds) + len(k.keys) + len(k.written) + len(k.lacking) + len(e.pods.GetStore().List()); n != 0 {
					t.Errorf("%d entries of a deleted pod are left", n)
				}
			})
		})
	}
}

// TestKeeper_PodWaitsThenIsBound_TwoEvents has a pod that another scheduler binds after it has waited.
func TestKeeper_PodWaitsThenIsBound_TwoEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, 2)
		e.Classes[0].Spec.ExtendedResourceName = new("nvidia.com/gpu")
		e.hold(whytest.Namespace, "train-0", 2)
		_, stop := e.start(Options{})
		defer stop()
		e.bind("p", func(p *corev1.Pod) {
			p.Spec.NodeName = ""
			unschedulable(p, "0/1 nodes are available: 1 cannot allocate all claims.")
		})
		pass(time.Minute)
		e.only("other claims hold the devices")
		p, err := e.client.CoreV1().Pods(whytest.Namespace).Get(context.Background(), "p", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p = p.DeepCopy()
		p.Spec.NodeName, p.Status.Phase, p.ResourceVersion = "n1", corev1.PodRunning, "2"
		if err := e.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), p, p.Namespace); err != nil {
			t.Fatal(err)
		}
		pass(3 * time.Minute)
		list, err := e.client.CoreV1().Events("").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		reasons := map[string]bool{}
		for _, one := range list.Items {
			reasons[one.Reason] = true
		}
		if len(list.Items) != 2 || !reasons[why.EventReason] || !reasons[why.LacksReason] {
			t.Errorf("the Events are %+v", list.Items)
		}
	})
}

func TestBounded_AnyText_FitsAndIsPrintable(t *testing.T) {
	for _, text := range []string{"", "a", strings.Repeat("é", 3000), "\x1b[2J\n\xff" + strings.Repeat("a€", 600)} {
		for _, tail := range []string{"", ". `kubectl gpu why x` shows more"} {
			got := shortened(text, tail)
			if len(got) > maxMessageBytes || !utf8.ValidString(got) || strings.ContainsAny(got, "\x1b\n") || !strings.HasPrefix(got, messagePrefix) || !strings.HasSuffix(got, tail) {
				t.Errorf("%.20q becomes %d bytes: %q", text, len(got), got)
			}
		}
	}
}
