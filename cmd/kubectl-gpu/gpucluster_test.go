// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestDoctor_GPUOperator_ReadsItsGPUClusters has a cluster without the kind, one that serves it, and one whose user may not list it.
func TestDoctor_GPUOperator_ReadsItsGPUClusters(t *testing.T) {
	const group, list = "/apis/nvidia.com/v1alpha1", "/apis/nvidia.com/v1alpha1/gpuclusters"
	served := func(e *env, kind string) {
		e.lists[group] = `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"nvidia.com/v1alpha1","resources":[{"name":"` + kind + `","kind":"K","namespaced":false,"verbs":["list"]}]}`
	}
	for name, c := range map[string]struct {
		change           func(*env)
		finding, without string
	}{
		"no operator":  {func(e *env) { e.forbidden[list] = true }, "", "GPUCluster"},
		"another kind": {func(e *env) { served(e, "nvidiadrivers"); e.forbidden[list] = true }, "", "GPUCluster"},
		"no object": {func(e *env) {
			served(e, "gpuclusters")
			e.lists[list] = `{"kind":"GPUClusterList","apiVersion":"nvidia.com/v1alpha1","items":[]}`
		}, "", "GPUCluster"},
		"an object": {func(e *env) {
			served(e, "gpuclusters")
			e.lists[list] = `{"kind":"GPUClusterList","apiVersion":"nvidia.com/v1alpha1","items":[{"kind":"GPUCluster","apiVersion":"nvidia.com/v1alpha1","metadata":{"name":"gpu-cluster"}}]}`
		}, "for the GPUCluster gpu-cluster", "GPUClusters   you may not list them"},
		"forbidden": {func(e *env) { served(e, "gpuclusters"); e.forbidden[list] = true }, "GPUClusters   you may not list them", "for the GPUCluster"},
	} {
		t.Run(name, func(t *testing.T) {
			e := start(t, map[string]string{"n1": "l40s-4"})
			e.lists[nodesPath], e.lists[podsPath] = corev1.NodeList{}, corev1.PodList{}
			c.change(e)
			code, out, errOut := e.kubectl("doctor")
			if code != 2 || !strings.Contains(out, c.finding) || strings.Contains(out, c.without) {
				t.Errorf("want %q and no %q:\n%s%s", c.finding, c.without, out, errOut)
			}
		})
	}
}
