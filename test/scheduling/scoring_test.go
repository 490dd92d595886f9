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
// partitions, and on the other two are allocated. The scheduler counts GPUs that are allocated themselves, so it prefers the
// other node, although the first has fewer free GPUs. By another resource, which pods ask for with their GPUs, it packs
// rightly. If this fails with a new version of Kubernetes, it counts partitions: change docs/scaling.md and docs/migrating.md.
func TestScoring_NodeWithPartitions_LooksEmpty(t *testing.T) {
	for _, c := range []struct {
		resource string
		cut      bool // The four GPUs of the first node have partitions; otherwise they are allocated.
		want     string
	}{
		{"nvidia.com/gpu", true, nodeName(1)}, {"nvidia.com/gpu", false, nodeName(0)}, {"cpu", true, nodeName(0)},
	} {
		t.Run(fmt.Sprintf("%s, partitions %v", c.resource, c.cut), func(t *testing.T) {
			ctx := t.Context()
			p := newPlane(ctx, t)
			p.nodes, p.profile = 2, fmt.Sprintf(packing, c.resource)
			must(t, p.createNodes(ctx))
			published, err := p.publish(ctx, settingNamed("1g"))
			must(t, err)
			held := []placed{}
			for node, count := range []int{4, 2} {
				fleet := newFleet(node, published[node])
				for i, g := range devicesOf(published[node], isWhole)[:count] {
					w := workloadNamed("whole")
					w.request = request("gpu.nvidia.com", 1, selectors(fmt.Sprintf("%%s.uuid == '%s'", attribute(g, "uuid")))...)
					if node == 0 && c.cut {
						w = workloadNamed("1g")
						w.request = request("mig-1g.10gb.nvidia.com", 1, selectors(fmt.Sprintf("%%s.parentUUID == '%s'", attribute(g, "uuid")))...)
					}
					one := placed{arrival{name: fmt.Sprintf("held-%d-%d", node, i), workload: w}, nil, nodeName(node)}
					one.claim = w.claim(one.name)
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
