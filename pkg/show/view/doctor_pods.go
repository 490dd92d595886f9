// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"gpu-dra-driver/pkg/cluster/waiting"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/sets"
)

// byNode groups the pods that have a node.
func byNode(pods []corev1.Pod) map[string][]corev1.Pod {
	out := map[string][]corev1.Pod{}
	for _, p := range pods {
		if p.Spec.NodeName != "" {
			out[p.Spec.NodeName] = append(out[p.Spec.NodeName], p)
		}
	}
	return out
}

// running returns the pods of a component that have not ended: Kubernetes keeps evicted pods.
func running(pods []corev1.Pod, component string) (out []corev1.Pod) {
	of := components(pods)
	for _, p := range pods {
		if !waiting.Ended(&p) && of(p) == component {
			out = append(out, p)
		}
	}
	return out
}

// components returns a function that returns the driver's component that one of the pods runs, or "". Users can give
// their pods any labels and images, but namespaces allow only trusted pods the node's processes and the kubelet's
// directory of plugins. The controller has nothing of a node, so it must be in a namespace of plugins, if there are
// any.
func components(pods []corev1.Pod) func(corev1.Pod) string {
	namespaces := sets.New[string]()
	for _, p := range pods {
		if labelled(p) == pluginPods && registers(p) {
			namespaces.Insert(p.Namespace)
		}
	}
	return func(p corev1.Pod) string {
		c := labelled(p)
		if c == pluginPods && !registers(p) || len(namespaces) > 0 && !namespaces.Has(p.Namespace) {
			return ""
		}
		return c
	}
}

// registers reports whether a pod can be a plugin of the kubelet, whose directory for them always has this name.
func registers(p corev1.Pod) bool {
	return p.Spec.HostPID && slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
		return v.HostPath != nil && path.Base(v.HostPath.Path) == "plugins_registry"
	})
}

// labelled returns the component that a pod claims to run, or "". The chart's name can be overridden, the image's name
// is kept by mirrors.
func labelled(p corev1.Pod) string {
	c := p.Labels[componentLabel]
	if p.Labels[nameLabel] == chartName || slices.ContainsFunc(p.Spec.Containers, func(one corev1.Container) bool {
		return strings.Contains(one.Image, "dra-"+c)
	}) {
		return c
	}
	return ""
}

func isExporter(p corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool {
		return strings.Contains(c.Image, "dcgm-exporter")
	})
}

func podNames(pods []corev1.Pod) string {
	var out []string
	for _, p := range pods {
		out = append(out, p.Namespace+"/"+p.Name)
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func ready(p corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func imageVersion(p corev1.Pod) string {
	if v := p.Labels[versionLabel]; v != "" || len(p.Spec.Containers) == 0 {
		return v
	}
	image := p.Spec.Containers[0].Image
	return image[strings.LastIndexByte(image, '/')+1:]
}

func pluginOf(p corev1.Pod, now time.Time) string {
	return fmt.Sprintf("%s, %s old", imageVersion(p), duration.HumanDuration(now.Sub(p.CreationTimestamp.Time)))
}
