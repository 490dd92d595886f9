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

// Exclusion is why the scheduler does not consider a node for a pod.
type Exclusion struct {
	Text string
	// Cure is a change of the pod or of the node that ends it. It is empty if the pod's claims or a device plugin are
	// the reason.
	Cure string
}

// Excluded returns the text of the first of the Exclusions, or "".
func Excluded(
	node *corev1.Node, pod *corev1.Pod, allocated []*resourceapi.ResourceClaim, served []corev1.ResourceName,
) string {
	for _, one := range Exclusions(node, pod, allocated, served) {
		return one.Text
	}
	return ""
}

// Exclusions returns why the scheduler does not consider a node for a pod, apart from devices, CPU and memory. There
// are none if the scheduler considers the node. Selectors, required node affinity, taints and cordons exclude a node,
// and claims with devices elsewhere. So does a device plugin that serves one of these extended resources there, which
// DeviceClasses serve too. pod is nil for claims without a pod.
func Exclusions(
	node *corev1.Node, pod *corev1.Pod, allocated []*resourceapi.ResourceClaim, served []corev1.ResourceName,
) (out []Exclusion) {
	for _, c := range allocated {
		if selector := c.Status.Allocation.NodeSelector; selector != nil && !matches(node, selector) {
			out = append(out,
				Exclusion{Text: fmt.Sprintf("claim %s/%s is allocated on other nodes", c.Namespace, c.Name)})
		}
	}
	if pod == nil {
		return out
	}
	for _, name := range served {
		if q := node.Status.Allocatable[name]; !q.IsZero() {
			out = append(out,
				Exclusion{Text: fmt.Sprintf("a device plugin serves %s there, not this driver", name)})
		}
	}
	if !labels.SelectorFromSet(pod.Spec.NodeSelector).Matches(labels.Set(node.Labels)) {
		selector := "the pod's node selector " + labels.FormatLabels(pod.Spec.NodeSelector)
		out = append(out, Exclusion{selector + " does not match", selector + " must go"})
	}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		if required := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil &&
			!matches(node, required) {
			out = append(out,
				Exclusion{"the pod's node affinity does not match", "the pod's node affinity must select the node"})
		}
	}
	taints := node.Spec.Taints
	if node.Spec.Unschedulable { // Kubernetes adds the taint in a moment.
		taints = append([]corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}},
			taints...)
	}
	known := map[string]bool{}
	for _, t := range taints {
		if t.Effect == corev1.TaintEffectPreferNoSchedule ||
			corev1helpers.TolerationsTolerateTaint(klog.Logger{}, pod.Spec.Tolerations, &t, true) {
			continue
		}
		if one := tainted(node.Name, t); !known[one.Cure] {
			known[one.Cure] = true
			out = append(out, one)
		}
	}
	return out
}

// tainted describes a taint of a node that a pod does not tolerate.
func tainted(node string, t corev1.Taint) Exclusion {
	text := strings.TrimSuffix(t.ToString(), ":")
	out := Exclusion{"the pod does not tolerate the node's taint " + text, "the pod must tolerate " + text}
	switch domain, _, _ := strings.Cut(t.Key, "/"); {
	case t.Key == corev1.TaintNodeUnschedulable:
		out = Exclusion{"the node is cordoned", fmt.Sprintf("the cordon must end (kubectl uncordon %s)", node)}
	case t.Key == corev1.TaintNodeNotReady, t.Key == corev1.TaintNodeUnreachable:
		out.Cure = fmt.Sprintf("node %s must become ready", node)
	case strings.HasSuffix(domain, "kubernetes.io"):
		out.Cure = fmt.Sprintf("node %s must lose its taint %s, which Kubernetes sets", node, text)
	}
	return out
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
