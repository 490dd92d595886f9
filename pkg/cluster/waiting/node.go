// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// Excluded says why the scheduler does not consider a node for a pod, apart from devices, CPU and memory. It is empty
// if the scheduler considers the node. Selectors, required node affinity, taints and cordons exclude a node, and claims
// with devices elsewhere. So does a device plugin that serves one of these extended resources there, which
// DeviceClasses serve too. pod is nil for claims without a pod.
func Excluded(
	node *corev1.Node, pod *corev1.Pod, allocated []*resourceapi.ResourceClaim, served []corev1.ResourceName,
) string {
	for _, c := range allocated {
		if selector := c.Status.Allocation.NodeSelector; selector != nil && !matches(node, selector) {
			return fmt.Sprintf("claim %s/%s is allocated on other nodes", c.Namespace, c.Name)
		}
	}
	if pod == nil {
		return ""
	}
	for _, name := range served {
		if q := node.Status.Allocatable[name]; !q.IsZero() {
			return fmt.Sprintf("a device plugin serves %s there, not this driver", name)
		}
	}
	if !labels.SelectorFromSet(pod.Spec.NodeSelector).Matches(labels.Set(node.Labels)) {
		return "the pod's node selector " + labels.FormatLabels(pod.Spec.NodeSelector) + " does not match"
	}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		if required := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil &&
			!matches(node, required) {
			return "the pod's node affinity does not match"
		}
	}
	cordon := &corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	if node.Spec.Unschedulable && !corev1helpers.TolerationsTolerateTaint(klog.Logger{}, pod.Spec.Tolerations, cordon,
		true) {
		return "the node is cordoned"
	}
	hard := func(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }
	if t, found := corev1helpers.FindMatchingUntoleratedTaint(klog.Logger{}, node.Spec.Taints, pod.Spec.Tolerations,
		hard, true); found {
		return fmt.Sprintf("the pod does not tolerate the node's taint %s", strings.TrimSuffix(t.ToString(), ":"))
	}
	return ""
}

// matches reports whether a selector selects a node. An unreadable one selects none.
func matches(node *corev1.Node, selector *corev1.NodeSelector) bool {
	s, err := nodeaffinity.NewNodeSelector(selector)
	return err == nil && s.Match(node)
}

// Unjudged names the constraints of a pod that can keep it from a node and that this package does not know.
func Unjudged(pod *corev1.Pod) (out []string) {
	if a := pod.Spec.Affinity; a != nil {
		if a.PodAffinity != nil && len(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
			out = append(out, "pod affinity")
		}
		if a.PodAntiAffinity != nil && len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
			out = append(out, "pod anti-affinity")
		}
	}
	if slices.ContainsFunc(pod.Spec.TopologySpreadConstraints, func(c corev1.TopologySpreadConstraint) bool {
		return c.WhenUnsatisfiable == corev1.DoNotSchedule
	}) {
		out = append(out, "topology spread")
	}
	if slices.ContainsFunc(Containers(pod), func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.HostPort > 0 })
	}) {
		out = append(out, "host ports")
	}
	if slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil || v.Ephemeral != nil || v.CSI != nil
	}) {
		out = append(out, "volumes")
	}
	if s := pod.Spec.SchedulerName; s != "" && s != corev1.DefaultSchedulerName {
		out = append(out, "the scheduler "+s)
	}
	return out
}
