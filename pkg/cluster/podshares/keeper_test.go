// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package podshares

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	dracel "k8s.io/dynamic-resource-allocation/cel"

	"gpu-dra-driver/internal/testing/controllertest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/controller"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

const grace = 10 * time.Minute

type env struct {
	*controllertest.Env
	events *record.FakeRecorder
}

// inBubble has a test done with a leader. restart ends it and starts another.
func inBubble(t *testing.T, objects []runtime.Object, do func(e *env, restart func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := &env{controllertest.New(t, objects...), record.NewFakeRecorder(1000)}
		stop := e.start()
		controllertest.Pass(2 * time.Second)
		do(e, func() {
			stop()
			stop = e.start()
			controllertest.Pass(2 * time.Second)
		})
		stop()
	})
}

func (e *env) start() (stop func()) {
	cluster := controller.New(slicetest.Driver, e.Client(), controller.Options{Grace: grace})
	k := New(e.Client(), cluster, Options{Driver: slicetest.Driver, Grace: grace, Events: e.events})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, part := range []func(context.Context) error{cluster.Observe, cluster.Lead, k.Run} {
		wg.Go(func() {
			if err := part(ctx); err != nil {
				e.T.Error(err)
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// pod creates a pod as the policy changes it.
func (e *env) pod(name string, templates ...string) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"gpu.nvidia.com/pod-shares": "true"}}}
	for i, t := range templates {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: fmt.Sprint("gpu-share-", i), ResourceClaimTemplateName: &t})
	}
	p.Status.Phase = corev1.PodPending
	e.Put(p)
}

// want compares the names of all templates of the namespace.
func (e *env) want(when string, names ...string) {
	e.T.Helper()
	controllertest.Pass(time.Second)
	if got := e.Names("resourceclaimtemplates"); strings.Join(got, " ") != strings.Join(names, " ") {
		e.T.Errorf("%s: the templates are %q, want %q", when, got, names)
	}
}

// recorded returns the Events since the last call.
func (e *env) recorded() (out []string) {
	for len(e.events.Events) > 0 {
		out = append(out, <-e.events.Events)
	}
	return out
}

func (e *env) template(name string) *resourceapi.ResourceClaimTemplate {
	return controllertest.Get[resourceapi.ResourceClaimTemplate](e.Env, "resourceclaimtemplates", "ns/"+name)
}

const ten, half = "gpu-share-10240mi", "gpu-share-500m-compute-25"

func TestKeeper_PodsNameTemplates_ExistWhileUsed(t *testing.T) {
	inBubble(t, controllertest.Machine(t, "hgx-h100", "n1", 1), func(e *env, restart func()) {
		e.want("no pod")
		e.pod("a", ten)
		e.pod("b", ten, half)
		e.want("two pods", "ns/"+ten, "ns/"+half)
		e.Written()
		e.pod("c", ten, half)
		e.Remove("pods", "ns/a")
		restart()
		e.want("another pod, and a restart", "ns/"+ten, "ns/"+half)
		if writes := e.Written(); len(writes) > 0 {
			t.Errorf("templates are written again: %q", writes)
		}
		e.Remove("pods", "ns/b")
		e.Remove("pods", "ns/c")
		controllertest.Pass(grace - time.Minute)
		e.want("unused for a while", "ns/"+ten, "ns/"+half)
		e.pod("d", ten)
		controllertest.Pass(2 * time.Minute)
		e.want("one is unused for long", "ns/"+ten)
		// An administrator, or a sweep that was late.
		e.Remove("resourceclaimtemplates", "ns/"+ten)
		e.want("removed while a pod waits", "ns/"+ten)
		if found := e.recorded(); len(found) > 0 {
			t.Errorf("Events %q", found)
		}
	})
}

func TestKeeper_NamesOfOthers_AreLeftAlone(t *testing.T) {
	inBubble(t, controllertest.Machine(t, "hgx-h100", "n1", 1), func(e *env, _ func()) {
		other := Template(slicetest.Driver, "ns", "gpu-share-20480mi", nil)
		other.Name, other.Labels = ten, nil
		e.Put(other)
		same := Template(slicetest.Driver, "ns", "gpu-share-30720mi", nil)
		same.Labels = nil
		e.Put(same)
		mine := Template(slicetest.Driver, "ns", ten, nil)
		mine.Name = "mine"
		e.Put(mine)
		unlabelled := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "unlabelled"}}
		unlabelled.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "g", ResourceClaimTemplateName: new("gpu-share-99mi")}}
		e.Put(unlabelled)
		e.Written()
		e.pod("a", ten)
		e.pod("b", "gpu-share-30720mi")
		e.pod("c", "mine", "gpu-share-0mi", "gpu-share-1001m", "gpu-share-5mi-compute-0", "gpu-share-99999999999999mi")
		e.want("templates of users", "ns/"+ten, "ns/gpu-share-30720mi", "ns/mine")
		if found := strings.Join(e.recorded(), "\n"); !strings.Contains(found, "Warning FailedShareTemplate") || !strings.Contains(found, "another content") || strings.Count(found, "\n") > 0 {
			t.Errorf("Events %q", found)
		}
		e.Remove("pods", "ns/a")
		e.Remove("pods", "ns/b")
		controllertest.Pass(2 * grace)
		e.want("nothing is used", "ns/"+ten, "ns/gpu-share-30720mi", "ns/mine")
		if writes := e.Written(); slices.ContainsFunc(writes, func(w string) bool { return !strings.HasPrefix(w, "create resourceclaimtemplates") }) {
			t.Errorf("writes %q", writes)
		}
	})
}

// TestKeeper_Fraction_IsThatOfEachSize also has the first GPU come after the pod, and another model.
func TestKeeper_Fraction_IsThatOfEachSize(t *testing.T) {
	inBubble(t, nil, func(e *env, _ func()) {
		e.pod("a", half)
		e.want("no GPU")
		if found := e.recorded(); len(found) != 1 || !strings.Contains(found[0], "no node has a GPU of which it is a part") {
			t.Errorf("Events %q", found)
		}
		e.Publish("hgx-h100", "n1", 1)
		controllertest.Pass(retry)
		e.want("a GPU comes", "ns/"+half)
		r := e.template(half).Spec.Spec.Devices.Requests[0].Exactly
		if part := r.Capacity.Requests["memory"]; part.String() != "40779Mi" {
			t.Errorf("half of an H100 is %s", part.String())
		}
		e.Publish("l40s-4", "n2", 1)
		controllertest.Pass(10 * time.Second)
		e.want("another model", "ns/"+half)
		var amounts []string
		for _, s := range e.template(half).Spec.Spec.Devices.Requests[0].FirstAvailable {
			memory, compute := s.Capacity.Requests["memory"], s.Capacity.Requests["compute"]
			amounts = append(amounts, fmt.Sprint(s.Name, " ", memory.String(), " ", compute.String()))
			if r := dracel.GetCompiler(dracel.Features{}).CompileCELExpression(s.Selectors[0].CEL.Expression, dracel.Options{}); r.Error != nil {
				t.Error(r.Error)
			}
		}
		if got, want := strings.Join(amounts, ", "), "of-46068mi 23034Mi 25, of-81559mi 40779Mi 25"; got != want {
			t.Errorf("alternatives %q, want %q", got, want)
		}
		e.Withdraw("n1")
		e.Withdraw("n2")
		controllertest.Pass(time.Hour)
		e.want("no GPU is left", "ns/"+half)
	})
}

func TestKeeper_WritesFail_PodHasEventAndTemplateFollows(t *testing.T) {
	inBubble(t, controllertest.Machine(t, "hgx-h100", "n1", 1), func(e *env, _ func()) {
		e.Lock()
		e.Fault = func(r controllertest.Request) (refused, lost error) {
			if r.Resource == "resourceclaimtemplates" && r.Writes() {
				return errors.New("quota of templates is used up"), nil
			}
			return nil, nil
		}
		e.Unlock()
		e.pod("a", ten)
		e.want("refused")
		if found := e.recorded(); len(found) != 1 || !strings.Contains(found[0], "gpu-share-10240mi of this pod's share could not be written") ||
			!strings.Contains(found[0], "quota of templates is used up") {
			t.Errorf("Events %q", found)
		}
		e.Lock()
		e.Fault = nil
		e.Unlock()
		controllertest.Pass(retry)
		e.want("allowed again", "ns/"+ten)
	})
}

// TestKeeper_TenantWithManyAmounts_IsBounded has one namespace ask for more than it may have.
func TestKeeper_TenantWithManyAmounts_IsBounded(t *testing.T) {
	inBubble(t, controllertest.Machine(t, "hgx-h100", "n1", 1), func(e *env, _ func()) {
		for i := range 2 * mostTemplates {
			e.pod(fmt.Sprint("p", i), fmt.Sprintf("gpu-share-%dmi", 100+i))
		}
		controllertest.Pass(time.Minute)
		if n := len(e.Names("resourceclaimtemplates")); n != mostTemplates {
			t.Errorf("%d templates, want %d", n, mostTemplates)
		}
		found := e.recorded()
		if len(found) < mostTemplates || !strings.Contains(found[0], "has 64 templates of shares already") {
			t.Errorf("%d Events %q", len(found), found[:min(1, len(found))])
		}
	})
}

// TestKeeper_ServerDropsCapacity_NoTemplateAndFewWrites has an API server whose gate DRAConsumableCapacity is off. A claim of such a
// template would get a whole GPU.
func TestKeeper_ServerDropsCapacity_NoTemplateAndFewWrites(t *testing.T) {
	inBubble(t, controllertest.Machine(t, "hgx-h100", "n1", 1), func(e *env, _ func()) {
		e.Admit = func(o *unstructured.Unstructured) {
			if o.GetKind() == "ResourceClaimTemplate" {
				unstructured.RemoveNestedField(o.Object, "spec", "spec", "devices", "requests")
			}
		}
		e.pod("a", ten)
		e.Forget()
		controllertest.Pass(5 * time.Minute)
		e.want("capacity is dropped")
		writes := 0
		for _, w := range e.Written() {
			if strings.Contains(w, "resourceclaimtemplates") {
				writes++
			}
		}
		if writes == 0 || writes > 30 {
			t.Errorf("%d writes in five minutes", writes)
		}
		if found := strings.Join(e.recorded(), "\n"); !strings.Contains(found, "DRAConsumableCapacity") {
			t.Errorf("the Events: %s", found)
		}
	})
}
