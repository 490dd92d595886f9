// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package enforcement

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"

	"gpu-dra-driver/api/budget/v1alpha1"
	"gpu-dra-driver/internal/testing/boundedtest"
	"gpu-dra-driver/internal/testing/controllertest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/budget"
	"gpu-dra-driver/pkg/cluster/controller"
	"gpu-dra-driver/pkg/cluster/deviceclasses"
	"gpu-dra-driver/pkg/cluster/metrics"
)

const (
	grace     = 10 * time.Minute
	h100Class = "nvidia-h100-80gb-hbm3.gpu.nvidia.com"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// env is the API server of a test.
type env struct{ *controllertest.Env }

func newEnv(t testing.TB, objects ...runtime.Object) *env {
	return &env{controllertest.New(t, objects...)}
}

func get[T any](e *env, resource, name string) *T {
	return controllertest.Get[T](e.Env, resource, name)
}

type request = controllertest.Request

var slicesAt, machine, pass = controllertest.SlicesAt, controllertest.Machine, controllertest.Pass

// start runs an instance that leads or not, until stop is called.
func (e *env) start(leads bool, path *ReviewPath) (k *Keeper, stop func()) {
	e.T.Helper()
	cluster := controller.New(slicetest.Driver, e.Client(), controller.Options{
		LabelNodes: true, Grace: grace,
		Classes: deviceclasses.Options{Driver: slicetest.Driver, Models: true, Profiles: true, Groups: true, ResourcePrefix: "nvidia.com/mig-"},
	})
	k = NewKeeper(New(slicetest.Driver, e.Dynamic(), e.Client().ResourceV1(), cluster, path), cluster)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	parts := []func(context.Context) error{cluster.Observe}
	if leads {
		parts = append(parts, cluster.Lead, k.Run)
	}
	for _, part := range parts {
		wg.Go(func() {
			if err := part(ctx); err != nil {
				e.T.Error(err)
			}
		})
	}
	return k, func() {
		cancel()
		wg.Wait()
	}
}

func (e *env) budget(namespace string) *v1alpha1.GPUBudget {
	e.T.Helper()
	b := get[v1alpha1.GPUBudget](e, "gpubudgets", namespace+"/"+v1alpha1.Name)
	if b == nil {
		e.T.Fatalf("namespace %s has no budget", namespace)
	}
	return b
}

func used(b *v1alpha1.GPUBudget) string {
	if b.Status.Used.GPUs == nil {
		return ""
	}
	return b.Status.Used.GPUs.String()
}

func newClaim(namespace, name, class string, count int64) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + namespace + "-" + name)},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count},
		}}}},
	}
}

func creation(t testing.TB, resource, kind string, o metav1.Object) *admissionv1.AdmissionRequest {
	t.Helper()
	data, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return &admissionv1.AdmissionRequest{
		UID: "review", Operation: admissionv1.Create, Namespace: o.GetNamespace(), Name: o.GetName(), Object: runtime.RawExtension{Raw: data},
		Kind: metav1.GroupVersionKind{Version: "v1", Kind: kind}, Resource: metav1.GroupVersionResource{Version: "v1", Resource: resource},
	}
}

// ask creates a claim like an API server: it is stored if the webhook allows it.
func (e *env) ask(b *Budgets, claim *resourceapi.ResourceClaim) (denied string) {
	e.T.Helper()
	a := b.Review(e.T.Context(), creation(e.T, "resourceclaims", "ResourceClaim", claim))
	if !a.Allowed {
		return a.Result.Message
	}
	e.Put(claim)
	return ""
}

// withBudgets has a test done with a leader and another instance, on a cluster with an 8-GPU node.
func withBudgets(t *testing.T, do func(*testing.T, *env, []*Budgets)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, machine(t, "hgx-h100", "n1", 0)...)
		class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: slicetest.Driver}}
		class.Spec.ExtendedResourceName = new("nvidia.com/gpu")
		class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`,
		}}}
		e.Put(class)
		leader, stop := e.start(true, nil)
		defer stop()
		other, stopOther := e.start(false, nil)
		defer stopOther()
		pass(time.Second)
		do(t, e, []*Budgets{leader.Budgets, other.Budgets})
	})
}

// TestBudgets_HundredClaimsAtOnce_EndExactlyAtTheLimit asks two instances at the same time.
func TestBudgets_HundredClaimsAtOnce_EndExactlyAtTheLimit(t *testing.T) {
	withBudgets(t, func(t *testing.T, e *env, instances []*Budgets) {
		e.PutBudget("team-a", "37")
		pass(time.Second)
		var wg sync.WaitGroup
		var allowed atomic.Int32
		for i := range 100 {
			wg.Go(func() {
				denied := e.ask(instances[i%2], newClaim("team-a", fmt.Sprint(i), h100Class, 1))
				switch {
				case denied == "":
					allowed.Add(1)
				case !strings.Contains(denied, "37 of 37 are used"):
					t.Errorf("claim %d: %s", i, denied)
				}
			})
		}
		wg.Wait()
		pass(5 * time.Second)
		if b := e.budget("team-a"); allowed.Load() != 37 || used(b) != "37" || len(b.Status.Reservations) != 0 {
			t.Errorf("%d claims allowed; %s used, %d reservations", allowed.Load(), used(b), len(b.Status.Reservations))
		}
	})
}

// TestBudgets_QuotaRefusesPodsClaim_OneReservation creates claims for a pod that a ResourceQuota refuses after the webhook, as
// Kubernetes does, and as a user who names a pod as their owner.
func TestBudgets_QuotaRefusesPodsClaim_OneReservation(t *testing.T) {
	for account, want := range map[string]string{
		"system:serviceaccount:kube-system:resource-claim-controller": "1", "system:kube-controller-manager": "1", "system:kube-scheduler": "1",
		"jane": "6", "system:serviceaccount:team-a:resource-claim-controller": "6", "": "6",
	} {
		withBudgets(t, func(t *testing.T, e *env, instances []*Budgets) {
			e.PutBudget("team-a", "8")
			pass(time.Second)
			for i := range 6 {
				c := newClaim("team-a", fmt.Sprint("pod-gpu-", i), h100Class, 1)
				c.Annotations = map[string]string{resourceapi.PodResourceClaimAnnotation: "gpu"}
				c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "pod", UID: "uid", Controller: new(true)}}
				request := creation(t, "resourceclaims", "ResourceClaim", c)
				request.UserInfo.Username = account
				if a := instances[i%2].Review(t.Context(), request); !a.Allowed {
					t.Errorf("%s: %s", account, a.Result.Message)
				}
			}
			if b := e.budget("team-a"); used(b) != want || len(b.Status.Reservations) != 6 {
				t.Errorf("%s: %s used, %d reservations; want %s", account, used(b), len(b.Status.Reservations), want)
			}
		})
	}
}

func TestBudgets_ClaimsComeAndGo_UseFollows(t *testing.T) {
	withBudgets(t, func(t *testing.T, e *env, instances []*Budgets) {
		e.Put(newClaim("team-a", "before", h100Class, 2)) // It is older than the budget.
		e.Put(newClaim("team-b", "other", h100Class, 8))
		e.PutBudget("team-a", "4")
		pass(time.Second)
		if got := used(e.budget("team-a")); got != "2" {
			t.Errorf("%s used, want the claim from before the budget", got)
		}
		if denied := e.ask(instances[1], newClaim("team-a", "share", "mig-1g.10gb.nvidia.com", 4)); denied != "" {
			t.Error(denied)
		}
		if got := used(e.budget("team-a")); got != "2500m" {
			t.Errorf("%s used with the reservation", got)
		}
		pass(time.Second)
		if b := e.budget("team-a"); used(b) != "2500m" || len(b.Status.Reservations) != 0 {
			t.Errorf("%s used, reservations %v", used(b), b.Status.Reservations)
		}
		if denied := e.ask(instances[0], newClaim("team-a", "two", h100Class, 2)); !strings.Contains(denied, "GPU budget team-a/default is exhausted: GPUs: it asks for 2, 2.5 of 4 are used") {
			t.Errorf("%q", denied)
		}
		e.Remove("resourceclaims", "team-a/before")
		pass(time.Second)
		if denied := e.ask(instances[0], newClaim("team-a", "two", h100Class, 2)); denied != "" {
			t.Error(denied)
		}
		if denied := e.ask(instances[0], newClaim("team-c", "free", h100Class, 8)); denied != "" {
			t.Errorf("a namespace without a budget: %s", denied)
		}
	})
}

// TestBudgets_Allocated_CostsWhatItGot allocates a partition to a claim that could have got a larger one.
func TestBudgets_Allocated_CostsWhatItGot(t *testing.T) {
	withBudgets(t, func(t *testing.T, e *env, instances []*Budgets) {
		e.Put(&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "any-partition"}, Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{
			{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "mig"`}},
		}}})
		e.PutBudget("team-a", "1")
		pass(time.Second)
		claim := newClaim("team-a", "p", "any-partition", 1)
		if denied := e.ask(instances[1], claim); denied != "" {
			t.Fatal(denied)
		}
		pass(time.Second)
		if got := used(e.budget("team-a")); got != "1" {
			t.Errorf("%s used before the allocation", got)
		}
		partition := ""
		for _, s := range slicesAt(t, "hgx-h100", "n1", 0) {
			for _, d := range s.Spec.Devices {
				if strings.Contains(d.Name, "-mig-1g-10gb-") {
					partition = d.Name
				}
			}
		}
		claim = claim.DeepCopy()
		claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
			{Request: "r", Driver: slicetest.Driver, Pool: "n1/gpu", Device: partition},
		}}}
		e.Put(claim)
		pass(time.Second)
		if got := used(e.budget("team-a")); got != "125m" {
			t.Errorf("%s used after the allocation", got)
		}
		e.Withdraw("n1") // Its kubelet restarts.
		pass(time.Second)
		e.Put(newClaim("team-a", "none", "gpu.nvidia.com", 0)) // It has the namespace counted.
		pass(time.Second)
		e.Remove("resourceclaims", "team-a/none")
		pass(time.Second)
		if got := used(e.budget("team-a")); got != "125m" {
			t.Errorf("%s used while the node is away", got)
		}
	})
}

func TestBudgets_NotStored_ReservationExpires(t *testing.T) {
	withBudgets(t, func(t *testing.T, e *env, instances []*Budgets) {
		e.PutBudget("team-a", "1")
		pass(time.Second)
		request := creation(t, "resourceclaims", "ResourceClaim", newClaim("team-a", "refused-elsewhere", h100Class, 1))
		dry := *request
		dry.DryRun = new(true)
		for range 3 {
			if a := instances[0].Review(t.Context(), &dry); !a.Allowed {
				t.Fatalf("a dry run reserves: %v", a.Result)
			}
		}
		if a := instances[0].Review(t.Context(), request); !a.Allowed {
			t.Fatal(a.Result)
		}
		if a := instances[1].Review(t.Context(), &dry); a.Allowed {
			t.Error("a dry run is allowed above the limit")
		}
		pass(budget.Expiry - 5*time.Second)
		if got := used(e.budget("team-a")); got != "1" {
			t.Errorf("%s used while the claim can still appear", got)
		}
		pass(time.Minute)
		if b := e.budget("team-a"); used(b) != "0" || len(b.Status.Reservations) != 0 {
			t.Errorf("%s used after the expiry, reservations %v", used(b), b.Status.Reservations)
		}
	})
}

// TestBudgets_NewLeaderWithOldCache_ListsTheClaims has a budget that an earlier leader counted by a newer cache.
func TestBudgets_NewLeaderWithOldCache_ListsTheClaims(t *testing.T) {
	withBudgets(t, func(t *testing.T, e *env, instances []*Budgets) {
		e.PutBudget("team-a", "9")
		pass(time.Second)
		e.Put(newClaim("team-a", "a", h100Class, 3))
		pass(time.Second)
		b := e.budget("team-a")
		b.Status.CountedVersion, b.Status.Used.GPUs = "1000000", new(resource.MustParse("0"))
		if _, err := instances[0].write(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		e.ReadRequests()
		pass(time.Second)
		if got := used(e.budget("team-a")); got != "3" || !slices.ContainsFunc(e.ReadRequests(), func(r string) bool { return strings.HasPrefix(r, "list resourceclaims") }) {
			t.Errorf("%s used, or the claims were not listed", got)
		}
	})
}

func TestBudgets_ServerFails_ClaimsAreRefused(t *testing.T) {
	withBudgets(t, func(t *testing.T, e *env, instances []*Budgets) {
		e.PutBudget("team-a", "9")
		pass(time.Second)
		for _, verb := range []string{"get", "update"} {
			e.Lock()
			e.Fault = func(r request) (error, error) {
				if r.Resource == "gpubudgets" && r.Verb == verb {
					return errors.New("broken"), nil
				}
				return nil, nil
			}
			e.Unlock()
			if denied := e.ask(instances[1], newClaim("team-a", verb, h100Class, 1)); !strings.Contains(denied, "broken") {
				t.Errorf("%s fails: %q", verb, denied)
			}
			if denied := e.ask(instances[1], newClaim("team-a", "nic", "nic.example.com", 1)); !strings.Contains(denied, "nic.example.com does not exist") && verb == "update" {
				t.Errorf("a class that does not exist: %q", denied)
			}
		}
		e.Lock()
		e.Fault = nil
		e.Unlock()
	})
}

func TestBudgets_TemplatesAndPods_AreToldAndReserveNothing(t *testing.T) {
	withBudgets(t, func(t *testing.T, e *env, instances []*Budgets) {
		e.PutBudget("team-a", "2")
		pass(time.Second)
		template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "three"}}
		template.Spec.Spec = newClaim("", "", h100Class, 3).Spec
		a := instances[0].Review(t.Context(), creation(t, "resourceclaimtemplates", "ResourceClaimTemplate", template))
		if !a.Allowed || len(a.Warnings) != 1 || !strings.Contains(a.Warnings[0], "it asks for 3, 0 of 2 are used") {
			t.Errorf("%+v", a)
		}
		all := template.DeepCopy()
		all.Spec.Spec.Devices.Requests[0].Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
		if a := instances[0].Review(t.Context(), creation(t, "resourceclaimtemplates", "ResourceClaimTemplate", all)); a.Allowed || !strings.Contains(a.Result.Message, "allocationMode All") {
			t.Errorf("%+v", a)
		}
		e.Put(template)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "p"}}
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimTemplateName: new("three")}}
		if a := instances[0].Review(t.Context(), creation(t, "pods", "Pod", pod)); a.Allowed || !strings.Contains(a.Result.Message, "it asks for 3, 0 of 2 are used") {
			t.Errorf("a pod with a template: %+v", a)
		}
		for n, want := range map[string]bool{"2": true, "3": false} {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "q"}}
			pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(n)}}}}
			for range 2 {
				if a := instances[1].Review(t.Context(), creation(t, "pods", "Pod", pod)); a.Allowed != want {
					t.Errorf("a pod with nvidia.com/gpu: %s: %+v", n, a)
				}
			}
		}
		if b := e.budget("team-a"); used(b) != "0" {
			t.Errorf("%s used", used(b))
		}
	})
}

// TestBudgets_NewBudget_ReviewsWaitForItsCount asks at once, like kubectl apply of a file with a budget and its first pods.
func TestBudgets_NewBudget_ReviewsWaitForItsCount(t *testing.T) {
	withBudgets(t, func(t *testing.T, e *env, instances []*Budgets) {
		template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "one"}}
		template.Spec.Spec = newClaim("", "", h100Class, 1).Spec
		e.Put(template)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "p"}}
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimTemplateName: new("one")}}
		for _, review := range []*admissionv1.AdmissionRequest{
			creation(t, "resourceclaimtemplates", "ResourceClaimTemplate", template),
			creation(t, "pods", "Pod", pod),
			creation(t, "resourceclaims", "ResourceClaim", newClaim("team-a", "c", h100Class, 1)),
		} {
			e.PutBudget("team-a", "2")
			if a := instances[1].Review(t.Context(), review); !a.Allowed || len(a.Warnings) > 0 {
				t.Errorf("%s: %+v", review.Resource.Resource, a)
			}
		}
	})
}

// TestBudgets_NewBudgetIsNeverCounted_RefusedInTime has a leader that cannot write.
func TestBudgets_NewBudgetIsNeverCounted_RefusedInTime(t *testing.T) {
	withBudgets(t, func(t *testing.T, e *env, instances []*Budgets) {
		e.Lock()
		e.Fault = func(r request) (error, error) {
			if r.Resource == "gpubudgets" && r.Verb == "update" {
				return errors.New("broken"), nil
			}
			return nil, nil
		}
		e.Unlock()
		e.PutBudget("team-a", "2")
		began := time.Now()
		denied := e.ask(instances[1], newClaim("team-a", "c", h100Class, 1))
		if !strings.Contains(denied, "is new or was changed") {
			t.Errorf("denied with %q", denied)
		}
		if took := time.Since(began); took > reserveFor {
			t.Errorf("it took %s, and the API server waits five seconds", took)
		}
		e.Lock()
		e.Fault = nil
		e.Unlock()
	})
}

func TestBudgets_NoBudgetAnywhere_NothingIsWritten(t *testing.T) {
	withBudgets(t, func(t *testing.T, e *env, instances []*Budgets) {
		e.Written()
		e.Put(newClaim("team-a", "a", h100Class, 1))
		pass(10 * time.Second)
		if got := e.Written(); len(got) > 0 {
			t.Errorf("%q", got)
		}
	})
}

// TestBudgets_HandlersAreLate_VersionCoversTheCountedClaims has a claim in the cache before the handlers have received it. A new
// leader with an older cache must notice.
func TestBudgets_HandlersAreLate_VersionCoversTheCountedClaims(t *testing.T) {
	withBudgets(t, func(t *testing.T, e *env, instances []*Budgets) {
		e.PutBudget("team-a", "9")
		pass(time.Second)
		k := &Keeper{Budgets: instances[0], costs: map[types.UID]lastCost{}}
		claim := newClaim("team-a", "a", h100Class, 1)
		claim.ResourceVersion = "1000000"
		b := e.budget("team-a")
		if err := k.count(t.Context(), b, []*resourceapi.ResourceClaim{claim}, b.Status.CountedVersion, nil, time.Now()); err != nil {
			t.Fatal(err)
		}
		if got := e.budget("team-a").Status.CountedVersion; got != claim.ResourceVersion {
			t.Errorf("the budget is counted until %s, and has a claim of %s", got, claim.ResourceVersion)
		}
	})
}

func TestCluster_Budgets_HaveUseAndLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, machine(t, "hgx-h100", "n1", 0)...)
		k, stop := e.start(true, nil)
		defer stop()
		pass(time.Second)
		e.PutBudget("team-a", "2500m")
		e.Put(newClaim("team-a", "a", h100Class, 1))
		pass(time.Second)
		now := k.Metrics()
		want := []metrics.Budget{{Namespace: "team-a", Limit: "gpus", Used: 1, Hard: 2.5}}
		if !slices.Equal(now, want) {
			t.Errorf("%+v, want %+v", now, want)
		}
	})
}

// TestBudgets_ClaimNotCountedInTime_UseStays has a leader that cannot count an existing claim before its time is up.
func TestBudgets_ClaimNotCountedInTime_UseStays(t *testing.T) {
	withBudgets(t, func(t *testing.T, e *env, instances []*Budgets) {
		e.Put(newClaim("team-a", "c", h100Class, 4))
		e.PutBudget("team-a", "8")
		pass(time.Second)
		k := &Keeper{Budgets: instances[0], costs: map[types.UID]lastCost{}}
		claim := newClaim("team-a", "c", h100Class, 4)
		claim.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.attributes["gpu.nvidia.com"].index >= 0`, // No earlier answer helps.
		}}}
		late, cancel := context.WithCancel(t.Context())
		cancel()
		b := e.budget("team-a")
		if err := k.count(late, b, []*resourceapi.ResourceClaim{claim}, b.Status.CountedVersion, nil, time.Now()); !errors.Is(err, budget.ErrTime) {
			t.Errorf("the claim was counted: %v", err)
		}
		if got := used(e.budget("team-a")); got != "4" {
			t.Errorf("%s used, want the 4 of before", got)
		}
	})
}

// TestBudgets_ClocksDiffer_ReservationStaysItsTime has reservations of an instance whose clock is wrong, for claims that never appear.
func TestBudgets_ClocksDiffer_ReservationStaysItsTime(t *testing.T) {
	for _, skew := range []time.Duration{-24 * time.Hour, -10 * time.Minute, -budget.Expiry, 0, budget.Expiry, 10 * time.Minute, 24 * time.Hour} {
		t.Run(skew.String(), func(t *testing.T) {
			withBudgets(t, func(t *testing.T, e *env, instances []*Budgets) {
				e.PutBudget("team-a", "1")
				pass(time.Second)
				b := e.budget("team-a")
				claim := budget.Claim{Name: "slow", UID: "uid-slow", Charge: budget.Charge{Amount: budget.Amount{MilliGPUs: 1000}}}
				if err := budget.Reserve(b, claim, time.Now().Add(skew)); err != nil {
					t.Fatal(err)
				}
				if _, err := instances[1].write(t.Context(), b); err != nil {
					t.Fatal(err)
				}
				pass(budget.Expiry - time.Second)
				if got := used(e.budget("team-a")); got != "1" {
					t.Errorf("%s used while the claim can still appear", got)
				}
				pass(time.Minute)
				if b := e.budget("team-a"); used(b) != "0" || len(b.Status.Reservations) != 0 {
					t.Errorf("%s used after the expiry, reservations %v", used(b), b.Status.Reservations)
				}
			})
		})
	}
}

// TestBudgets_NamespacesComeAndGo_NoDeskStays deletes namespaces before, during and after reviews, and makes one again.
func TestBudgets_NamespacesComeAndGo_NoDeskStays(t *testing.T) {
	withBudgets(t, func(t *testing.T, e *env, instances []*Budgets) {
		gone := func(namespace string) {
			for _, name := range e.Names("resourceclaims") {
				if strings.HasPrefix(name, namespace+"/") {
					e.Remove("resourceclaims", name)
				}
			}
			e.Remove("gpubudgets", namespace+"/"+v1alpha1.Name)
		}
		for i := range 100 {
			namespace := fmt.Sprint("team-", i)
			e.PutBudget(namespace, "2")
			pass(time.Second)
			if denied := e.ask(instances[i%2], newClaim(namespace, "a", h100Class, 1)); denied != "" {
				t.Fatal(denied)
			}
			if i%3 == 0 { // It is gone when the review writes.
				once := sync.OnceFunc(func() { e.Drop("gpubudgets", namespace+"/"+v1alpha1.Name) })
				e.Lock()
				e.Fault = func(r request) (error, error) {
					if r.Resource == "gpubudgets" && r.Verb == "update" && strings.HasPrefix(r.Name, namespace+"/") {
						once()
					}
					return nil, nil
				}
				e.Unlock()
				if denied := e.ask(instances[i%2], newClaim(namespace, "b", h100Class, 1)); denied != "" {
					t.Errorf("%s has no budget any more: %s", namespace, denied)
				}
				e.Lock()
				e.Fault = nil
				e.Unlock()
			}
			gone(namespace)
			if i%5 == 0 { // A namespace of the same name has a smaller budget.
				e.PutBudget(namespace, "1")
				pass(time.Second)
				for n, want := range []bool{true, false} {
					if denied := e.ask(instances[i%2], newClaim(namespace, fmt.Sprint("again-", n), h100Class, 1)); (denied == "") != want {
						t.Errorf("%s was made again: claim %d: %q", namespace, n, denied)
					}
				}
				gone(namespace)
			}
		}
		pass(time.Minute)
		for i, b := range instances {
			b.mu.Lock()
			if n := len(b.queues); n > 0 {
				t.Errorf("instance %d keeps %d queues of namespaces that are gone", i, n)
			}
			b.mu.Unlock()
		}
	})
}

// TestBudgets_LargeClaims_CostTheirDevices has claims that the cache does not keep whole: one waits, and one has a device. Another
// leader, which lists the claims itself, counts the same.
func TestBudgets_LargeClaims_CostTheirDevices(t *testing.T) {
	withBudgets(t, func(t *testing.T, e *env, instances []*Budgets) {
		e.Put(controllertest.Class("any-partition", controllertest.AnyPartition))
		waits := controllertest.Padded(newClaim("team-a", "waits", "any-partition", 1), `device.attributes["gpu.nvidia.com"].profile == "1g.10gb"`)
		held := controllertest.Padded(newClaim("team-a", "held", "any-partition", 1))
		held.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
			{Request: "r", Driver: slicetest.Driver, Pool: "n1/gpu", Device: controllertest.PartitionOf(t, "2g-20gb")},
		}}}
		e.Put(waits)
		e.Put(held)
		e.PutBudget("team-a", "4")
		pass(time.Second)
		if got := used(e.budget("team-a")); got != "375m" {
			t.Errorf("%s used, want an eighth and two eighths", got)
		}
		e.Put(controllertest.PaddedClass("any-partition", controllertest.AnyPartition))
		pass(time.Second)
		if denied := e.ask(instances[0], newClaim("team-a", "new", "any-partition", 1)); !strings.Contains(denied, "too large to judge") {
			t.Errorf("a claim of a class that cannot be judged: %q", denied)
		}
	})
}

// TestInformers_LargestObjects_LittleMemory covers each field that is an informer. The schema limits a GPUBudget.
func TestInformers_LargestObjects_LittleMemory(t *testing.T) {
	client := fake.NewClientset()
	cluster := controller.New(slicetest.Driver, client, controller.Options{})
	k := NewKeeper(New(slicetest.Driver, dynamicfake.NewSimpleDynamicClient(scheme.Scheme), client.ResourceV1(), cluster, nil), cluster)
	k.cluster = nil // The controller's own test covers it.
	boundedtest.Check(t, k, "*unstructured.Unstructured")
}
