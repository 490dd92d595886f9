// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/selectortest"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/selector"
	"gpu-dra-driver/pkg/cluster/why"
)

func podOf(names ...corev1.ResourceName) *corev1.Pod {
	p := pod("p")
	limits := corev1.ResourceList{}
	for _, name := range names {
		limits[name] = resource.MustParse("1")
	}
	p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Limits: limits}}}
	return p
}

func TestNeeds_RandomClasses_NamesTheSchedulersClass(t *testing.T) {
	for seed := range seedtest.Each(t, 300) {
		classes := selectortest.Classes(rand.New(rand.NewPCG(seed, 5)))
		c := &why.Cluster{Classes: classes}
		for _, name := range selectortest.Resources(classes) {
			got, want := "", ""
			if class := selectortest.Scheduled(classes, name); class != nil {
				want = class.Name
			}
			for _, claim := range c.Needs(why.Subject{Pod: podOf(name)}, time.Time{}).Waiting() {
				for r := range selector.Requests(claim.Spec.Devices.Requests) {
					got += r.DeviceClassName
				}
			}
			if got != want {
				t.Fatalf("seed %d: a pod with %s waits for %q, want %q", seed, name, got, want)
			}
		}
	}
}

// TestAsk_ImplicitResource_SaysWhatTheSchedulerMayNotKnow has pods that name a class as their resource.
func TestAsk_ImplicitResource_SaysWhatTheSchedulerMayNotKnow(t *testing.T) {
	implicit := selector.Implicit(gpus)
	for name, c := range map[string]struct {
		prepare func(e *env)
		result  why.Result
		says    string
	}{
		"a class": {func(*env) {}, why.Fits, ""},
		"a newer class with the same resource": {func(e *env) {
			newer := e.Classes[0].DeepCopy()
			newer.Name, newer.CreationTimestamp = "newer", metav1.Now()
			newer.Spec.ExtendedResourceName, e.Classes[0].Spec.ExtendedResourceName = new("nvidia.com/gpu"), new("nvidia.com/gpu")
			e.Classes = append(e.Classes, newer)
		}, why.Fits, "the scheduler may not know " + string(implicit)},
		"no class":                       {func(e *env) { e.Classes = e.Classes[1:] }, why.Waits, "no DeviceClass serves " + string(implicit)},
		"classes that could not be read": {func(e *env) { e.Classes, e.States = nil, read.States{read.DeviceClasses: errForbidden} }, why.Undecided, "DeviceClasses"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			e.node(t, "n1", "hgx-h100", 2)
			if e.Classes[0].Name != gpus {
				t.Fatalf("the first class is %s", e.Classes[0].Name)
			}
			c.prepare(e)
			answer := e.ask(why.Subject{Pod: podOf(implicit)})
			if text := answer.String(); answer.Result != c.result || !strings.Contains(text, c.says) || c.says == "" && strings.Contains(text, "may not know") {
				t.Errorf("the answer is %s, want %s with %q:\n%s", answer.Result, c.result, c.says, text)
			}
		})
	}
}
