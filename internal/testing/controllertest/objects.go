// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controllertest

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PodOf returns a pod that waits for one of a resource.
func PodOf(name, resourceName string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Status: corev1.PodStatus{Phase: corev1.PodPending},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceName(resourceName): resource.MustParse("1")},
		}}}},
	}
}

// SpecOf returns the spec of a claim with a request.
func SpecOf(class string) resourceapi.ResourceClaimSpec {
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
		Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class},
	}}}}
}

// ClaimOf returns a claim with a request.
func ClaimOf(name, class string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: SpecOf(class)}
}

// Class returns a class with a selector.
func Class(name, expression string) *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}},
	}}
}

// padding are selectors that match each device, and more than a cache keeps.
func padding() (out []resourceapi.DeviceSelector) {
	for i := range 100 {
		out = append(out, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{
			Expression: fmt.Sprintf(`device.driver != "%d%s"`, i, strings.Repeat("x", 1000)),
		}})
	}
	return out
}

// Padded makes a claim too large for a cache.
func Padded(c *resourceapi.ResourceClaim, selectors ...string) *resourceapi.ResourceClaim {
	for _, r := range c.Spec.Devices.Requests {
		if r.Exactly == nil {
			continue
		}
		for _, s := range selectors {
			r.Exactly.Selectors = append(r.Exactly.Selectors,
				resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: s}})
		}
		r.Exactly.Selectors = append(r.Exactly.Selectors, padding()...)
	}
	return c
}

// PaddedClass returns a class that is too large for a cache.
func PaddedClass(name, expression string) *resourceapi.DeviceClass {
	c := Class(name, expression)
	c.Spec.Selectors = append(c.Spec.Selectors, padding()...)
	return c
}

// PartitionOf returns a partition of a node with a profile.
func PartitionOf(t testing.TB, profile string) string {
	t.Helper()
	for _, s := range SlicesAt(t, "hgx-h100", "n1", 0) {
		for _, d := range s.Spec.Devices {
			if strings.Contains(d.Name, "-mig-"+profile+"-") {
				return d.Name
			}
		}
	}
	t.Fatal("no such partition: ", profile)
	return ""
}

// AnyPartition selects partitions.
const AnyPartition = `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "mig"`
