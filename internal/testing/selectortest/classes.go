// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package selectortest makes random DeviceClasses, and asks the scheduler's own code which of them serves an extended
// resource. Every user of selector.Resources is compared with it.
package selectortest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	"k8s.io/klog/v2"
)

const (
	ours = `device.driver == "gpu.nvidia.com" && `
	attr = `device.attributes["gpu.nvidia.com"].`
)

// expressions select devices of different kinds and costs, and in the end another driver's.
var expressions = []string{
	ours + attr + `type == "gpu"`, ours + attr + `type == "mig"`, ours + attr + `type == "nvlink-group" && ` + attr +
		`gpuCount == 4`,
	ours + profile("1g.10gb"), ours + profile("2g.20gb"), ours + profile("3g.40gb"),
	`device.driver == "nic.example.com"`,
}

func profile(name string) string {
	return attr + `type == "mig" && has(` + attr + `profile) && ` + attr + `profile == "` + name + `"`
}

// Names are the extended resources that random classes name.
var Names = []string{"nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "example.com/gpu"}

// Classes returns a few classes in any order. They often have a resource or a time of creation in common.
func Classes(r *rand.Rand) (out []*resourceapi.DeviceClass) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 2 + r.IntN(6) {
		c := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("class-%d.nvidia.com", i)}}
		if n := r.IntN(4); n > 0 { // Without it, the class is of a manifest.
			c.CreationTimestamp = metav1.NewTime(start.Add(time.Duration(n) * time.Hour))
		}
		if n := r.IntN(len(Names) + 1); n < len(Names) {
			c.Spec.ExtendedResourceName = &Names[n]
		}
		c.Spec.Selectors = []resourceapi.DeviceSelector{
			{CEL: &resourceapi.CELDeviceSelector{Expression: expressions[r.IntN(len(expressions))]}},
		}
		out = append(out, c)
	}
	r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// Resources returns the resources that pods of a cluster with these classes can name: served ones, and others.
func Resources(classes []*resourceapi.DeviceClass) (out []corev1.ResourceName) {
	for _, name := range Names {
		out = append(out, corev1.ResourceName(name))
	}
	for _, c := range classes {
		out = append(out, corev1.ResourceName(resourceapi.ResourceDeviceClassPrefix+c.Name))
	}
	return append(out, corev1.ResourceName(resourceapi.ResourceDeviceClassPrefix+"none.nvidia.com"), "nvidia.com/none",
		corev1.ResourceCPU)
}

// Scheduled returns the class of which the scheduler allocates devices for a resource, or nil. It had an event for
// each class, in the order of the list. It can lack the implicit resource of a class then, so that one is looked up by
// its name.
func Scheduled(classes []*resourceapi.DeviceClass, resource corev1.ResourceName) *resourceapi.DeviceClass {
	if name, implicit := strings.CutPrefix(string(resource), resourceapi.ResourceDeviceClassPrefix); implicit {
		for _, c := range classes {
			if c.Name == name {
				return c
			}
		}
		return nil
	}
	known := extendedresourcecache.NewExtendedResourceCache(klog.Logger{})
	for _, c := range classes {
		known.OnAdd(c, true)
	}
	return known.GetDeviceClass(resource)
}
