// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package selector_test

import (
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	"k8s.io/klog/v2"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/selectortest"
	"gpu-dra-driver/pkg/cluster/selector"
)

func TestResources_RandomClasses_AsTheSchedulerChooses(t *testing.T) {
	for seed := range seedtest.Each(t, 500) {
		r := rand.New(rand.NewPCG(seed, 1))
		classes := selectortest.Classes(r)
		got := selector.ResourcesOf(append([]*resourceapi.DeviceClass{nil}, classes...))
		for _, name := range selectortest.Resources(classes) {
			if is, want := got.Class(name), selectortest.Scheduled(classes, name); is != want {
				t.Fatalf("seed %d: %s is served by %s, want %s", seed, name, nameOf(is), nameOf(want))
			}
		}
	}
}

// TestResources_ImplicitName_SchedulerKnowsItOrNone shows what the scheduler's answer for an implicit name depends on: the
// order of its events. It never names another class.
func TestResources_ImplicitName_SchedulerKnowsItOrNone(t *testing.T) {
	unknown := 0
	for seed := range seedtest.Each(t, 500) {
		r := rand.New(rand.NewPCG(seed, 2))
		classes := selectortest.Classes(r)
		known := extendedresourcecache.NewExtendedResourceCache(klog.Logger{})
		for _, c := range classes {
			known.OnAdd(c, true)
		}
		resources := selector.ResourcesOf(classes)
		for _, c := range classes {
			shadowed := resources.Shadows(c) != nil
			switch is := known.GetDeviceClass(selector.Implicit(c.Name)); {
			case is == nil && shadowed:
				unknown++
			case is != c:
				t.Fatalf("seed %d: the implicit name of %s, shadowed %t, is of %s", seed, c.Name, shadowed, nameOf(is))
			}
		}
	}
	if !testing.Short() && unknown == 0 {
		t.Error("the scheduler knew every implicit name: Shadows has no reason any more")
	}
}

// TestResources_OddNames_ServeNone has names that the API server refuses today.
func TestResources_OddNames_ServeNone(t *testing.T) {
	class := func(name, resource string) *resourceapi.DeviceClass {
		return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{ExtendedResourceName: &resource}}
	}
	a := class("a", "")
	classes := []*resourceapi.DeviceClass{
		a, class("b", "cpu"), class("c", "kubernetes.io/batch"), class("d", resourceapi.ResourceDeviceClassPrefix+"a"), class("cpu", "example.com/x"), class("e", "/"),
	}
	got := selector.ResourcesOf(classes)
	for _, name := range []corev1.ResourceName{"", "cpu", "kubernetes.io/batch", "a", "b", "deviceclass.resource.kubernetes.io/"} {
		if is := got.Class(name); is != nil {
			t.Errorf("%q is served by %s", name, is.Name)
		}
	}
	if is := got.Class(selector.Implicit("a")); is != a {
		t.Errorf("the implicit name of a is of %s", nameOf(is))
	}
	if is := selector.ResourcesOf(nil).Class("nvidia.com/gpu"); is != nil {
		t.Errorf("no classes, but %s serves", is.Name)
	}
}

func nameOf(c *resourceapi.DeviceClass) string {
	if c == nil {
		return "none"
	}
	return c.Name
}
