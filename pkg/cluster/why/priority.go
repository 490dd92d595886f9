// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/waiting"
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

// Consider completes an answer with the Holders: how the claims of each cure end. It notes whether a pod's priority is
// higher than that of all pods of one cure. The owner is the pod's. Both are nil for a claim without a pod.
func (a *Answer) Consider(
	c *Cluster, o Options, pod *corev1.Pod, owner *metav1.OwnerReference, holders map[types.NamespacedName]read.Holder,
) {
	priority := func(p *corev1.Pod) int32 { return ptr.Deref(p.Spec.Priority, 0) }
	unread, compared := "", false
	for i, cure := range a.Cures {
		all := c.holders(cure)
		lower := pod != nil && len(all) > 0
		var names, ends []string
		others := false
		for _, name := range all {
			names = append(names, name.String())
			h, known := holders[name]
			if text := c.end(o, name.Name, h, known, owner); text == "" {
				others = true
			} else if !slices.Contains(ends, text) {
				ends = append(ends, text)
			}
			switch {
			case h.Pod == nil:
				lower = false
				// Pods of other namespaces are not named to the pod's users, and were not read.
				if (h.Err != nil || !known) && (o.Reader == "" || name.Namespace == o.Reader) {
					unread = name.String()
				}
			case lower && priority(h.Pod) >= priority(pod):
				lower = false
			}
		}
		if len(ends) > 0 && others {
			ends = append(ends, "wait for the other pods")
		}
		if len(ends) > 0 {
			a.Cures[i].Text = strings.Replace(cure.Text, "("+cure.End+")", "("+ask.List(ends)+")", 1)
		}
		if lower && !compared {
			compared = true
			a.lowerPriority(c, o.Driver, pod, names, len(cure.Release))
		}
	}
	if unread != "" && !compared && pod != nil && priority(pod) > 0 {
		a.note("its priority was not compared, because pod %s could not be read", unread)
	}
}

// end says how a pod that holds devices ends. It is empty if it ends by itself.
func (c *Cluster) end(
	o Options, name string, h read.Holder, known bool, waiter *metav1.OwnerReference,
) string {
	switch {
	case !known:
		return ""
	case h.Err != nil:
		return fmt.Sprintf("pod %s could not be read, so whether it ends is not known", name)
	case h.Pod == nil:
		return fmt.Sprintf("pod %s does not exist any more: kube-controller-manager releases its claim", name)
	case waiting.Ended(h.Pod):
		return fmt.Sprintf("pod %s has ended: kube-controller-manager releases its claim", name)
	}
	var node *corev1.Node
	for _, n := range c.Nodes {
		if n != nil && n.Name == h.Pod.Spec.NodeName {
			node = n
		}
	}
	if why, since := waiting.Overdue(h.Pod, node, c.Nodes != nil, o.Now); why != "" {
		return fmt.Sprintf("pod %s has been terminating for %s: %s", name, age(since), why)
	}
	owner := h.Owner
	switch {
	case h.Pod.DeletionTimestamp != nil:
		return fmt.Sprintf("pod %s is terminating: wait until it ends", name)
	case owner == nil && h.Pod.Spec.RestartPolicy == corev1.RestartPolicyAlways:
		return fmt.Sprintf("pod %s does not end by itself, as its restartPolicy is Always: delete it", name)
	case owner == nil:
		return ""
	case waiter != nil && waiter.UID == owner.UID && owner.Kind == "Deployment":
		return fmt.Sprintf("pod %s is an older pod of Deployment %s, or another replica. An update ends it only once "+
			"this pod is ready, unless maxUnavailable is 1 or more: set maxSurge: 0 and maxUnavailable: 1, or type: "+
			"Recreate, or delete it", name, owner.Name)
	case waiter != nil && waiter.UID == owner.UID && owner.Kind == "CronJob":
		return fmt.Sprintf("pod %s is of an earlier run of CronJob %s: wait until it ends, delete its Job, or set "+
			"concurrencyPolicy: Replace or Forbid", name, owner.Name)
	case owner.Kind == "Job" || owner.Kind == "CronJob":
		return ""
	case h.Pod.Spec.RestartPolicy != "" && h.Pod.Spec.RestartPolicy != corev1.RestartPolicyAlways:
		return "" // Its processes end, as in the jobs of other projects.
	case owner.Kind == "DaemonSet":
		return fmt.Sprintf("DaemonSet %s keeps pod %s running: keep it off the node", owner.Name, name)
	}
	return fmt.Sprintf("%s %s keeps pod %s running: scale it down", owner.Kind, owner.Name, name)
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
