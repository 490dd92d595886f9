//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// packing is a scheduler that scores nodes only by one resource, by MostAllocated.
const packing = `profiles:
- pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated, resources: [{name: %s, weight: 1}]}}
  plugins:
    multiPoint: {disabled: [{name: NodeResourcesBalancedAllocation}, {name: ImageLocality}, {name: PodTopologySpread}, {name: InterPodAffinity}]}
`

// TestScoring_NodeWithPartitions_LooksEmpty lets the scheduler pack pods of `nvidia.com/gpu`. On one node four GPUs have
// partitions, or are a group, and on the other two are allocated. The scheduler counts GPUs that are allocated themselves, so it
// prefers the other node, although the first has fewer free GPUs. By another resource, which pods ask for with their GPUs, it
// packs rightly. If this fails with a new version of Kubernetes, it counts them: change docs/scaling.md and docs/migrating.md.
func TestScoring_NodeWithPartitions_LooksEmpty(t *testing.T) {
	for _, c := range []struct {
		resource string
		first    string // the workload on the first node
		want     string
	}{
		{"nvidia.com/gpu", "1g", nodeName(1)}, {"nvidia.com/gpu", "group", nodeName(1)}, {"nvidia.com/gpu", "whole", nodeName(0)},
		{"cpu", "1g", nodeName(0)},
	} {
		t.Run(c.resource+", "+c.first, func(t *testing.T) {
			ctx := t.Context()
			p := newPlane(ctx, t)
			p.nodes, p.profile = 2, fmt.Sprintf(packing, c.resource)
			must(t, p.createNodes(ctx))
			published, err := p.publish(ctx, settingNamed("all"))
			must(t, err)
			var held []placed
			for node, w := range []workload{workloadNamed(c.first), workloadNamed("whole")} {
				fleet := newFleet(node, published[node])
				count := []int{4, 2}[node]
				for i, g := range devicesOf(published[node], isWhole)[:count/int(max(w.gpus, 1))] {
					one := placed{arrival{name: fmt.Sprintf("held-%d-%d", node, i), workload: w}, nil, nodeName(node)}
					if uuid := attribute(g, "uuid"); w.gpus <= 1 {
						own := map[string]string{"whole": "uuid", "1g": "parentUUID"}[w.name]
						one.workload.request = request(w.request.DeviceClassName, 1, selectors(fmt.Sprintf("%%s.%s == '%s'", own, uuid))...)
					}
					one.claim = one.workload.claim(one.name)
					one.claim.UID = types.UID(one.name) // The API server replaces it.
					if !fleet.Start(one.claim, one.node) {
						t.Fatalf("no room for %s", one.name)
					}
					held = append(held, one)
				}
			}
			for _, one := range held {
				must(t, p.createAllocated(ctx, one.claim))
				pod := withProcessors(one.workload.pod(one.name))
				pod.Spec.NodeName = one.node
				must(t, p.ask(ctx, pod, nil))
			}
			scheduler, err := p.startScheduler()
			must(t, err)
			t.Cleanup(scheduler.stop)
			pod := workloadNamed("extended").pod("one")
			must(t, p.ask(ctx, withProcessors(pod), nil))
			must(t, p.until(ctx, "the pod is placed", func() error {
				now, err := p.client.CoreV1().Pods(namespace).Get(context.WithoutCancel(ctx), pod.Name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				node, _, message := state(now)
				if node == "" {
					return fmt.Errorf("it is not: %s", message)
				}
				if node != c.want {
					t.Errorf("%s, want %s", message, c.want)
				}
				return nil
			}))
		})
	}
}

// withProcessors gives a pod the processors that belong to a GPU of a node.
func withProcessors(pod *corev1.Pod) *corev1.Pod {
	pod.Namespace = namespace
	pod.Spec.Containers[0].Resources.Requests["cpu"] = resource.MustParse("20")
	return pod
}
