//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kueue

import (
	"context"
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/test/e2e/e2etest"
)

// TestKueue_Cohort_GPUsLentAndReclaimed has the queues of demo/kueue/cohort.yaml, whose flavor has a node label of the driver.
func TestKueue_Cohort_GPUsLentAndReclaimed(t *testing.T) {
	ctx := e2etest.Context(t, 6*time.Minute)
	const label, product = "nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"
	must(t, cluster.Eventually(ctx, "the node's label", time.Minute, func(ctx context.Context) (bool, string) {
		node, err := cluster.Client.CoreV1().Nodes().Get(ctx, "onenode", metav1.GetOptions{})
		must(t, err)
		return node.Labels[label] == product, fmt.Sprint(node.Labels)
	}))
	_, err := cluster.Kubectl(ctx, "apply", "-f", cluster.Tree+"/demo/kueue/cohort.yaml")
	must(t, err)
	a, b := queue{cluster, t, "team-a"}, queue{cluster, t, "team-b"}
	// Kueue looks for extended resources in requests. The API server copies limits there in pods, but not in templates of pods.
	limited := requesting("nvidia.com/gpu", "2")
	a.submit(ctx, "limits", limited)
	a.expect(ctx, "limits", "resource nvidia.com/gpu unavailable in ClusterQueue")
	a.remove(ctx, "job/limits")
	two := *limited.DeepCopy()
	two.Containers[0].Resources.Requests = two.Containers[0].Resources.Limits

	a.submit(ctx, "own", two)
	a.runs(ctx, "own", "gpus:2")
	a.submit(ctx, "borrowed", two)
	a.runs(ctx, "borrowed", "gpus:2")
	pods, err := cluster.Client.CoreV1().Pods("team-a").List(ctx, metav1.ListOptions{})
	must(t, err)
	for _, p := range pods.Items {
		view, err := cluster.Inspect(ctx, p.Namespace, p.Name, "probe")
		must(t, err)
		if p.Spec.NodeSelector[label] != product || len(view.UUIDs()) != 2 {
			t.Errorf("%s has the node selector %v, and sees %v", p.Name, p.Spec.NodeSelector, view.UUIDs())
		}
	}
	a.submit(ctx, "third", two)
	a.expect(ctx, "third", "insufficient unused quota for gpus in flavor h100, 2 more needed")

	// The other team gets its GPUs back, and later they are borrowed again.
	b.submit(ctx, "reclaims", two)
	b.runs(ctx, "reclaims", "gpus:2")
	a.expect(ctx, "borrowed", "insufficient unused quota for gpus in flavor h100")
	must(t, cluster.Eventually(ctx, "one Job of team-a to have a pod", time.Minute, func(ctx context.Context) (bool, string) {
		left, err := cluster.Client.CoreV1().Pods("team-a").List(ctx, metav1.ListOptions{})
		must(t, err)
		claims, err := cluster.Client.ResourceV1().ResourceClaims("team-a").List(ctx, metav1.ListOptions{})
		must(t, err)
		return len(left.Items) == 1 && left.Items[0].Labels[batchv1.JobNameLabel] == "own" && len(claims.Items) == 1,
			fmt.Sprintf("there are %d pods and %d claims", len(left.Items), len(claims.Items))
	}))
	b.remove(ctx, "job/reclaims")
	a.remove(ctx, "job/third")
	a.runs(ctx, "borrowed", "gpus:2")
	remove(ctx, t, "team-a", "team-b")
}
