// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Repels returns the terms by which a pod keeps others away from its node, and from those of the same domain.
func Repels(pod *corev1.Pod) []corev1.PodAffinityTerm {
	if a := pod.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		return a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return nil
}

// Repelled returns the nodes from which pods with a node keep a pod away.
func Repelled(pod *corev1.Pod, pods []*corev1.Pod, nodes []*corev1.Node) sets.Set[string] {
	labelsOf, keys, domains := map[string]map[string]string{}, sets.New[string](), sets.New[[2]string]()
	for _, n := range nodes {
		labelsOf[n.Name] = n.Labels
	}
	for _, other := range pods {
		if Ended(other) {
			continue
		}
		for _, term := range Repels(other) {
			domain, ok := labelsOf[other.Spec.NodeName][term.TopologyKey]
			if ok && means(term, other.Namespace, pod) {
				keys.Insert(term.TopologyKey)
				domains.Insert([2]string{term.TopologyKey, domain})
			}
		}
	}
	out := sets.New[string]()
	for _, n := range nodes {
		for key := range keys {
			if domain, ok := n.Labels[key]; ok && domains.Has([2]string{key, domain}) {
				out.Insert(n.Name)
			}
		}
	}
	return out
}

// means reports whether a term of a pod in a namespace can be about another pod. The labels of namespaces are not known
// here, so their selector matches all.
func means(term corev1.PodAffinityTerm, namespace string, pod *corev1.Pod) bool {
	if term.NamespaceSelector == nil {
		if len(term.Namespaces) == 0 {
			term.Namespaces = []string{namespace}
		}
		if !slices.Contains(term.Namespaces, pod.Namespace) {
			return false
		}
	}
	selector, err := metav1.LabelSelectorAsSelector(term.LabelSelector)
	return err != nil || selector.Matches(labels.Set(pod.Labels))
}
