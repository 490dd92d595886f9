// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/ask"
)

// PreemptionAnnotation returns the annotation of the chart's DeviceClass, with the driver's name, that says whether the
// controller preempts: "true" or "false".
func PreemptionAnnotation(driver string) string { return driver + "/preemption" }

// Holders are the pods whose claims must end before a waiting pod fits, of all cures.
func (c *Cluster) Holders(a Answer) (out []types.NamespacedName) {
	for _, cure := range a.Cures {
		for _, name := range c.holders(cure) {
			if !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	return out
}

// holders are the pods of the claims of one cure. There are none if an object other than a pod holds one of them.
func (c *Cluster) holders(cure Cure) (out []types.NamespacedName) {
	for _, claim := range c.Claims {
		if claim == nil || !slices.Contains(cure.Release, ask.NameOf(claim).String()) {
			continue
		}
		if len(claim.Status.ReservedFor) == 0 {
			return nil
		}
		for _, r := range claim.Status.ReservedFor {
			if r.APIGroup != "" || r.Resource != "pods" {
				return nil
			}
			if name := (types.NamespacedName{Namespace: claim.Namespace, Name: r.Name}); !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	return out
}

// ComparePriority notes whether a pod's priority is higher than that of all pods of one cure, and what follows. Of the
// Holders, pods has those that could be read.
func (a *Answer) ComparePriority(
	c *Cluster, driver string, pod *corev1.Pod, pods map[types.NamespacedName]*corev1.Pod,
) {
	priority := func(p *corev1.Pod) int32 { return ptr.Deref(p.Spec.Priority, 0) }
	unread := ""
	for _, cure := range a.Cures {
		all := c.holders(cure)
		lower := len(all) > 0
		var names []string
		for _, name := range all {
			switch holder := pods[name]; {
			case holder == nil:
				unread, lower = name.String(), false
			case priority(holder) >= priority(pod):
				lower = false
			}
			names = append(names, name.String())
		}
		if lower {
			a.lowerPriority(c, driver, pod, names, len(cure.Release))
			return
		}
	}
	if unread != "" && priority(pod) > 0 {
		a.note("its priority was not compared, because pod %s could not be read", unread)
	}
}

// lowerPriority notes that the named pods, which hold so many claims, have a lower priority.
func (a *Answer) lowerPriority(c *Cluster, driver string, pod *corev1.Pod, names []string, claims int) {
	text := fmt.Sprintf("its priority is higher than that of %s; Kubernetes does not preempt for devices",
		ask.List(names))
	if ptr.Deref(pod.Spec.PreemptionPolicy, corev1.PreemptLowerPriority) == corev1.PreemptNever {
		a.note("%s, and its preemptionPolicy is Never", text)
		return
	}
	value := ""
	for _, class := range c.Classes {
		if class != nil && class.Name == driver {
			value = class.Annotations[PreemptionAnnotation(driver)]
		}
	}
	switch value {
	case "true":
		text += ", but this driver does (chart value preemption.enabled)"
		if claims > 1 {
			text += ", if the devices of one claim suffice"
		}
	case "false":
		text += ", nor does this driver: its chart value preemption.enabled is false"
	default:
		text += "; whether this driver does (chart value preemption.enabled) is not known, because DeviceClass " +
			driver + " does not say so"
	}
	a.note("%s", text)
}
